"""Stores that fail for a while, and steps of starting and stopping that fail (Q20, Q32, Q51, C20)."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import some
from tests.waiting import pass_time, until

import penstock
from penstock import BackendError, Job, JobStatus, JobStream, Queue, cancel_scope
from penstock.queue import _dispatcher

SOON = 20.0


@pytest.fixture(params=some(["memory", "sqlite"], ["sqlite"]))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


class Outage:
    """Stands in for a verb of the store: fails until it is over, or for so many calls."""

    def __init__(
        self, queue: Queue, verb: str, calls: float = float("inf"), *, retryable: bool = True
    ) -> None:
        owner = queue.backend.runtime if hasattr(queue.backend.runtime, verb) else queue.backend
        self._verb = getattr(owner, verb)
        self._left = calls
        self._retryable = retryable
        self.began = threading.Event()
        setattr(owner, verb, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._left > 0:
            self._left -= 1
            self.began.set()
            raise BackendError("the disk is full", retryable=self._retryable)
        return self._verb(*args, **kwargs)

    def end(self) -> None:
        self._left = 0


def take(stream: JobStream) -> list[Job]:
    with cancel_scope(timeout=SOON):
        return next(stream)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("penstock")]


@pytest.mark.parametrize(
    "verb", ["has_foreign_changes", "next_due", "ready_filters", "released", "dequeue_jobs_for"]
)
def test_a_stream_outlives_a_store_that_fails_for_a_while(
    queue: Queue, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dispatcher, "FULL_POLL_SECONDS", 0.05)
    others = [queue.stream_jobs("other", types=[f"other-{number}"]) for number in range(10)]
    stream = queue.stream_jobs("worker", types=["work"], max_assigned_jobs=5)
    queue.enqueue_job(Job(id="before", type="work"))
    assert [job.id for job in take(stream)] == ["before"]
    outage = Outage(queue, verb)
    queue.backend.runtime.serve = lambda _: lambda: None  # type: ignore[method-assign]
    queue._dispatcher._unserve()
    queue.enqueue_job(Job(id="during", type="work"))
    assert outage.began.wait(SOON)
    pass_time(1.0)  # five tries with growing pauses are over by now
    outage.end()
    assert [job.id for job in take(stream)] == ["during"]
    assert all(each.is_open for each in others)


def test_a_store_that_fails_for_too_long_ends_streams_with_its_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dispatcher, "OUTAGE_SECONDS", 0.3)
    stream = queue.stream_jobs("worker")
    Outage(queue, "next_due")
    began = time.monotonic()
    with pytest.raises(BackendError, match="the disk is full"):
        take(stream)
    assert time.monotonic() - began >= 0.3


def test_a_stream_can_be_closed_during_an_outage(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is being claimed for it while the dispatcher waits for the store."""
    monkeypatch.setattr(_dispatcher, "MIN_RETRY_SECONDS", SOON)
    monkeypatch.setattr(_dispatcher, "MAX_RETRY_SECONDS", SOON)
    stream = queue.stream_jobs("worker", types=["work"])
    queue.stream_jobs("other")
    outage = Outage(queue, "dequeue_jobs_for")
    queue.backend.enqueue_job(Job(id="a", type="none-of-theirs"))
    queue.enqueue_jobs([Job(id=f"job{number}", type="work") for number in range(20)])
    assert outage.began.wait(SOON)
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 10, "it waits for the end of a pause"


def test_what_could_not_be_given_back_is_given_back_later(queue: Queue) -> None:
    """Q32: this process lives on, so nobody else would take it for lost."""
    queue.enqueue_job(Job(id="a", type="work"))
    stream = queue.stream_jobs("worker")
    until(lambda: stream.free == 0)
    outage = Outage(queue, "release_jobs")
    with pytest.raises(BackendError):
        stream.close()
    assert queue.get_job("a").status is JobStatus.RUNNING
    outage.end()
    until(lambda: queue.get_job("a").status is JobStatus.FAILED_RETRY)


