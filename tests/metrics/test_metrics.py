"""Metrics: what a scrape says, in the format that Prometheus reads, with any number of workers."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until

import penstock
from penstock import FailureCategory, Job
from penstock.backends import CALLBACKS, Delivery
from penstock.backends.contract.overview import Intake
from penstock.errors import InvalidArgumentError
from penstock.metrics import PAGE, PenstockCollector
from penstock.testing import ManualClock, ModelBackend

PATIENCE = 60.0


class Scraped:
    """One scrape, parsed as Prometheus would."""

    def __init__(self, text):
        self.text = text
        self.families = {each.name: each for each in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name, **labels):
        return self.samples.get((name, *sorted(labels.items())))


def scraper(queue, **options):
    registry = CollectorRegistry()
    registry.register(PenstockCollector(queue, **options))
    return lambda: Scraped(generate_latest(registry).decode())


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def queue(shared_store, clock):
    with shared_store.connect(clock=clock) as made:
        yield made


def test_jobs_are_counted_by_type_and_state(queue):
    scrape = scraper(queue)
    queue.enqueue_jobs([Job(id=str(number), type="resize") for number in range(4)])
    done, failed = queue.backend.dequeue_jobs("w", limit=2)
    queue.complete_job(done.id)
    queue.fail_job(failed.id, "boom", category=FailureCategory.PERMANENT)
    seen = scrape()
    assert seen("penstock_up") == 1
    assert seen("penstock_jobs_total", type="resize", state="initial_pending") == 4
    assert seen("penstock_jobs_total", type="resize", state="completed") == 1
    assert seen("penstock_jobs_total", type="resize", state="failed") == 1
    assert seen("penstock_jobs_stored", type="resize", state="initial_pending") == 2
    queue.delete_jobs(job_ids=[done.id])
    seen = scrape()
    assert seen("penstock_jobs_total", type="resize", state="completed") == 1  # a counter never falls
    assert seen("penstock_jobs_stored", type="resize", state="completed") is None


def test_ready_jobs_and_their_age_are_exported(queue, clock):
    scrape = scraper(queue)
    queue.enqueue_job(Job(id="a", type="mail"))
    queue.enqueue_job(Job(id="b", type="mail", after=("a",)))
    queue.enqueue_job(Job(id="c", type="mail", run_at=clock.now() + timedelta(hours=1)))
    clock.advance(90)
    seen = scrape()
    assert seen("penstock_queue_depth", type="mail") == 3
    assert seen("penstock_ready_jobs", type="mail") == 1
    assert seen("penstock_delayed_jobs") == 1
    assert seen("penstock_oldest_ready_seconds", type="mail") == 90
    assert seen("penstock_type_handled", type="mail") == 0
    queue.backend.dequeue_jobs("w")
    assert scrape()("penstock_oldest_ready_seconds", type="mail") == 0


def test_workers_and_their_slots_are_exported(queue):
    scrape = scraper(queue)
    assert scrape()("penstock_workers_up") == 0
    queue.enqueue_jobs([Job(id=str(number), type="mail") for number in range(2)])
    owner = queue.backend.owners.open()
    queue.backend.owners.beat(owner, intakes=[Intake(types=("mail",), slots=5)])
    queue.backend.dequeue_jobs("w", limit=2, owner=owner)
    seen = scrape()
    assert (seen("penstock_workers_up"), seen("penstock_workers_dead")) == (1, 0)
    assert (seen("penstock_slots"), seen("penstock_slots_free")) == (5, 3)
    assert seen("penstock_type_handled", type="mail") == 1


def test_the_block_callbacks_and_versions_are_exported(queue):
    queue.block()
    queue.backend.journal.register_consumer(CALLBACKS)
    queue.backend.journal.hold_consumer(CALLBACKS, "me", 60)
    given_up = Delivery(seq=1, event_id="e", url="https://x/", lane="x", body=b"{}", due_at=None)
    queue.backend.outbox.save_deliveries("me", [given_up])
    seen = scraper(queue)()
    assert (seen("penstock_blocked"), seen("penstock_callbacks_given_up")) == (1, 1)
    assert seen("penstock_callbacks_undelivered") == 0
    (info,) = seen.families["penstock_info"].samples
    assert info.labels["version"] == penstock.__version__


def test_waits_and_runs_of_every_attempt_are_in_the_histograms(queue, clock):
    scrape = scraper(queue)
    queue.enqueue_job(Job(id="before", type="mail"))
    queue.backend.dequeue_jobs("w")
    queue.complete_job("before")
    scrape()  # from here on
    queue.enqueue_job(Job(id="a", type="mail"))
    clock.advance(2)
    queue.backend.dequeue_jobs("w")
    clock.advance(20)
    queue.fail_job("a", "boom")
    clock.advance(0.04)
    queue.backend.dequeue_jobs("w")
    clock.advance(0.3)
    queue.complete_job("a")
    for _ in range(2):  # nothing is counted twice
        seen = scrape()
        assert seen("penstock_job_wait_seconds_count", type="mail") == 2
        assert seen("penstock_job_wait_seconds_sum", type="mail") == pytest.approx(2.04)
        assert seen("penstock_job_wait_seconds_bucket", type="mail", le="0.05") == 1
        assert seen("penstock_job_wait_seconds_bucket", type="mail", le="2.5") == 2
        assert seen("penstock_job_wait_seconds_bucket", type="mail", le="+Inf") == 2
        assert seen("penstock_job_run_seconds_sum", type="mail", state="failed_retry") == pytest.approx(20)
        assert seen("penstock_job_run_seconds_bucket", type="mail", state="completed", le="0.25") == 0
        assert seen("penstock_job_run_seconds_bucket", type="mail", state="completed", le="0.5") == 1
        assert seen("penstock_journal_rows_skipped_total") == 0


def test_a_journal_that_outruns_the_scrapes_is_sampled_and_counted():
    with penstock.connect("memory:") as queue:
        scrape = scraper(queue, max_rows=30)
        scrape()
        queue.enqueue_jobs([Job(id=str(number), type="t") for number in range(50)])
        taken = queue.backend.dequeue_jobs("w", limit=50)
        queue.complete_jobs({job.id: None for job in taken})
        seen = scrape()
        assert seen("penstock_journal_rows_skipped_total") == 120
        assert seen("penstock_job_run_seconds_count", type="t", state="completed") == 30
        assert seen("penstock_jobs_total", type="t", state="completed") == 50


def test_a_scrape_goes_through_all_that_has_come_page_by_page():
    with penstock.connect("memory:") as queue:
        scrape = scraper(queue)
        scrape()
        queue.enqueue_jobs([Job(id=str(number), type="t") for number in range(900)])
        queue.complete_jobs({job.id: None for job in queue.backend.dequeue_jobs("w", limit=900)})
        assert queue.backend.journal.span()[1] > 2 * PAGE
        assert scrape()("penstock_job_run_seconds_count", type="t", state="completed") == 900


def test_names_follow_the_conventions(queue):
    queue.enqueue_job(Job(id="a", type="t"))
    queue.backend.dequeue_jobs("w")
    scrape = scraper(queue)
    scrape()
    queue.complete_job("a")
    seen = scrape()
    for family in seen.families.values():
        assert family.name.startswith("penstock")
        assert family.documentation
        assert not re.search(r"millis|micro|minutes|_ms$", family.name)
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            if family.name != "penstock_info":
                assert set(sample.labels) <= {"type", "state", "le"}
    described = {each.name for each in PenstockCollector(queue).describe()}
    assert described - {"penstock"} == set(seen.families) - {"penstock_info"}


def test_hostile_types_stay_inside_their_label(queue):
    hostile = 'a"} 1\npenstock_up 0\n# HELP \\'
    queue.enqueue_job(Job(id="a", type=hostile))
    seen = scraper(queue)()
    assert seen("penstock_up") == 1
    assert seen("penstock_queue_depth", type=hostile) == 1


def test_a_store_that_is_away_is_exported_and_not_an_error(monkeypatch):
    def away():
        raise penstock.BackendError("away", retryable=True)

    backend = ModelBackend()
    monkeypatch.setattr(backend.reading, "overview", away)
    with penstock.Queue(backend) as lost:
        seen = scraper(lost)()
        assert seen("penstock_up") == 0
        assert set(seen.families) == {"penstock_up"}


@pytest.mark.parametrize(
    "options", [{"buckets": []}, {"buckets": [2, 1]}, {"max_rows": 0}, {"max_rows": True}]
)
def test_wrong_options_are_refused(queue, options):
    with pytest.raises(InvalidArgumentError):
        PenstockCollector(queue, **options)


# -- served ----------------------------------------------------------------------------------------------------------

APP = """
    import penstock

    app = penstock.App()

    @app.job
    def greet(name: str) -> str:
        return f"hi {name}"
