"""Factories and shorthand for the suite: a test gives only the fields that matter to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
import pytest

from penstock.backends import Backend, ClaimRequest, Delivery, Schedule
from penstock.backends.contract.selection import JobSelection
from penstock.clock import Clock
from penstock.job import Job, JobStats, JobStatus, JournalArchive, JournalConsumer, JournalEntry
from penstock.policy import FailureCategory, RetryPolicy, Timeouts
from penstock.testing.clock import ManualClock
from penstock.testing.journal import check_store

WORKER = "worker-1"
OTHER_WORKER = "worker-2"
MISSING = "no-such-job"
STATUSES = tuple(JobStatus)
_PAGE = 1000

#: Retries without delays: for tests about counting, not about delays.
AT_ONCE = RetryPolicy(max_attempts=3, backoff="constant", initial_delay=timedelta(0))
ONE_ATTEMPT = RetryPolicy(max_attempts=1)


class MakeBackend(Protocol):
    """The fixture that a user of the suite provides.

    Every call within one test opens the same store, unless `shares_store` is False (a store that lives in its
    object, such as `memory:`).
    """

    shares_store: bool

    def __call__(self, *, clock: Clock | None = None, **options: Any) -> Backend: ...


class Suite:
    """Base of every family: the fixtures that the tests ask for."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """A clock that stands still until a test moves it."""
        return ManualClock()

    @pytest.fixture
    def backend(self, make_backend: MakeBackend, clock: ManualClock) -> Iterator[Backend]:
        """An open, empty store on the test's clock; afterwards its journal must explain its jobs."""
        backend = make_backend(clock=clock)
        try:
            yield backend
            assert_sound(backend)
        finally:
            backend.close()

    @pytest.fixture
    def second_backend(
        self, make_backend: MakeBackend, backend: Backend, clock: ManualClock
    ) -> Iterator[Backend]:
        """Another object on the same store, as another process would have it."""
        if not make_backend.shares_store:
            pytest.skip("the store lives in its object")
        with make_backend(clock=clock) as other:
            yield other


class Snapshot(msgspec.Struct, frozen=True):
    """Everything a store shows."""

    jobs: list[Job]
    journal: list[JournalEntry]
    stats: JobStats
    is_blocked: bool
    consumers: list[JournalConsumer]
    archive: JournalArchive
    deliveries: list[Delivery]
    schedules: list[Schedule]


def a_job(**fields: Any) -> Job:
    """Return a job; its id is "job" and its type "task" unless given."""
    return Job(**{"id": "job", "type": "task", **fields})


def retry_policy(**fields: Any) -> RetryPolicy:
    """Return a retry policy; delays may be seconds."""
    return RetryPolicy(**fields)


def time_limits(**seconds: Any) -> Timeouts:
    """Return timeouts, given in seconds."""
    return Timeouts(**seconds)


def put(backend: Backend, *job_ids: str, **fields: Any) -> list[str]:
    """Enqueue one job per id, one call each, all with the same fields."""
    return [backend.enqueue_job(a_job(id=job_id, **fields)) for job_id in job_ids]


def claim(backend: Backend, job_id: str, worker: str = WORKER, **options: Any) -> Job:
    """Claim one job by its id; it must be claimable."""
    claimed = backend.dequeue_jobs(worker, job_ids=[job_id], **options)
    assert [job.id for job in claimed] == [job_id], f"{job_id} could not be claimed"
    return claimed[0]


def put_running(backend: Backend, *job_ids: str, worker: str = WORKER, **fields: Any) -> None:
    """Enqueue and claim one job per id."""
    for job_id in job_ids:
        put(backend, job_id, **fields)
        claim(backend, job_id, worker)


def is_takeable(backend: Backend, job_id: str) -> bool:
    """Try to claim a job by its id; it is RUNNING afterwards if the answer is yes."""
    return bool(backend.dequeue_jobs("taker", job_ids=[job_id]))


def ids(jobs: list[Job]) -> list[str]:
    """Return the ids of jobs, in their order."""
    return [job.id for job in jobs]


def drive(backend: Backend, status: JobStatus, job_id: str = "job", **fields: Any) -> Job:
    """Enqueue a job and lead it to a status by the shortest way; return it as stored."""
    if status is JobStatus.DEAD_LETTER:
        fields.setdefault("retry", ONE_ATTEMPT)
    put(backend, job_id, **fields)
    if status is JobStatus.UNSCHEDULED:
        backend.cancel_jobs(job_ids=[job_id])
    elif status is not JobStatus.INITIAL_PENDING:
        claim(backend, job_id)
        _finish(backend, status, job_id)
    stored = backend.get_job(job_id)
    assert stored.status is status
    return stored


