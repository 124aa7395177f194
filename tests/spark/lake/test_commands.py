"""The commands, on the session of these tests; `test_killed_…` and the demo run Spark in processes of their own."""

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from py4j.protocol import Py4JNetworkError
from tests.spark.lake.support import RandomStore, assert_lake_is
from tests.waiting import until
from typer.testing import CliRunner

import penstock
from penstock.cli import app, run
from penstock.errors import InvalidArgumentError
from penstock.spark import sync
from penstock.spark.lake.manifest import LakeFolder

PIPELINE, AUDIT, REPORT = (
    importlib.import_module(f"penstock.cli.{name}") for name in ("pipeline", "audit", "report")
)


@pytest.fixture
def invoke(spark, monkeypatch):
    @contextmanager
    def this_session(_master):
        yield spark

    for module in (PIPELINE, AUDIT, REPORT):
        monkeypatch.setattr(module, "spark_session", this_session)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def test_from_the_store_to_the_page(invoke, tmp_path, monkeypatch):
    store = RandomStore(tmp_path)
    store.stir(8, 150)
    lake, page, numbers = tmp_path / "lake", tmp_path / "report.html", tmp_path / "report.json"
    rows = len(store.entries())
    done = invoke("pipeline", "run", "--url", store.url, "--lake", lake)
    assert done.exit_code == 0, done.output
    assert f"{rows} changes in 1 batch" in done.output
    assert "0 changes in 0 batches" in invoke("pipeline", "run", "-u", store.url, "-l", lake).output
    audited = invoke("audit", "--lake", lake)
    assert (audited.exit_code, f"{rows} changes checked, 0 violations" in audited.output) == (0, True)
    assert invoke("report", "--lake", lake, "--out", page, "--json", numbers).exit_code == 0
    assert json.loads(numbers.read_text())["events"] == rows
    assert "Plotly" in page.read_text("utf-8")
    figures = json.loads(numbers.read_text())
    monkeypatch.setattr("penstock.spark.reporting.report_figures", lambda *_: figures)  # they were read above
    for arguments in (["--lake", lake, "--json"], ["--json", "-l", lake]):  # alone, it is stdout
        assert json.loads(invoke("report", *arguments).stdout)["events"] == rows