def test_a_queue_that_cannot_give_back_its_jobs_leaves_nothing_behind(tmp_path: Path) -> None:
    """Q51: it says so, and ends its threads, its owner and its store all the same."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    before = threads()
    queue = penstock.connect(url)
    queue.enqueue_job(Job(id="a", type="work"))
    stream = queue.stream_jobs("worker")
    until(lambda: stream.free == 0)
    Outage(queue, "release_jobs", retryable=False)
    with pytest.raises(BackendError, match="the disk is full"):
        queue.close()
    assert threads() == before
    queue.close()
    with penstock.connect(url) as again:  # its owner is gone, so its job is free
        assert again.maintain().lost == 1


@pytest.mark.parametrize("name", ["penstock-dispatch", "penstock-beat", "penstock-upkeep"])
def test_a_stream_that_could_not_start_its_threads_starts_none(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    before = threads()
    with penstock.connect(url) as queue:
        with monkeypatch.context() as refusing:
            refusing.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                queue.stream_jobs("worker")
            until(lambda: threads() == before)
        queue.enqueue_job(Job(id="a", type="work"))
        stream = queue.stream_jobs("worker")
        assert [job.id for job in take(stream)] == ["a"]
        assert {"penstock-dispatch", "penstock-beat", "penstock-upkeep"} <= set(threads())
    assert threads() == before


# -- closing and claims -------------------------------------------------------------------------------------------


def test_closing_waits_only_for_a_claim_of_its_own(queue: Queue) -> None:
    claim = queue.backend.dequeue_jobs_for
    claiming, go = threading.Event(), threading.Event()

    def held_up(requests: Any) -> Any:
        if any(request.types == ("busy",) for request in requests):
            claiming.set()
            assert go.wait(SOON)
        return claim(requests)

    idle = queue.stream_jobs("idle", types=["idle"])
    until(lambda: not queue._dispatcher._dirty and not queue._dispatcher._held.is_claiming)
    queue.backend.dequeue_jobs_for = held_up  # type: ignore[method-assign]
    queue.stream_jobs("busy", types=["busy"])
    assert claiming.wait(SOON)
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(idle.close).result(2.0)
        finally:
            go.set()


def test_an_earlier_attempt_that_is_over_does_not_free_a_later_one(queue: Queue) -> None:
    queue.enqueue_job(Job(id="a", type="work"))
    stream = queue.stream_jobs("worker")
    (job,) = take(stream)
    dispatcher = queue._dispatcher
    with dispatcher.lock:
        dispatcher.owner._short["a"] = (job.attempt, 10.0)
        dispatcher._held.end_attempt("a", job.attempt - 1, "complete", JobStatus.COMPLETED)
        assert (stream.free, "a" in dispatcher.owner._short) == (0, True)
        dispatcher._held.end_attempt("a", job.attempt, "complete", JobStatus.COMPLETED)
        assert (stream.free, "a" in dispatcher.owner._short) == (1, False)


def test_a_stream_closed_in_a_scope_that_is_over_gives_its_jobs_back(queue: Queue) -> None:
    """Q32: whatever ended the consumer."""
    queue.enqueue_job(Job(id="a", type="work"))
    stream = queue.stream_jobs("worker")
    until(lambda: stream.free == 0)
    with cancel_scope(timeout=0):
        stream.close()
    assert queue.get_job("a").status is JobStatus.FAILED_RETRY


@pytest.mark.process
def test_a_child_closes_its_parents_streams_without_waiting_for_their_lock(queue: Queue) -> None:
    """F9: a thread that did not come along may hold it."""
    stream = queue.stream_jobs("worker")
    holding, go = threading.Event(), threading.Event()

    def hold() -> None:
        with queue._dispatcher.lock:
            holding.set()
            assert go.wait(SOON)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(SOON)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        stream.close()
        queue._dispatcher.restore_lost(None)
        os._exit(0)
    go.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    assert stream.is_open


# -- delayed jobs -------------------------------------------------------------------------------------------------


def lateness(queue: Queue, stream: JobStream, delay: float) -> float:
    """Submit a delayed job, and return by how many seconds it comes too late."""
    queue.submit("work", delay=delay)
    (job,) = take(stream)
    assert job.run_at is not None
    late = time.time() - job.run_at.timestamp()
    queue.complete_job(job.id)
    return late


def test_delayed_jobs_come_in_time_while_others_write(queue: Queue) -> None:
    """One of three does: a busy machine may delay some, the fault delays all."""
    queue.backend.runtime.has_foreign_changes = lambda: True  # type: ignore[method-assign]
    for number in range(10):  # so many that the store is asked which of them may find something
        queue.stream_jobs("other", types=[f"other-{number}"])
    stream = queue.stream_jobs("worker", types=["work"])
    assert any(lateness(queue, stream, 0.6) < 0.3 for _ in range(3))


def test_a_short_delay_is_not_rounded_up_to_the_next_look(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and from another process."""
    monkeypatch.setattr(_dispatcher, "DUE_POLL_SECONDS", 5.0)
    monkeypatch.setattr("penstock.liveness.UPKEEP_SECONDS", 60.0)
    monkeypatch.setattr(_dispatcher, "FULL_POLL_SECONDS", 60.0)
    stream = queue.stream_jobs("worker", types=["work"])
    pass_time(0.2)
    assert any(lateness(queue, stream, 0.1) < 1.0 for _ in range(3))
    if url == "memory:":
        return
    pass_time(0.2)
    with penstock.connect(url) as elsewhere:
        assert any(lateness(elsewhere, stream, 0.1) < 1.0 for _ in range(3))