def _finish(backend: Backend, status: JobStatus, job_id: str) -> None:
    if status is JobStatus.CANCELLING:
        backend.cancel_jobs(job_ids=[job_id])
    elif status is JobStatus.FAILED_RETRY:
        backend.fail_job(job_id, "boom")
    elif status is JobStatus.UNKNOWN_RETRY:
        backend.mark_worker_unresponsive(WORKER)
    elif status is JobStatus.COMPLETED:
        backend.complete_job(job_id, b"result")
    elif status is JobStatus.STOPPED:
        backend.stop_job(job_id, "stopped")
    elif status is JobStatus.UNKNOWN_STOPPED:
        backend.mark_job_unknown_stopped(job_id, "no answer")
    elif status is JobStatus.FAILED:
        backend.fail_job(job_id, "broken", category=FailureCategory.PERMANENT)
    elif status is JobStatus.DEAD_LETTER:
        backend.fail_job(job_id, "boom")


def all_jobs(backend: Backend) -> list[Job]:
    """Return every job, in insertion order."""
    jobs: list[Job] = []
    while True:
        page = backend.list_jobs(after=jobs[-1].id if jobs else None, limit=_PAGE)
        jobs += page
        if len(page) < _PAGE:
            return jobs


#: The number of the last row before the cell that is being tried; 0 outside of tables.
CELL_BEGAN: ContextVar[int] = ContextVar("CELL_BEGAN", default=0)


def journal(backend: Backend) -> list[JournalEntry]:
    """Return the whole journal; in a cell of a table, what was written in that cell."""
    rows: list[JournalEntry] = []
    while page := backend.read_journal(after=rows[-1].seq if rows else CELL_BEGAN.get()):
        rows += page
    return rows


def rows_of(backend: Backend, job_id: str) -> list[JournalEntry]:
    """Return the journal rows of one job."""
    return [row for row in journal(backend) if row.job_id == job_id]


def verbs_of(backend: Backend, job_id: str) -> list[str]:
    """Return the verbs of one job's journal rows."""
    return [str(row.verb) for row in rows_of(backend, job_id)]


def snapshot(backend: Backend) -> Snapshot:
    """Return everything the store shows now."""
    return Snapshot(
        all_jobs(backend),
        journal(backend),
        backend.get_job_stats(),
        backend.is_blocked(),
        backend.journal.list_consumers(),
        backend.journal.get_archive(),
        backend.outbox.list_deliveries(limit=1000),
        backend.outbox.list_schedules(),
    )


@contextmanager
def unchanged(backend: Backend) -> Iterator[None]:
    """Assert that the block changes nothing in the store, the journal included."""
    before = snapshot(backend)
    yield
    assert snapshot(backend) == before


