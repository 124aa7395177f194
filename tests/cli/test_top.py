"""`penstock top`: what it shows, live on a terminal and plain elsewhere, and how it ends."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from tests.cli.test_migrate import place

import penstock as library
from penstock import FailureCategory, Job, JobStatus
from penstock.cli._dashboard import frame
from penstock.cli._glance import FAILURES, Looker, Rates
from penstock.overview import Intake
from penstock.testing import ManualClock

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e[bold]evil[/bold]"
PATIENCE = 60.0


@pytest.fixture
def queue(shared_store):
    with shared_store.connect() as made:
        yield made


def fill(queue):
    queue.enqueue_jobs([Job(id=f"a{number}", type="resize") for number in range(3)])
    queue.enqueue_job(Job(id="later", type="mail", after=("a0",)))
    owner = queue.backend.open_owner()
    queue.backend.beat_owner(owner, intakes=[Intake(types=("resize",), tags=("gpu",), slots=4)])
    queue.backend.dequeue_jobs("w", job_ids=["a0"], owner=owner)
    queue.backend.dequeue_jobs("w", job_ids=["a1"], owner=owner)
    queue.fail_job("a1", "the disk is full\nsecond line", category=FailureCategory.PERMANENT)


def test_one_look_tells_everything_as_json(penstock, shared_store, queue):
    fill(queue)
    done = penstock("top", "--once", "--json", *place(shared_store))
    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    seen = json.loads(line)
    assert (seen["ready"], seen["running"], seen["waiting"], seen["delayed"]) == (1, 1, 1, 0)
    assert seen["rates"] is None
    assert seen["oldest_ready_seconds"] >= 0
    by_type = {each["type"]: each for each in seen["types"]}
    assert by_type["resize"]["jobs"] == {"initial_pending": 1, "running": 1, "failed": 1}
    assert by_type["resize"]["entered"] == {"initial_pending": 3, "running": 2, "failed": 1}
    (worker,) = seen["workers"]
    assert (worker["slots"], worker["running"], worker["free"], worker["alive"]) == (4, 1, 3, True)
    assert worker["takes"] == [{"types": ["resize"], "tags": ["gpu"], "slots": 4}]
    (failure,) = seen["failures"]
    assert (failure["job_id"], failure["error_message"]) == ("a1", "the disk is full\nsecond line")
    assert seen["unhandled_types"] == []


def test_one_look_for_people_without_a_terminal(penstock, shared_store, queue):
    fill(queue)
    done = penstock("top", "--once", *place(shared_store))
    assert done.code == 0, done.err
    assert "1 ready · 1 running · 0 delayed · 1 waiting" in done.out
    assert "resize tagged gpu" in done.out
    assert "the disk is full" in done.out
    assert "second line" not in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (120, "TYPE READY OLDEST PENDING RUNNING COMPLETED FAILED IN/S DONE/S FAIL/S"),
        (80, "TYPE READY OLDEST RUNNING COMPLETED FAILED IN/S DONE/S FAIL/S"),
        (50, "TYPE READY RUNNING FAILED DONE/S"),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_no_number_is_cut(width, columns):
    with library.connect("memory:") as queue:
        queue.enqueue_jobs([Job.new("resize pictures of all kinds of animals" * 2) for _ in range(1_234)])
        glance = Looker(queue.backend).look()
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(frame(glance, "here", width=width, rows=20))
    shown = screen.file.getvalue().splitlines()
    (heading,) = [line for line in shown if line.startswith("TYPE")]
    assert heading.split() == columns.split()
    row = shown[shown.index(heading) + 1]
    assert row.startswith("resize")
    assert "…" in row.partition("1,234")[0]
    assert "…" not in row.partition("1,234")[2]


def test_an_empty_store_is_shown_too(penstock, shared_store, queue):
    done = penstock("top", "--once", *place(shared_store))
    assert "0 ready" in done.out
    assert "no worker" in done.out


def test_what_jobs_hold_cannot_reach_the_terminal(penstock, tmp_path):
    with library.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue_job(Job(id=HOSTILE, type=HOSTILE))
        owner = queue.backend.open_owner()
        queue.backend.beat_owner(owner, intakes=[Intake(types=(HOSTILE,), tags=(HOSTILE,), slots=1)])
        queue.backend.dequeue_jobs(HOSTILE, owner=owner)
        queue.fail_job(HOSTILE, HOSTILE)
        for arguments in (["--once"], ["--once", "--json"]):
            out = penstock("top", *arguments, "--url", f"sqlite:///{tmp_path}/jobs.db").out
            assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out)
            assert "[bold]evil[/bold]" in out


def test_rates_are_what_came_between_two_looks():
    clock = ManualClock()
    with library.connect("memory:", clock=clock) as queue:
        looker = Looker(queue.backend)
        queue.enqueue_jobs([Job(id=str(number), type="t") for number in range(10)])
        first = looker.look()
        assert first.rates is None
        assert first.total is None
        clock.advance(4)
        queue.enqueue_jobs([Job(id=f"more-{number}", type="u") for number in range(2)])
        taken = queue.backend.dequeue_jobs("w", limit=10, types=["t"])
        queue.complete_jobs({job.id: None for job in taken[:8]})
        queue.backend.fail_jobs({job.id: "boom" for job in taken[8:]})
        queue.delete_jobs(job_ids=[taken[0].id])
        second = looker.look()
        assert second.rates == {"t": Rates(0.0, 2.0, 0.5), "u": Rates(0.5, 0.0, 0.0)}
        assert second.total == Rates(0.5, 2.0, 0.5)
        assert {row.job_id for row in second.failures} == {job.id for job in taken[8:]}
        assert looker.look().rates == {}  # no time has passed: there is nothing to divide by


def test_only_the_latest_failures_are_kept_newest_first():
    with library.connect("memory:") as queue:
        looker = Looker(queue.backend)
        queue.enqueue_jobs([Job(id=str(number), type="t") for number in range(20)])
        for job in queue.backend.dequeue_jobs("w", limit=20):
            queue.fail_job(job.id, f"failure of {job.id}", category=FailureCategory.PERMANENT)
        ids = [row.job_id for row in looker.look().failures]
        assert ids == [str(number) for number in range(19, 19 - FAILURES, -1)]
        assert [row.job_id for row in looker.look().failures] == ids


def test_an_interval_that_makes_no_sense_is_a_mistake(penstock):
    assert penstock("top", "--interval", "0").code == 2


def start(arguments, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "top", *arguments],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        **how,
    )


@pytest.mark.process
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_into_a_pipe_it_goes_on_until_it_is_told_to_stop(shared_store, queue, ending):
    queue.submit("work")
    process = start([*place(shared_store), "--json", "--interval", "0.1"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["rates"] is None
        queue.submit("work")
        seen = [json.loads(process.stdout.readline()) for _ in range(5)]
        assert all(each["rates"] is not None for each in seen)
        process.send_signal(ending)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_on_a_terminal_it_is_live_and_ends_with_a_key(tmp_path, key):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with library.connect(url) as queue:
        queue.enqueue_job(Job(id="x", type=HOSTILE))
        queue.enqueue_job(Job(id="y", type="second", status=JobStatus.INITIAL_PENDING))
        master, slave = pty.openpty()
        # A session of its own, whose terminal this is: so Ctrl-C arrives as it does for people.
        process = start(
            ["--url", url, "--interval", "0.2"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(slave)
        try:
            shown = _read_until(master, b"q quits")
            queue.submit("third")
            shown += _read_until(master, b"third")
            assert b"\x1b]0;owned" not in shown
            assert "\u202e".encode() not in shown
            os.write(master, key)
            shown += _read_rest(master)
            assert process.wait(PATIENCE) == 0
            assert (
                shown.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in shown
            )  # the screen is given back
        finally:
            process.kill()
            process.wait()
            os.close(master)


def _own_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(master, words):
    shown = b""
    give_up_at = time.monotonic() + PATIENCE
    while words not in shown:
        ready, _, _ = select.select([master], [], [], max(0.0, give_up_at - time.monotonic()))
        assert ready, shown
        shown += os.read(master, 65536)
    return shown


def _read_rest(master):
    shown = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end is closed
            return shown
        if not data:
            return shown
        shown += data
