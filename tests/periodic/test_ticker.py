"""The ticker: one job a tick over all processes, whatever happens to them or to the clock."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock
from penstock.app.schedules import Cron, Every, Periodic, Ticker
from penstock.errors import InvalidArgumentError, QueueClosedError
from penstock.job import Job
from penstock.testing import ManualClock

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def a_job(tick):
    return Job.new("report", run_at=tick)


def minutely(missed="latest", name="report", job=a_job):
    return Periodic(name, Cron("* * * * *"), job, missed)


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture
def queue(shared_store, clock):
    with shared_store.connect(clock=clock) as opened:
        yield opened


def ticked(queue):
    """The ticks that became jobs, as minutes since the start, in order."""
    jobs = []
    while page := queue.list_jobs(after=jobs[-1].id if jobs else None, limit=1000):
        jobs += page
    return [(job.run_at - START) / MINUTE for job in jobs]


def test_a_new_schedule_begins_with_its_next_tick(queue, clock):
    ticker = Ticker(queue, [minutely()])
    assert ticker.tick() == MINUTE
    assert ticked(queue) == []
    clock.advance(59)
    assert ticker.tick() == timedelta(seconds=1)
    assert ticked(queue) == []
    clock.advance(1)
    assert ticker.tick() == MINUTE
    assert ticked(queue) == [1]
    assert ticker.tick() == MINUTE
    assert ticked(queue) == [1]


def test_of_many_tickers_one_makes_the_job(queue, clock):
    tickers = [Ticker(queue, [minutely()]) for _ in range(3)]
    for _ in range(4):
        for each in tickers:
            each.tick()
        clock.advance(60)
    assert ticked(queue) == [1, 2, 3]


@pytest.mark.parametrize(
    ("missed", "expected"), [("latest", [10, 50]), ("skip", [10]), ("all", [10, 20, 30, 40, 50])]
)
def test_missed_ticks(queue, clock, missed, expected):
    """Nobody was there for three quarters of an hour."""
    schedule = Periodic("report", Every(600), a_job, missed)
    ticker = Ticker(queue, [schedule])
    ticker.tick()
    clock.advance(600)
    ticker.tick()
    clock.advance(45 * 60)
    Ticker(queue, [schedule]).tick()
    assert ticked(queue) == expected
    clock.set(START + timedelta(minutes=60))
    ticker.tick()
    assert ticked(queue) == [*expected, 60]


def test_skip_makes_a_job_of_a_tick_that_is_less_than_a_minute_old(queue, clock):
    ticker = Ticker(queue, [Periodic("report", Every(3600), a_job, "skip")])
    ticker.tick()
    clock.advance(3600 + 60)
    ticker.tick()
    assert ticked(queue) == [60]
    clock.advance(3600 + 1)
    ticker.tick()
    assert ticked(queue) == [60]
    assert queue.backend.outbox.list_schedules()[0].tick == START + timedelta(hours=2)


def test_a_long_absence_costs_no_long_walk(queue, clock):
    """A year of minutes; the rule is asked a few hundred times."""
    asked = []

    class Counting(Cron):
        def after(self, moment):
            asked.append(moment)
            return super().after(moment)

    ticker = Ticker(queue, [Periodic("report", Counting("* * * * *"), a_job)])
    ticker.tick()
    clock.advance(timedelta(days=365, seconds=30))
    asked.clear()
    ticker.tick()
    assert ticked(queue) == [365 * 24 * 60]
    assert len(asked) < 200


def test_rare_ticks_are_found_behind_a_long_absence(queue, clock):
    yearly = Periodic("yearly", Cron("0 0 1 6 *"), a_job)
    daily = Periodic("daily", Cron("0 5 * * *"), a_job)
    ticker = Ticker(queue, [yearly, daily])
    ticker.tick()
    clock.set(datetime(2031, 4, 1, 4, tzinfo=UTC))
    ticker.tick()
    found = sorted(job.run_at for job in queue.list_jobs())
    assert found == [datetime(2030, 6, 1, tzinfo=UTC), datetime(2031, 3, 31, 5, tzinfo=UTC)]


def test_all_goes_in_portions_and_loses_none(queue, clock):
    ticker = Ticker(queue, [minutely("all")])
    ticker.tick()
    clock.advance(250 * 60)
    ticker.tick()
    assert ticked(queue) == list(range(1, 251))


def test_a_blocked_queue_gets_its_job_when_it_is_open_again(queue, clock, caplog):
    """What was missed meanwhile is treated as missed."""
    ticker = Ticker(queue, [minutely("latest"), minutely("all", "all")])
    ticker.tick()
    queue.block()
    for _ in range(3):
        clock.advance(60)
        with caplog.at_level(logging.WARNING, logger="penstock"):
            ticker.tick()
    assert ticked(queue) == []
    assert len(caplog.records) == 2  # once for each schedule, not once a second
    queue.unblock()
    ticker.tick()
    assert sorted(ticked(queue)) == [1, 2, 3, 3]


def test_when_the_clock_jumps_forward_ticks_were_missed(queue, clock):
    ticker = Ticker(queue, [minutely()])
    ticker.tick()
    clock.advance(timedelta(hours=1, seconds=5))
    ticker.tick()
    assert ticked(queue) == [60]


def test_when_the_clock_jumps_back_no_tick_comes_twice(queue, clock, caplog):
    ticker = Ticker(queue, [minutely()])
    ticker.tick()
    clock.advance(timedelta(hours=2))
    ticker.tick()
    assert ticked(queue) == [120]
    clock.set(START)
    for _ in range(3):
        clock.advance(60)
        with caplog.at_level(logging.WARNING, logger="penstock"):
            ticker.tick()
            Ticker(queue, [minutely()]).tick()
    assert ticked(queue) == [120]
    assert "the clock was set back" in caplog.text
    clock.set(START + timedelta(minutes=121))
    ticker.tick()
    assert ticked(queue) == [120, 121]


def test_a_changed_rule_goes_on_from_where_the_name_stood(queue, clock):
    Ticker(queue, [minutely()]).tick()
    clock.advance(60)
    Ticker(queue, [minutely()]).tick()
    Ticker(queue, [Periodic("report", Every(300), a_job)]).tick()
    assert ticked(queue) == [1]
    clock.advance(240)
    Ticker(queue, [Periodic("report", Every(300), a_job)]).tick()
    assert ticked(queue) == [1, 5]


def test_a_forgotten_schedule_begins_anew(queue, clock):
    ticker = Ticker(queue, [minutely()])
    ticker.tick()
    queue.backend.outbox.forget_schedule("report")
    clock.advance(600)
    ticker.tick()
    assert ticked(queue) == []
    clock.advance(60)
    ticker.tick()
    assert ticked(queue) == [11]


def test_a_schedule_that_fails_harms_no_other(queue, clock, caplog):
    def broken(tick):
        raise ZeroDivisionError

    schedules = [
        minutely(name="broken", job=broken),
        minutely(name="bad", job=lambda tick: "no job"),
        minutely(),
    ]
    ticker = Ticker(queue, schedules)
    ticker.tick()
    clock.advance(60)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        ticker.tick()
    assert ticked(queue) == [1]
    assert "'broken'" in caplog.text
    assert "'bad' makes no valid job" in caplog.text


def test_it_ticks_in_the_background(shared_store):
    """On the store's own clock."""
    stored = threading.Event()
    with shared_store.connect() as queue:
        queue.events.subscribe(penstock.EventKind.JOB_AVAILABLE, lambda event: stored.set())

        def make(tick):
            stored.set()
            return a_job(tick)

        with Ticker(queue, [Periodic("often", Every(1), make)]) as ticker:
            assert stored.wait(30)
        ticker.close()
        with pytest.raises(QueueClosedError):
            ticker.start()
    assert not [each for each in threading.enumerate() if each.name == "penstock-ticker"]