def test_a_continuous_pipeline_follows_until_a_signal_and_leaves_whole_tables(invoke, spark, tmp_path):
    """The signal comes in the middle of a batch, which is brought to its end."""
    store = RandomStore(tmp_path)
    store.stir(3, 40)
    lake = tmp_path / "lake"
    steps = []

    def reaches(condition):
        until(condition, f"the pipeline's next step after {steps}", seconds=1000)

    def has_all():
        offsets = LakeFolder(lake).current().offsets if (lake / "_penstock" / "lake.json").exists() else {}
        return offsets.get(store.id) == len(store.entries())

    def drive():
        try:
            reaches(has_all)
            steps.append("began")
            store.stir(4, 40)
            reaches(has_all)
            steps.append("followed")
            store.stir(5, 40)
            reaches((lake / "_penstock" / "staging").exists)
            steps.append("in the middle")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=drive)
    helper.start()
    done = invoke("pipeline", "run", "-u", store.url, "-l", lake, "--continuous", "--interval", "0.2")
    helper.join()
    assert steps == ["began", "followed", "in the middle"]
    assert done.exit_code == 0, done.output
    assert "changes in" in done.output
    assert LakeFolder(lake).repair() == []
    sync(spark, store.url, lake)
    assert_lake_is(spark, lake, [store])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_the_first_signal_asks_the_second_interrupts(number):
    before = signal.getsignal(number)
    stop = threading.Event()
    with PIPELINE._stopping(stop):
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_a_violation_is_printed_with_its_rows_and_exits_1(invoke, sqlite_url):
    import apsw

    with penstock.connect(sqlite_url) as queue:
        queue.submit("t")
        (job,) = queue.claim_jobs("worker", limit=1)
        queue.complete_job(job.id, attempt=job.attempt)
        queue.submit("t")
    with apsw.Connection(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE journal SET n = 7 WHERE seq = 4")
        connection.execute("UPDATE journal SET ready_at = started_at + 60000000 WHERE seq = 3")
    found = invoke("audit", "--url", sqlite_url)
    assert found.exit_code == 1
    assert "1 (origin): job" in found.output
    assert "seq 4, n 7: enqueue nothing → initial_pending" in found.output
    assert "12 (never early): job" in found.output
    assert "before the job was ready at" in found.output
    lines = invoke("audit", "--url", sqlite_url, "--json").stdout.splitlines()
    assert 1 in {json.loads(line)["invariant"] for line in lines if line.startswith("{")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit"], "--lake DIR or --url URL"),
        (["audit", "--lake", "x", "--url", "sqlite:///x"], "one of them"),
        (["report", "--lake", "x"], "--out report.html"),
        (["report", "--lake", "x", "--out", "/no/such/folder/report.html"], "no folder"),
        (["archive", "--older-than", "soon"], "got 'soon'"),
        (["pipeline", "run", "--url", "sqlite:///jobs.db", "--lake", "."], "is not empty and not a lake"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    penstock.connect("sqlite:///jobs.db").close()
    for module in (PIPELINE, AUDIT, REPORT):
        monkeypatch.setattr(module, "spark_session", pytest.fail)
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, InvalidArgumentError)
    assert message in str(done.exception)


def test_archive_reports_what_it_removed_and_which_consumer_needs_the_rest(sqlite_url):
    with penstock.connect(sqlite_url) as queue:
        queue.cancel_jobs(job_ids=[queue.submit("t").id])
        queue.submit("t")
        queue.backend.journal.register_consumer("lake:x")
    kept = CliRunner().invoke(app, ["archive", "--url", sqlite_url, "--older-than", "0s"])
    assert "0 histories with 0 rows were removed" in kept.output
    assert "kept for lake:x: rows after seq 0" in kept.output
    with penstock.open_backend(sqlite_url) as backend:
        backend.journal.advance_consumer("lake:x", 3)
    done = CliRunner().invoke(app, ["archive", "--url", sqlite_url, "--older-than", "0s"])
    assert "1 histories with 2 rows were removed" in done.output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["audit", "--lake", "nowhere"], "there is no lake in "),
        (["report", "--lake", "nowhere", "--json"], "there is no lake in "),
        (["audit", "--url", "sqlite:///nowhere.db"], "there is no store at "),
        (["pipeline", "run", "--lake", "lake", "--url", "sqlite:///nowhere.db"], "there is no store at "),
        (["pipeline", "run", "--lake", "lake", "--url", "memory:"], "memory: belongs to the process"),
    ],
)
def test_spark_is_not_started_for_what_is_not_there(command, words, monkeypatch, tmp_path, capsys):
    def never(_master):
        raise AssertionError("Spark was started")

    for module in (PIPELINE, AUDIT, REPORT):
        monkeypatch.setattr(module, "spark_session", never)
    monkeypatch.chdir(tmp_path)
    assert run(command) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert list(tmp_path.iterdir()) == []


class GoneSession:
    """A session whose Java was ended: by the signal that the command also got, or by another process."""

    def stop(self):
        raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        (KeyboardInterrupt(), 130, ""),
        (Py4JNetworkError("no answer"), 1, "penstock: the connection to Spark is lost"),
    ],
)
def test_an_interrupt_and_a_java_that_is_gone_leave_no_traceback(
    what, code, words, monkeypatch, tmp_path, capsys
):
    def broken(*_arguments, **_options):
        try:
            raise what
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")  # noqa: LOG015  # as py4j does
            raise

    monkeypatch.setattr("penstock.spark.session", lambda _master: GoneSession())
    monkeypatch.setattr("penstock.spark.sync", broken)
    monkeypatch.setattr(logging.root, "handlers", [])
    penstock.connect(f"sqlite:///{tmp_path}/jobs.db").close()
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert run(["pipeline", "run", "--url", url, "--lake", str(tmp_path / "lake")]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown
    assert "KeyboardInterrupt" not in shown


def test_without_the_extra_the_commands_name_it():
    program = """
import sys
sys.modules["pyspark"] = None
from penstock.cli import main
sys.argv = ["penstock", "audit", "--lake", "x"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "pip install '.[spark]' in a checkout" in done.stderr
    assert "Traceback" not in done.stderr
