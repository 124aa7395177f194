"""How long a held job may run: bounded by the holder's monotonic clock (G14, C28)."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from tests.app.working import working

from penstock import App, BackendError, FailureCategory, Job, JobStatus, Queue, Timeouts, cancel_scope
from penstock.clock import SystemClock
from penstock.queue._execution_limits import GRACE_SECONDS, ExecutionLimits

SOON = 20.0


class JumpingClock:
    """The system's clock, which can be set ahead."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return SystemClock().now() + self.ahead


class Steady:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def limited(name: str, seconds: float = 60) -> Job:
    return Job(id=name, type="work", timeouts=Timeouts(execution=timedelta(seconds=seconds)))


def claim_by(queue: Queue, way: str) -> Job:
    """Claim one job, held by this process until it ends."""
    if way == "hand":
        return queue.claim_jobs("w")[0]
    with cancel_scope(timeout=SOON):
        return next(queue.stream_jobs("w"))[0]


@pytest.fixture
def steady(queue: Queue) -> Steady:
    """The monotonic clock of the queue's limits."""
    steady = Steady()
    queue._dispatcher.owner.limits = ExecutionLimits(queue.backend, steady)
    return steady


@pytest.mark.parametrize("way", ["stream", "hand"])
def test_a_jump_of_the_clock_fails_no_job_that_a_queue_holds(connect: Callable[..., Queue], way: str) -> None:
    clock = JumpingClock()
    queue = connect(clock=clock)
    queue.enqueue_job(limited("a", 1800))
    job = claim_by(queue, way)
    clock.ahead = timedelta(hours=1)
    assert queue.maintain().timed_out == 0
    queue.complete_job("a", b"done", attempt=job.attempt)
    assert queue.get_job("a").result == b"done"


def test_a_jump_of_the_clock_does_not_time_out_the_job_of_a_worker() -> None:
    """An hour ahead, a job that runs for seconds "ran longer than 1800 s"."""
    clock = JumpingClock()
    app = App("memory:", clock=clock)
    started, goes_on = threading.Event(), threading.Event()

    @app.job
    def slow() -> str:
        started.set()
        goes_on.wait(SOON)
        return "done"

    with app, working(app):
        handle = slow.submit()
        assert started.wait(SOON)
        clock.ahead = timedelta(hours=1)
        assert app.queue.maintain().timed_out == 0
        goes_on.set()
        assert handle.result(timeout=SOON) == "done"
        assert handle.job().attempt == 1


@pytest.mark.parametrize("way", ["stream", "hand"])
def test_a_consumer_that_hangs_is_failed_by_its_own_process(queue: Queue, steady: Steady, way: str) -> None:
    queue.enqueue_job(limited("a"))
    claim_by(queue, way)
    limits = queue._dispatcher.owner.limits
    steady.seconds += 60 + GRACE_SECONDS - 0.001
    assert limits.enforce() == 0
    steady.seconds += 0.002
    limits.enforce()  # the upkeep thread may have been first
    job = queue.get_job("a")
    assert job.error_category is FailureCategory.TIMEOUT
    assert (job.error_code, job.failures) == ("execution_timeout", 1)
    assert "60 s" in job.error_message


def test_a_job_without_a_limit_may_run_for_ever(queue: Queue, steady: Steady) -> None:
    queue.enqueue_job(Job(id="a", type="work"))
    claim_by(queue, "hand")
    steady.seconds += 10**9
    assert queue._dispatcher.owner.limits.enforce() == 0
    assert queue.get_job("a").status is JobStatus.RUNNING


@pytest.mark.parametrize("way", ["stream", "hand"])
def test_the_clock_of_a_reported_job_stops(queue: Queue, steady: Steady, way: str) -> None:
    queue.enqueue_job(limited("a"))
    job = claim_by(queue, way)
    queue.complete_job("a", attempt=job.attempt)
    steady.seconds += 10**6
    assert queue._dispatcher.owner.limits._overdue() == []


def test_what_ended_elsewhere_is_left_alone(
    connect: Callable[..., Queue], steady: Steady, queue: Queue
) -> None:
    queue.enqueue_job(limited("a"))
    claim_by(queue, "hand")
    listeners, queue.backend.runtime._listeners = queue.backend.runtime._listeners, {}
    queue.backend.fail_job("a", "boom")
    queue.backend.runtime._listeners = listeners
    steady.seconds += 10**6
    limits = queue._dispatcher.owner.limits
    assert limits.enforce() == 0
    assert limits._overdue() == []
    assert queue.get_job("a").error_message == "boom"


def test_what_a_failing_store_refuses_is_tried_again(queue: Queue, steady: Steady) -> None:
    queue.enqueue_job(limited("a"))
    claim_by(queue, "hand")
    limits = queue._dispatcher.owner.limits
    fail_job = queue.backend.fail_job

    def refuse(*_: object, **__: object) -> dict[str, int]:
        raise BackendError("no", retryable=True)

    queue.backend.fail_job = refuse  # type: ignore[method-assign]
    steady.seconds += 10**6
    with pytest.raises(BackendError):
        limits.enforce()
    queue.backend.fail_job = fail_job  # type: ignore[method-assign]
    limits.enforce()
    assert queue.get_job("a").error_category is FailureCategory.TIMEOUT
