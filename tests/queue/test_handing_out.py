"""Jobs handed to waiting streams in the commit that makes them takeable (Q24, Q30; docs/design/0004)."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apsw
import pytest
from tests.waiting import until

from penstock import BackendError, Job, JobStatus, JobStream, Queue, cancel_scope
from penstock.backends.engine import claiming

SOON = 10.0
TRIES = 50


def take(stream: JobStream) -> list[Job]:
    with cancel_scope(timeout=SOON):
        return next(stream)


def resting(stream: JobStream, queue: Queue) -> None:
    """Wait until the stream has looked for jobs and found none."""
    dispatcher = queue._dispatcher
    with dispatcher.lock:
        while dispatcher._held.is_claiming or dispatcher._dirty:
            assert dispatcher._rest.wait(SOON)
    assert stream.free == stream.max_assigned_jobs


def test_a_job_reaches_a_waiting_stream_in_the_commit_that_stores_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = queue.stream_jobs("worker", max_assigned_jobs=2)
    resting(stream, queue)
    monkeypatch.setattr(queue._dispatcher, "_claim", lambda streams: {group for group, _ in streams})
    for number in range(TRIES):
        name = f"job-{number}"
        queue.enqueue_job(Job(id=name, type="t"))
        if queue.get_job(name).status is JobStatus.RUNNING:
            break
        queue.cancel_jobs(job_ids=[name])  # the dispatcher was looking for itself just then
        resting(stream, queue)
    (job,) = take(stream)
    assert (job.id, job.attempt, job.assignee_id, stream.free) == (name, 1, "worker", 1)
    assert [row.verb for row in queue.read_journal() if row.job_id == name] == ["enqueue", "claim"]


def test_the_end_of_a_job_hands_out_what_waited_for_it(queue: Queue) -> None:
    """R3, G24: the next of the key, in the commit of the completion."""
    stream = queue.stream_jobs("worker", max_assigned_jobs=2)
    queue.enqueue_jobs([Job(id=name, type="t", key="k") for name in ("first", "second")])
    assert [job.id for job in take(stream)] == ["first"]
    queue.complete_job("first")
    assert [job.id for job in take(stream)] == ["second"]


def test_a_commit_that_fails_hands_out_nothing(queue: Queue, url: str) -> None:
    if url == "memory:":
        pytest.skip("its reads are commits too, and would meet the planted fault")
    stream = queue.stream_jobs("worker", max_assigned_jobs=1)
    resting(stream, queue)
    with failing_commit(queue), pytest.raises(BackendError):
        queue.enqueue_job(Job(id="lost", type="t"))
    assert stream.free == 1
    queue.enqueue_job(Job(id="kept", type="t"))
    assert [job.id for job in take(stream)] == ["kept"]


def test_a_fault_in_handing_out_is_not_the_submitters(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = queue.stream_jobs("worker")
    resting(stream, queue)
    claim = claiming.claim
    submitter = threading.get_ident()
    failed: list[object] = []

    def failing_once(tx: object, wanted: object) -> list[Job]:
        jobs: list[Job] = claim(tx, wanted)
        if threading.get_ident() == submitter and not failed:
            failed.append(wanted)
            raise RuntimeError("planted")
        return jobs

    monkeypatch.setattr(claiming, "claim", failing_once)
    for number in range(TRIES):
        name = f"job-{number}"
        assert queue.enqueue_job(Job(id=name, type="t")) == name
        assert [job.id for job in take(stream)] == [name]
        assert queue.get_job(name).attempt == 1  # what was undone left no trace
        queue.complete_job(name)
        if failed:
            break
        resting(stream, queue)
    assert "could not be served at once" in caplog.text


def test_no_stream_gets_more_than_it_has_room_for(queue: Queue) -> None:
    """Q21: many submitters at once, each commit handing out."""
    stream = queue.stream_jobs("worker", max_assigned_jobs=3)
    done = threading.Event()
    most = 0

    def consume() -> None:
        nonlocal most
        count = 0
        for batch in stream:
            most = max(most, queue.get_job_stats().running_jobs)
            for job in batch:
                queue.complete_job(job.id, attempt=job.attempt)
            count += len(batch)
            if count == 400:
                done.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: queue.enqueue_job(Job(id=f"job-{number}", type="t")), range(400)))
    assert done.wait(SOON)
    stream.close()
    consumer.join(SOON)
    assert 1 <= most <= 3
    assert queue.get_job_stats().completed_jobs == 400


def test_what_is_handed_to_a_stream_that_closes_meanwhile_goes_back(queue: Queue) -> None:
    """Q31: nobody is left holding it."""
    for number in range(100):
        stream = queue.stream_jobs("worker")
        resting(stream, queue)
        closer = threading.Thread(target=stream.close)
        closer.start()
        queue.enqueue_job(Job(id=f"job-{number}", type="t"))
        closer.join(SOON)
        assert queue.get_job(f"job-{number}").status in (JobStatus.INITIAL_PENDING, JobStatus.FAILED_RETRY)
        queue.cancel_jobs(job_ids=[f"job-{number}"])


@contextlib.contextmanager
def failing_commit(queue: Queue) -> Iterator[None]:
    """Make the next COMMIT of the store fail as on a full disk."""
    store = queue.backend._store  # type: ignore[attr-defined]
    if not hasattr(store, "_writer"):
        with failing_command(store):
            yield
        return
    writer = store._writer

    class Cursor:
        def __init__(self, cursor: apsw.Cursor) -> None:
            self._cursor = cursor

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursor, name)

        def execute(self, sql: str, *parameters: object) -> Any:
            if sql == "COMMIT":
                writer._cursor = self._cursor
                raise apsw.FullError("planted")
            return self._cursor.execute(sql, *parameters)

    writer._cursor = Cursor(writer._cursor)
    yield


@contextlib.contextmanager
def failing_command(store: Any) -> Iterator[None]:
    import psycopg

    from penstock.backends.postgres import prepared

    command = prepared.command

    def failing(connection: Any, text: bytes) -> Any:
        if text == b"COMMIT":
            raise psycopg.errors.DiskFull("planted")
        return command(connection, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "command", failing)
        yield


def test_a_hint_leads_straight_to_one_claim(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q34: what another process has done is asked for by claiming; every other question comes later."""
    calls: list[str] = []
    backend = queue.backend
    runtime = backend.runtime
    monkeypatch.setattr(runtime, "poll_seconds", 10 * SOON)  # so that no poll comes in between
    for name in ("dequeue_jobs_for", "released", "next_due", "ready_filters", "has_foreign_changes"):
        owner = runtime if hasattr(runtime, name) else backend
        verb = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, name=name, verb=verb: (calls.append(name), verb(*args))[1]
        )
    monkeypatch.setattr(runtime, "watch", lambda _callback: lambda: None)
    dispatcher = queue._dispatcher
    queue.enqueue_job(Job(id="held", type="t"))  # what a stream holds may have been ended elsewhere
    with queue.stream_jobs("worker", max_assigned_jobs=2) as stream:
        take(stream)
        until(lambda: dispatcher._work._waiters)  # it is at rest
        calls.clear()
        dispatcher._on_notification()
        until(lambda: "released" in calls and dispatcher._work._waiters)
        assert calls[:2] == ["dequeue_jobs_for", "released"]
        assert calls.count("dequeue_jobs_for") == 1