@contextmanager
def refused(backend: Backend, error: type[BaseException]) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Assert that the block raises exactly `error` and changes nothing."""
    with unchanged(backend), pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error


def assert_sound(backend: Backend) -> None:
    """Assert that the journal is whole, legal, and explains the stored jobs."""
    violations = check_store(backend)
    assert not violations, "\n".join(map(str, violations))


Call = Callable[[Backend, str], object]

#: Every verb of the contract that works on a job, called in a way that is right in itself.
JOB_VERBS: dict[str, Call] = {
    "restart_job": lambda backend, job_id: backend.restart_job(job_id, WORKER),
    "complete_job": lambda backend, job_id: backend.complete_job(job_id, b"result"),
    "fail_job": lambda backend, job_id: backend.fail_job(job_id, "boom"),
    "stop_job": lambda backend, job_id: backend.stop_job(job_id, "stop"),
    "stop_job_with_retry": lambda backend, job_id: backend.stop_job_with_retry(job_id, "stop"),
    "mark_job_unknown_stopped": lambda backend, job_id: backend.mark_job_unknown_stopped(job_id, "lost"),
    "update_job_status": lambda backend, job_id: backend.update_job_status(job_id, JobStatus.STOPPED),
    "acknowledge_cancellation": lambda backend, job_id: backend.acknowledge_cancellation(job_id, True),
    "save_progress": lambda backend, job_id: backend.save_progress(job_id, 50),
    "save_checkpoint": lambda backend, job_id: backend.save_checkpoint(job_id, b"state"),
    "update_job": lambda backend, job_id: backend.update_job(job_id, priority=1),
    "get_job": lambda backend, job_id: backend.get_job(job_id),
    "journal.history": lambda backend, job_id: backend.journal.history(job_id),
}

PLURAL_VERBS: dict[str, Call] = {
    "complete_jobs": lambda backend, job_id: backend.complete_jobs({job_id: b"result"}),
    "fail_jobs": lambda backend, job_id: backend.fail_jobs({job_id: "boom"}),
    "stop_jobs": lambda backend, job_id: backend.stop_jobs({job_id: "stop"}),
    "stop_jobs_with_retry": lambda backend, job_id: backend.stop_jobs_with_retry({job_id: "stop"}),
    "mark_jobs_unknown_stopped": lambda backend, job_id: backend.mark_jobs_unknown_stopped({job_id: "lost"}),
    "release_jobs": lambda backend, job_id: backend.release_jobs({job_id: "released"}),
    "acknowledge_cancellations": lambda backend, job_id: backend.acknowledge_cancellations({job_id: True}),
}

OTHER_VERBS: dict[str, Call] = {
    "enqueue_job": lambda backend, job_id: backend.enqueue_job(a_job(id="another")),
    "spawn_jobs": lambda backend, job_id: backend.spawn_jobs(job_id, [a_job(id="another")]),
    "enqueue_jobs": lambda backend, job_id: backend.enqueue_jobs([a_job(id="another")]),
    "publish_jobs": lambda backend, job_id: backend.publish_jobs([a_job(id="another")]),
    "dequeue_jobs": lambda backend, job_id: backend.dequeue_jobs(WORKER),
    "dequeue_jobs_for": lambda backend, job_id: backend.dequeue_jobs_for([ClaimRequest(assignee_id=WORKER)]),
    "cancel_jobs": lambda backend, job_id: backend.cancel_jobs(job_ids=[job_id]),
    "mark_worker_unresponsive": lambda backend, job_id: backend.mark_worker_unresponsive(WORKER),
    "reset_running_jobs": lambda backend, job_id: backend.reset_running_jobs(),
    "heartbeat": lambda backend, job_id: backend.heartbeat(WORKER),
    "owners.open": lambda backend, job_id: backend.owners.open(),
    "owners.beat": lambda backend, job_id: backend.owners.beat("owner"),
    "owners.has": lambda backend, job_id: backend.owners.has("owner"),
    "owners.close": lambda backend, job_id: backend.owners.close("owner"),
    "redrive_jobs": lambda backend, job_id: backend.redrive_jobs(tags=["dead"]),
    "get_jobs": lambda backend, job_id: backend.get_jobs([job_id]),
    "get_job_stats": lambda backend, job_id: backend.get_job_stats(),
    "reading.count_jobs": lambda backend, job_id: backend.reading.count_jobs(),
    "reading.overview": lambda backend, job_id: backend.reading.overview(),
    "list_jobs": lambda backend, job_id: backend.list_jobs(),
    "reading.select_jobs": lambda backend, job_id: backend.reading.select_jobs(JobSelection()),
    "reading.find_ids": lambda backend, job_id: backend.reading.find_ids("job"),
    "read_journal": lambda backend, job_id: backend.read_journal(),
    "journal.store_id": lambda backend, job_id: backend.journal.store_id(),
    "journal.span": lambda backend, job_id: backend.journal.span(),
    "reading.jobs_span": lambda backend, job_id: backend.reading.jobs_span(),
    "journal.register_consumer": lambda backend, job_id: backend.journal.register_consumer("reader"),
    "journal.hold_consumer": lambda backend, job_id: backend.journal.hold_consumer("reader", "me", 10),
    "journal.advance_consumer": lambda backend, job_id: backend.journal.advance_consumer("reader", 0),
    "journal.list_consumers": lambda backend, job_id: backend.journal.list_consumers(),
    "journal.forget_consumer": lambda backend, job_id: backend.journal.forget_consumer("reader"),
    "journal.archive": lambda backend, job_id: backend.journal.archive(timedelta(days=1)),
    "outbox.save_deliveries": lambda backend, job_id: backend.outbox.save_deliveries("me"),
    "outbox.due_deliveries": lambda backend, job_id: backend.outbox.due_deliveries(),
    "outbox.list_deliveries": lambda backend, job_id: backend.outbox.list_deliveries(),
    "outbox.count_deliveries": lambda backend, job_id: backend.outbox.count_deliveries(),
    "outbox.retry_deliveries": lambda backend, job_id: backend.outbox.retry_deliveries(),
    "outbox.tick_schedule": lambda backend, job_id: backend.outbox.tick_schedule(
        "nightly", datetime(2030, 1, 1, tzinfo=UTC), [a_job(id="another")], after=None
    ),
    "outbox.list_schedules": lambda backend, job_id: backend.outbox.list_schedules(),
    "outbox.forget_schedule": lambda backend, job_id: backend.outbox.forget_schedule("nightly"),
    "journal.get_archive": lambda backend, job_id: backend.journal.get_archive(),
    "maintain": lambda backend, job_id: backend.maintain(),
    "cleanup_expired_jobs": lambda backend, job_id: backend.cleanup_expired_jobs(timedelta(days=1)),
    "delete_jobs": lambda backend, job_id: backend.delete_jobs(tags=["finished"]),
    "set_blocked": lambda backend, job_id: backend.set_blocked(True),
    "is_blocked": lambda backend, job_id: backend.is_blocked(),
    "runtime.listen": lambda backend, job_id: backend.runtime.listen(lambda changes: None),
}

VERBS = JOB_VERBS | PLURAL_VERBS | OTHER_VERBS