def test_without_schedules_there_is_no_thread(queue):
    with Ticker(queue, []):
        assert not [each for each in threading.enumerate() if each.name == "penstock-ticker"]


def test_it_ends_with_its_queue(shared_store):
    queue = shared_store.connect()
    ticker = Ticker(queue, [minutely()]).start()
    queue.close()
    assert ticker._service.join(30)
    ticker.close()


CHILD = """
import json, os, signal, sys
import penstock
from penstock.job import Job
from penstock.app.schedules import Every, Periodic, Ticker
from penstock.testing import ManualClock

(url, options), mode = json.loads(sys.argv[1]), sys.argv[2]
clock = ManualClock()
queue = penstock.connect(url, clock=clock, **options)

def job(tick):
    if mode == "killed" and tick.second == 5:
        os.kill(os.getpid(), signal.SIGKILL)  # between two looks at the store
    return Job.new("report", run_at=tick)

ticker = Ticker(queue, [Periodic("often", Every(1), job, "all"), Periodic("seldom", Every(7), job, "latest")])
for line in sys.stdin:
    clock.advance(float(line))
    ticker.tick()
    print("done", flush=True)
"""


class Child:
    def __init__(self, store, mode):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, store.argument(), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )

    def tell(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start_child(shared_store):
    started = []

    def start(mode="lives"):
        started.append(Child(shared_store, mode))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.mark.process
def test_processes_that_tick_at_once_make_one_job_a_tick(queue, start_child):
    """Invariant 19: at most one job per schedule and tick, none before its tick."""
    children = [start_child() for _ in range(3)]
    for step in (0, *[1] * 12, 0.4, 0.6, 5):
        for each in children:
            each.tell(step)  # all of them, at once
        assert [each.hear() for each in children] == ["done"] * 3
    made = Counter(job.run_at for job in queue.list_jobs(limit=1000))
    often = {START + timedelta(seconds=second) for second in range(1, 19)}
    seventh = {START + timedelta(seconds=second) for second in range(1, 19) if _is_seventh(second)}
    assert made == Counter(often) + Counter(seventh)


def _is_seventh(second):
    return int((START + timedelta(seconds=second)).timestamp()) % 7 == 0


@pytest.mark.process
def test_a_ticker_that_is_killed_leaves_no_tick_out_and_none_twice(queue, start_child):
    doomed, survivor = start_child("killed"), start_child()
    for each in (doomed, survivor):
        each.tell(0)
        assert each.hear() == "done"
    for _ in range(8):
        if doomed.process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                doomed.tell(1)
                doomed.hear()
    assert doomed.process.wait(30) == -signal.SIGKILL
    survivor.tell(8)
    assert survivor.hear() == "done"
    often = Counter(job.run_at for job in queue.list_jobs(limit=1000))
    seconds = {START + timedelta(seconds=second) for second in range(1, 9)}
    assert set(often) == seconds
    extra = often - Counter(seconds)
    assert set(extra) <= {tick for tick in seconds if _is_seventh((tick - START).seconds)}
    assert all(count == 1 for count in extra.values())


@pytest.mark.parametrize(
    ("wrong", "field"), [(({}, []), "queue"), ((None, 5), "schedules"), ((None, ["x"]), "schedules")]
)
def test_what_a_ticker_cannot_use_is_refused_at_once(queue, wrong, field):
    given, schedules = wrong
    with pytest.raises(InvalidArgumentError) as caught:
        Ticker(queue if given is None else given, schedules)
    assert caught.value.field == field