"""


def place(store):
    return ["--url", store.address]


def start(*arguments, cwd, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.fixture
def exporter(shared_store, tmp_path):
    shared_store.connect().close()
    process = start("metrics", "--port", "0", *place(shared_store), cwd=tmp_path)
    line = process.stdout.readline()
    yield process, line.split()[1]
    process.kill()
    process.communicate()


def fetch(address):
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return Scraped(answer.read().decode())


@pytest.mark.process
def test_the_command_serves_this_machine_alone_until_it_is_stopped(exporter, shared_store):
    process, address = exporter
    assert address.startswith("http://127.0.0.1:")
    assert fetch(address)("penstock_up") == 1
    with shared_store.connect() as queue:
        queue.submit("mail")
    assert fetch(address)("penstock_queue_depth", type="mail") == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


@pytest.mark.process
@pytest.mark.slow
def test_several_worker_processes_are_one_set_of_figures(tmp_path):
    (tmp_path / "shop.py").write_text(textwrap.dedent(APP))
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.connect(url) as queue:
        exporter = start("metrics", "--port", "0", "--url", url, cwd=tmp_path)
        address = exporter.stdout.readline().split()[1]
        workers = start(
            "worker",
            "shop:app",
            "-p",
            "2",
            "-c",
            "3",
            "--isolation",
            "thread",
            cwd=tmp_path,
            PENSTOCK_URL=url,
        )
        try:
            fetch(address)
            until(lambda: fetch(address)("penstock_slots") == 6)
            assert fetch(address)("penstock_workers_up") == 2
            for number in range(20):
                queue.submit("greet", {"name": str(number)})
            until(lambda: fetch(address)("penstock_jobs_total", type="greet", state="completed") == 20)
            seen = fetch(address)
            assert seen("penstock_job_run_seconds_count", type="greet", state="completed") == 20
            assert seen("penstock_job_wait_seconds_count", type="greet") == 20
            assert seen("penstock_type_handled", type="greet") == 1
        finally:
            for process in (workers, exporter):
                process.terminate()
                process.wait(PATIENCE)
                process.stdout.close()


@pytest.mark.process
def test_once_prints_what_would_be_served(shared_store, tmp_path):
    with shared_store.connect() as queue:
        queue.submit("mail")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "metrics", "--once", *place(shared_store)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Scraped(done.stdout)("penstock_ready_jobs", type="mail") == 1


@pytest.mark.process
def test_without_the_extra_the_command_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['prometheus_client'] = None; from penstock import cli; sys.exit(cli.run(['metrics']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install '.[metrics]' in a checkout" in done.stderr
