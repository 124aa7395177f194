"""`penstock top`: what it shows, live on a terminal and plain elsewhere, and how it ends."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from rich.console import Console
from tests.cli.test_migrate import place
from tests.waiting import PATIENCE, read_soon

import penstock as library
from penstock import FailureCategory, Job, JobStatus
from penstock.backends.contract.overview import Intake, NamedIntake, Overview, TypeView
from penstock.cli._dashboard import frame, lines_beside_rows, shares
from penstock.cli._snapshot import MAX_FAILURES, Rates, Snapshot, Watcher, snapshot_fields
from penstock.testing import ManualClock

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e[bold]evil[/bold]"


@pytest.fixture
def queue(shared_store):
    with shared_store.connect() as made:
        yield made


def fill(queue):
    queue.enqueue_jobs([Job(id=f"a{number}", type="resize") for number in range(3)])
    queue.enqueue_job(Job(id="later", type="mail", after=("a0",)))
    owner = queue.backend.owners.open()
    queue.backend.owners.beat(owner, intakes=[Intake(types=("resize",), tags=("gpu",), slots=4)])
    queue.backend.dequeue_jobs("w", job_ids=["a0"], owner=owner)
    queue.backend.dequeue_jobs("w", job_ids=["a1"], owner=owner)
    queue.fail_job("a1", "the disk is full\nsecond line", category=FailureCategory.PERMANENT)


def test_one_poll_prints_everything_as_json(penstock, shared_store, queue):
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


def test_one_poll_prints_tables_without_a_terminal(penstock, shared_store, queue):
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
        (
            120,
            "TYPE READY OLDEST PENDING RUNNING RETRYING COMPLETED FAILED DEAD CANCELLED IN/S DONE/S FAIL/S",
        ),
        (80, "TYPE READY OLDEST RUNNING COMPLETED FAILED DEAD IN/S DONE/S"),
        (50, "TYPE READY RUNNING FAILED DEAD DONE/S"),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_no_number_is_cut(width, columns):
    with library.connect("memory:") as queue:
        queue.enqueue_jobs([Job.new("resize pictures of all kinds of animals" * 2) for _ in range(1_234)])
        snapshot = Watcher(queue.backend).poll()
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(frame(snapshot, "here", width=width, rows=20))
    shown = screen.file.getvalue().splitlines()
    (heading,) = [line for line in shown if line.startswith("TYPE")]
    assert heading.split() == columns.split()
    row = shown[shown.index(heading) + 1]
    assert row.startswith("resize")
    assert "…" in row.partition("1,234")[0]
    assert "…" not in row.partition("1,234")[2]


def test_jobs_that_were_handed_back_are_seen_on_eighty_columns():
    with library.connect("memory:") as queue:
        queue.enqueue_jobs([Job(id="a", type="resize")])
        queue.backend.dequeue_jobs("w", limit=1)
        queue.release_jobs({"a": "the worker was stopped"})
        snapshot = Watcher(queue.backend).poll()
    screen = Console(file=io.StringIO(), width=80, color_system=None)
    screen.print(frame(snapshot, "here", width=80, rows=20))
    (heading,) = [line for line in screen.file.getvalue().splitlines() if line.startswith("TYPE")]
    assert "HANDED BACK" in heading
    assert "FAIL/S" not in heading


@pytest.mark.parametrize(("counts", "text"), [((6_000, 6_000), "12,000"), ((10_000, 6_000), "16,000+")])
def test_a_total_is_a_lower_bound_only_if_counting_of_a_type_stopped(counts, text):
    types = tuple(TypeView(type=f"t{number}", ready=count) for number, count in enumerate(counts))
    seen = Overview(at=datetime.now(UTC), schema_version=1, is_blocked=False, types=types)
    fields = snapshot_fields(Snapshot(seen, None, ()))
    assert (fields["ready"], fields["ready_text"]) == (sum(counts), text)
    assert fields["ready_at_least"] == text.endswith("+")
    screen = Console(file=io.StringIO(), width=120, color_system=None)
    screen.print(frame(Snapshot(seen, None, ()), "here", width=120, rows=20))
    assert f"{text} ready ·" in screen.file.getvalue()


def drawn(snapshot, height, width=120):
    """Return the lines of a live frame that has a terminal for itself."""
    screen = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    rows = max(5, height - lines_beside_rows(snapshot, width))
    screen.print(frame(snapshot, "here", width=width, rows=rows, is_live=True))
    return screen.file.getvalue().splitlines()


def crowd(queue, workers=8, types=3, running=6, failures=10):
    names = [f"worker-{number}" for number in range(workers)]
    for name in names:
        owner = queue.backend.owners.open()
        queue.backend.owners.beat(owner, intakes=[NamedIntake(types=("t0",), slots=4, names=(name,))])
    queue.enqueue_jobs([Job(id=f"w{n}", type=f"t{n % types}") for n in range(running + failures + types)])
    for number, job in enumerate(queue.backend.dequeue_jobs("worker-1", limit=running + failures)):
        if number < running:
            queue.save_progress(job.id, 10 + number, f"step {number}")
        else:
            queue.fail_job(job.id, f"failure {number}", category=FailureCategory.PERMANENT)
    return names


def test_a_tall_terminal_shows_all_workers_and_running_jobs_with_their_progress():
    with library.connect("memory:") as queue:
        names = crowd(queue)
        shown = drawn(Watcher(queue.backend).poll(), 45)
    text = "\n".join(shown)
    assert len(shown) <= 45
    assert all(name in text for name in names)
    assert all(f"{10 + number} %" in text and f"step {number}" in text for number in range(6))
    assert text.count("failure ") == 10
    assert "more" not in text


@pytest.mark.parametrize("height", [12, 20, 24, 30, 45, 80])
def test_a_frame_fills_the_terminal_and_is_never_taller(height):
    with library.connect("memory:") as queue:
        crowd(queue, workers=30, types=20, running=40, failures=40)
        shown = drawn(Watcher(queue.backend).poll(), height)
    assert len(shown) <= max(height, 22)  # below that, a few rows of each table are shown all the same
    if height >= 24:
        assert len(shown) >= height - 2
    assert "more workers" in "\n".join(shown) or height == 80


def test_rows_are_divided_by_what_is_needed():
    assert shares([3, 8, 4, 8], 30) == [3, 8, 4, 8]
    assert shares([100, 8, 4, 8], 30) == [10, 8, 4, 8]
    assert shares([100, 100, 100, 100], 40) == [10, 10, 10, 10]
    assert sum(shares([5, 50, 0, 100], 31)) == 31


def test_an_empty_store_is_shown_too(penstock, shared_store, queue):
    done = penstock("top", "--once", *place(shared_store))
    assert "0 ready" in done.out
    assert "no worker" in done.out


def test_what_jobs_hold_cannot_reach_the_terminal(penstock, tmp_path):
    with library.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue_job(Job(id=HOSTILE, type=HOSTILE))
        owner = queue.backend.owners.open()
        queue.backend.owners.beat(owner, intakes=[Intake(types=(HOSTILE,), tags=(HOSTILE,), slots=1)])
        queue.backend.dequeue_jobs(HOSTILE, owner=owner)
        queue.fail_job(HOSTILE, HOSTILE)
        for arguments in (["--once"], ["--once", "--json"]):
            out = penstock("top", *arguments, "--url", f"sqlite:///{tmp_path}/jobs.db").out
            assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out)
            assert "[bold]evil[/bold]" in out


def test_rates_are_counted_between_two_polls():
    clock = ManualClock()
    with library.connect("memory:", clock=clock) as queue:
        watcher = Watcher(queue.backend)
        queue.enqueue_jobs([Job(id=str(number), type="t") for number in range(10)])
        first = watcher.poll()
        assert first.rates is None
        assert first.total is None
        clock.advance(4)
        queue.enqueue_jobs([Job(id=f"more-{number}", type="u") for number in range(2)])
        taken = queue.backend.dequeue_jobs("w", limit=10, types=["t"])
        queue.complete_jobs({job.id: None for job in taken[:8]})
        queue.backend.fail_jobs({job.id: "boom" for job in taken[8:]})
        queue.delete_jobs(job_ids=[taken[0].id])
        second = watcher.poll()
        assert second.rates == {"t": Rates(0.0, 2.0, 0.5), "u": Rates(0.5, 0.0, 0.0)}
        assert second.total == Rates(0.5, 2.0, 0.5)
        assert {row.job_id for row in second.failures} == {job.id for job in taken[8:]}
        assert watcher.poll().rates == {}  # no time has passed: there is nothing to divide by


def test_only_the_latest_failures_are_kept_newest_first():
    with library.connect("memory:") as queue:
        watcher = Watcher(queue.backend)
        queue.enqueue_jobs([Job(id=str(number), type="t") for number in range(20)])
        for job in queue.backend.dequeue_jobs("w", limit=20):
            queue.fail_job(job.id, f"failure of {job.id}", category=FailureCategory.PERMANENT)
        ids = [row.job_id for row in watcher.poll().failures]
        assert ids == [str(number) for number in range(19, 19 - MAX_FAILURES, -1)]
        assert [row.job_id for row in watcher.poll().failures] == ids


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
def test_into_a_pipe_it_goes_on_until_it_is_stopped(shared_store, queue, ending):
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
    while words not in shown:
        part = read_soon(master)
        assert part, shown
        shown += part
    return shown


def _read_rest(master):
    shown = b""
    while part := read_soon(master):
        shown += part
    return shown
