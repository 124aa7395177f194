"""The store contract: one atomic verb a method.

Every verb is one transaction. It either takes effect as a whole and is durable when it returns, or raises and changes
nothing. Every verb honours the ambient `cancel_scope`, raises QueueClosedError after `close()`, InvalidArgumentError
for arguments that are wrong in themselves, and BackendError when the store itself fails. All are thread-safe.

Words used below:
  slot      held while a job is RUNNING or CANCELLING.
  freed     `{assignee_id: count}` of the slots a call freed; empty if none.
  fence     `attempt=` of a reporting verb: the attempt that reports. If it is not the job's attempt, or that attempt
            is over, StaleAttemptError is raised and nothing changes. While the job is merely UNKNOWN_RETRY, its last
            attempt may still report. Without `attempt=` any caller may report.
  plural    one transaction, best effort: what is refused changes nothing and is raised after the commit as one
            ReportErrors group whose `freed` tells what the accepted part freed.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

import msgspec

from penstock.errors import InvalidArgumentError, shown
from penstock.job import (
    Job,
    JobState,
    JobStats,
    JobStatus,
    JournalArchive,
    JournalConsumer,
    JournalEntry,
    Key,
    Maintenance,
    Priority,
)
from penstock.overview import Finding, Intake, Overview
from penstock.policy import FailureCategory, duration

__all__ = [
    "CALLBACKS",
    "UNSET",
    "Awaited",
    "Backend",
    "Change",
    "ClaimRequest",
    "Delivery",
    "Failure",
    "JobEnd",
    "Retention",
    "Schedule",
    "UnsetType",
]

#: The consumer of the journal that tells callback urls how jobs ended.
CALLBACKS = "callbacks"

UNSET = msgspec.UNSET
UnsetType = msgspec.UnsetType


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One assignee's wish in `dequeue_jobs_for`; the fields are the arguments of `dequeue_jobs`.

    Attributes:
        assignee_id: who takes the jobs.
        tags: only jobs that have all of these.
        limit: at most so many.
        types: only these types; None is any.
        key: only this key.
        job_ids: only these, held ones included.
        owner: the liveness row that holds them.
    """

    assignee_id: str
    tags: Sequence[str] = ()
    limit: int = 1
    types: Sequence[str] | None = None
    key: Key | str | None = None
    job_ids: Sequence[str] | None = None
    owner: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure with all its facts, for `fail_jobs`.

    Attributes:
        message: what happened.
        category: which kind of failure.
        code: a short machine-readable reason.
        retry_after: how long to wait instead of the policy's delay.
    """

    message: str
    category: FailureCategory = FailureCategory.TEMPORARY
    code: str | None = None
    retry_after: timedelta | float | None = None


class Awaited(NamedTuple):
    """A connection of asyncio's, for `Backend.joined`, and how a thread waits for something of its loop."""

    connection: object
    wait: Callable[[Awaitable[Any]], Any]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended jobs stay, from their end; None is for ever. The journal stays until it is archived.

    Durations are timedelta, or seconds.

    Attributes:
        completed: for COMPLETED jobs; 30 days.
        other: for all others that have ended; 90 days.
    """

    completed: timedelta | None = timedelta(days=30)
    other: timedelta | None = timedelta(days=90)

    def __post_init__(self) -> None:
        for field in ("completed", "other"):
            value = getattr(self, field)
            if value is not None:
                msgspec.structs.force_setattr(self, field, duration(value, f"retention.{field}"))


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job that has a callback url: the journal row, and what the row does not hold.

    Attributes:
        entry: the journal row.
        callback_url: who is to be told.
        correlation_id: as it was submitted.
        created_at: when it was submitted.
        result: None if there is none, or if it is larger than the reader asked for.
        result_size: its bytes; None if there is none.
    """

    entry: JournalEntry
    callback_url: str
    correlation_id: str | None = None
    created_at: datetime
    result: bytes | None = None
    result_size: int | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a callback url has to be told, and how often that was tried.

    Attributes:
        seq: the journal row it tells of.
        event_id: the same at every attempt.
        url: where it goes.
        lane: deliveries of one lane wait for each other, not for those of others.
        body: what is sent.
        due_at: when it is tried next; None once it was given up.
        attempts: how often it was tried.
        error: why the last attempt failed.
    """

    seq: int
    event_id: str
    url: str
    lane: str
    body: bytes
    due_at: datetime | None
    attempts: int = 0
    error: str = ""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic schedule as the store knows it.

    Attributes:
        name: by which the store knows it.
        tick: everything up to this moment has been dealt with.
        updated_at: when that was said.
    """

    name: str
    tick: datetime
    updated_at: datetime


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A committed state change, as told to the listeners of this process (`Backend.listen`).

    Attributes:
        job_id: the job.
        type: its type.
        key: its key, if it has one.
        tags: its tags.
        verb: what was done; "available" if the job can be taken now though its status is the same.
        from_status: the status before; None for a new job.
        status: the status after.
        attempt: the job's attempt.
        assignee_id: who holds it, or held it last.
        at: when.
        available: whether the job can be taken from now on.
    """

    job_id: str
    type: str
    key: Key | None
    tags: tuple[str, ...]
    verb: str
    from_status: JobStatus | None
    status: JobStatus
    attempt: int
    assignee_id: str | None
    at: datetime
    available: bool = False


class Taker(Protocol):
    """Somebody who waits for jobs, and may take them in the very commit that makes them takeable."""

    def wants(self, type: str, tags: Sequence[str]) -> bool:
        """Whether somebody waits for such a job at this moment; a guess, made without waiting."""
        ...

    def wishes(self, changes: Sequence[Change]) -> Sequence[ClaimRequest]:
        """Return what to claim, given what is about to be committed. Must not call the store, nor wait."""
        ...

    def receive(self, jobs: Sequence[list[Job]]) -> None:
        """Take what was claimed, one list a wish, once it is committed; nothing at all if it was not."""
        ...

    def doubt(self) -> None:
        """Learn, instead, that nobody can say whether it was committed."""
        ...


class Backend(ABC):
    """A durable store of jobs and their journal."""

    # -- submission ---------------------------------------------------------------------------------------------

    @abstractmethod
    def enqueue_job(self, job: Job) -> str:
        """Store a job and return its id.

        `created_at` defaults to now; other fields are stored as given. `status` must be INITIAL_PENDING. The stored
        priority is the most urgent of the job's own and its dependencies'. A job whose dependency has already
        failed, died or been cancelled is stored and shares that fate in the same transaction. If the idempotency
        key is taken by a job of the same type, that job's id comes back and nothing is stored.

        Raises:
            InvalidArgumentError: None, an empty id, a wrong status, or any field out of its limits.
            JobExistsError: the id is taken.
            DependencyError: a dependency is unknown, or the limits of depth (`max_depth`) or breadth (1000) are exceeded.
            PayloadTooLargeError: the payload is over the limit.
            QueueBlockedError, QueueFullError: no new jobs are accepted now.
        """

    @abstractmethod
    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        """Store many jobs, all or none, and return their ids in input order.

        Takes any iterable, also an iterator of millions: memory is bounded by chunks and the returned ids.
        Dependencies may refer to jobs later in the batch; jobs are inserted dependencies first. An id that stands
        twice raises JobExistsError, a cycle DependencyError; `failed` on JobExistsError lists every conflict.
        """

    @abstractmethod
    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        """Store those of many jobs that are not stored yet, all or none, and return how many those were.

        For whoever may have to say the same thing twice, such as a pipeline that was restarted. As `enqueue_jobs`, but
        a job whose id is taken is left out; what waits for it waits for the stored one. An id or idempotency key that
        stands twice among `jobs` raises JobExistsError.

        Args:
            jobs: any iterable.
            writer: who publishes, if its batches have numbers that only grow. What a writer has published up to
                `batch` it never publishes again, even if those jobs were deleted since: nothing is stored then.
            batch: the number of this batch, given with `writer`.
        """

    @abstractmethod
    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        """Store jobs on behalf of a RUNNING job, all or none, and return their ids in input order.

        Their `parent_id` is the parent. Whatever waits for the parent (`after`) waits for them too: the jobs that
        wait already and those enqueued later, whether the parent, or a spawned job, has ended by then or not; if a
        spawned job ends badly they share its fate. What a spawned job spawns counts as the parent's as well. The
        spawned do not count against the limit of breadth, and pass while the queue is blocked. Inside a key they
        pass jobs that wait for them. `after_any` of the parent is met by its own end. The parent's end, however it
        ends, does nothing to the spawned.

        A retried parent spawns again; an idempotency key makes that harmless, since the job that has it is waited
        for in place of the duplicate.

        Raises:
            JobNotFoundError: there is no such parent.
            StaleAttemptError: the fence: that attempt is over.
            InvalidTransitionError: the parent is not RUNNING.
            DependencyError: as for `enqueue_jobs`; also if a spawned job is, or waits for, one that waits for the
                parent.
            InvalidArgumentError, JobExistsError, PayloadTooLargeError, QueueFullError: as for `enqueue_jobs`.
        """

    # -- claiming -----------------------------------------------------------------------------------------------

    @abstractmethod
    def dequeue_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        types: Sequence[str] | None = None,
        key: Key | str | None = None,
        job_ids: Sequence[str] | None = None,
        owner: str | None = None,
    ) -> list[Job]:
        """Claim up to `limit` eligible jobs for an assignee and return them RUNNING, in selection order.

        Eligible: INITIAL_PENDING, FAILED_RETRY or UNKNOWN_RETRY, due, dependencies met, and no key or first
        unfinished of its key. Order: priority, then COALESCE(last_retry_at, created_at), then insertion. Claiming
        raises `attempt`, sets the assignee and the times. Nothing eligible is an empty list.

        Args:
            assignee_id: who takes the jobs.
            tags: only jobs that have all of these.
            limit: at most so many, at least 1.
            types: only these types; None is any, an empty sequence is none.
            key: only this key.
            job_ids: only these, held ones included.
            owner: the liveness row (`open_owner`) that holds the jobs. Without one, a job with a visibility timeout
                is held until that has passed since the claim or the last `heartbeat`; without either, for ever.
        """

    @abstractmethod
    def dequeue_jobs_for(self, requests: Sequence[ClaimRequest]) -> list[list[Job]]:
        """Serve several claims in one transaction, in order; one list of jobs per request."""

    @abstractmethod
    def restart_job(self, job_id: str, assignee_id: str, *, owner: str | None = None) -> Job:
        """Run a STOPPED, held job again: RUNNING, attempt + 1, progress 0, `finalized_at` cleared.

        Args:
            owner: as for `dequeue_jobs`.

        Raises:
            InvalidTransitionError: the job is not STOPPED, not held, or another job of its key is in flight.
        """

    # -- reports ------------------------------------------------------------------------------------------------

    @abstractmethod
    def complete_job(
        self, job_id: str, result: bytes | None = None, *, attempt: int | None = None
    ) -> dict[str, int]:
        """RUNNING, CANCELLING, UNKNOWN_RETRY or UNKNOWN_STOPPED → COMPLETED, with its result. Returns freed.

        Sets `finalized_at` to now. Jobs that wait for this one may proceed.
        """

    @abstractmethod
    def complete_jobs(
        self, results: Mapping[str, bytes | None], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `complete_job`."""

    @abstractmethod
    def fail_job(
        self,
        job_id: str,
        error_message: str,
        *,
        attempt: int | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: timedelta | float | None = None,
    ) -> dict[str, int]:
        """RUNNING or UNKNOWN_RETRY → FAILED_RETRY, or to its end. Returns freed.

        `retry_count` + 1, `last_retry_at` = now. PERMANENT ends in FAILED, CANCELLED in STOPPED. Without a policy
        everything else is eligible again at once. With one, the failure counts: while the policy allows another
        attempt the job is FAILED_RETRY, due after the backoff (or `retry_after`, uncapped); else DEAD_LETTER.
        An attempt that was already counted as lost is not counted twice.
        """

    @abstractmethod
    def fail_jobs(
        self,
        failures: Mapping[str, str | Failure],
        *,
        attempts: Mapping[str, int] | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: timedelta | float | None = None,
    ) -> dict[str, int]:
        """Plural of `fail_job`; a value is a message, to which the keyword arguments apply, or a `Failure`."""

    @abstractmethod
    def stop_job(self, job_id: str, error_message: str = "", *, attempt: int | None = None) -> dict[str, int]:
        """RUNNING, CANCELLING or UNKNOWN_RETRY → STOPPED. Returns freed."""

    @abstractmethod
    def stop_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `stop_job`."""

    @abstractmethod
    def stop_job_with_retry(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        """CANCELLING → STOPPED, with `retry_count` + 1 and `last_retry_at` = now. Returns freed."""

    @abstractmethod
    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `stop_job_with_retry`."""

    @abstractmethod
    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        """CANCELLING, UNKNOWN_RETRY or RUNNING → UNKNOWN_STOPPED. Returns freed."""

    @abstractmethod
    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Plural of `mark_job_unknown_stopped`."""

    @abstractmethod
    def update_job_status(
        self,
        job_id: str,
        status: JobStatus,
        result: bytes | None = None,
        error_message: str = "",
        *,
        attempt: int | None = None,
    ) -> dict[str, int]:
        """Move a job along any legal edge (`penstock.lifecycle`), for cases no other verb covers. Returns freed.

        `result` replaces if not None, `error_message` if not empty; counters stay. The same status again is an
        error for finals and nothing otherwise. Never leads to RUNNING, FAILED or DEAD_LETTER. The freed map is
        empty unless the job goes from RUNNING or CANCELLING to COMPLETED, STOPPED or UNKNOWN_STOPPED.
        """

    @abstractmethod
    def release_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Hand jobs back uncounted: RUNNING → FAILED_RETRY, due at once; CANCELLING → STOPPED. Plural.

        `retry_count` + 1 and `last_retry_at` = now, but the policy does not count the attempt.
        """

    # -- cancellation -------------------------------------------------------------------------------------------

    @abstractmethod
    def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, waiting_only: bool = False
    ) -> tuple[list[str], list[str]]:
        """Cancel the jobs that have all `tags`, and those listed. Returns (cancelled, unknown).

        INITIAL_PENDING → UNSCHEDULED, RUNNING → CANCELLING, FAILED_RETRY and UNKNOWN_RETRY → STOPPED; CANCELLING
        stays and is reported cancelled. Unknown are ids that do not exist and jobs that are final. At least one of
        the two lists must not be empty; an empty list selects nothing. Dependents (`after`) are cancelled too. With
        `waiting_only` RUNNING and CANCELLING jobs are left alone, and are unknown too.
        """

    @abstractmethod
    def acknowledge_cancellation(
        self, job_id: str, was_executing: bool, *, attempt: int | None = None
    ) -> None:
        """CANCELLING → STOPPED if it was executing (category CANCELLED, its slot is freed), else UNKNOWN_STOPPED."""

    @abstractmethod
    def acknowledge_cancellations(
        self, executing: Mapping[str, bool], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        """Plural of `acknowledge_cancellation`."""

    # -- holders ------------------------------------------------------------------------------------------------

    @abstractmethod
    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """Take all jobs from an assignee: RUNNING → UNKNOWN_RETRY, CANCELLING → UNKNOWN_STOPPED.

        The lost attempt counts for jobs with a policy; if it was the last allowed one: DEAD_LETTER.
        """

    @abstractmethod
    def reset_running_jobs(self) -> None:
        """Do to every holder what `mark_worker_unresponsive` does to one."""

    @abstractmethod
    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        """Renew the leases of an assignee's jobs in flight and return how many it holds.

        Args:
            jobs: `{id: attempt}`: only those, and only where the attempt still holds the job.
        """

    @abstractmethod
    def open_owner(self) -> str:
        """Write this process's liveness row (host, pid, start time) and return its id, for `owner=`."""

    @abstractmethod
    def beat_owner(self, owner: str, *, intakes: Sequence[Intake] | None = None) -> bool:
        """Say that the owner lives. False if its row is gone: its jobs were given to others.

        Args:
            intakes: what its streams take from now on, for whoever reads `overview`; None leaves what was said before.
        """

    @abstractmethod
    def has_owner(self, owner: str) -> bool:
        """Whether a liveness row is there: a look from anywhere, which writes nothing."""

    @abstractmethod
    def close_owner(self, owner: str) -> None:
        """Remove a liveness row. Jobs it still holds are lost at the next `maintain`."""

    # -- while running ------------------------------------------------------------------------------------------

    @abstractmethod
    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        """Store progress (0 to 100) of a RUNNING or CANCELLING job. Writes no journal row."""

    @abstractmethod
    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        """Store a checkpoint of a RUNNING or CANCELLING job, for its next attempt. Writes no journal row."""

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:  # noqa: B027
        """Store what a RUNNING or CANCELLING job has printed, in place of what was stored before. No journal row.

        Up to `max_payload` bytes; of more, the end is kept. A store may ignore it.
        """

    def get_output(self, job_id: str) -> str:  # noqa: ARG002  # of a store that keeps none
        """Return what the latest attempt that printed something has printed; "" if none did. Raises JobNotFoundError."""
        return ""

    # -- changing and repeating ---------------------------------------------------------------------------------

    @abstractmethod
    def update_job(
        self,
        job_id: str,
        *,
        priority: Priority | int | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
    ) -> None:
        """Change what may change while a job is not final. A priority also raises the jobs waiting for it.

        Raises:
            InvalidTransitionError: the job is final.
        """

    @abstractmethod
    def redrive_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> list[str]:
        """Submit FAILED and DEAD_LETTER jobs again as copies and return the new ids.

        A copy has a new id, `redrive_of`, no idempotency key, no dependencies, and stands at the tail of its key. By
        `tags`, the dead jobs that have all of them, but for those that died only because what they waited for did;
        by `job_ids`, exactly those.

        Raises:
            JobNotFoundError: a listed id does not exist.
            InvalidTransitionError: a listed job is neither FAILED nor DEAD_LETTER; nothing is done.
            QueueBlockedError: the queue is blocked.
        """

    # -- reading ------------------------------------------------------------------------------------------------

    @abstractmethod
    def get_job(self, job_id: str) -> Job:
        """Return a job as committed, whole. Raises JobNotFoundError."""

    @abstractmethod
    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Return those of the jobs that exist."""

    @abstractmethod
    def get_job_stats(self, tags: Sequence[str] = ()) -> JobStats:
        """Count the jobs that have all `tags`; all jobs if there are none."""

    @abstractmethod
    def overview(self) -> Overview:
        """Return how many jobs there are, what waits and who works, all of one moment.

        This is what people and their tools look at. Its cost does not grow with the jobs stored: counts by type and
        status are kept, and what is not kept is counted up to `Overview.most_counted`.
        """

    @abstractmethod
    def list_jobs(
        self,
        *,
        status: JobStatus | None = None,
        type: str | None = None,
        tags: Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[Job]:
        """Return a page of jobs in insertion order, or the newest first.

        Args:
            status: only this status.
            type: only this type.
            tags: only jobs that have all of these.
            after: the last id of the page before.
            limit: 1 to 1000.
            newest: the other way round: those that were enqueued last come first.
        """

    @abstractmethod
    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """Return up to `limit` rows with `seq` above `after`, in order.

        `seq` is dense from 1, but for the numbers of rows that were archived. Whoever has seen `seq` n never later
        finds a new row at or below n. What was committed before the call is there.
        """

    @abstractmethod
    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        """Return the journal rows of a stored job, in order: the latest `limit` of them.

        What was archived is missing. Rows of an earlier job that had the same id are not its.

        Raises:
            JobNotFoundError: no job has this id, or not any more.
        """

    @abstractmethod
    def store_id(self) -> str:
        """Return what tells this store from every other one: random, made with the store, and of no secret."""

    @abstractmethod
    def journal_span(self) -> tuple[int, int]:
        """Return the first and the last `seq` of the journal, (1, 0) if it is empty.

        What was committed before the call lies at or below the last one.
        """

    @abstractmethod
    def jobs_span(self) -> tuple[int, int]:
        """Return the first and the last insertion number of the jobs stored, (1, 0) if there are none."""

    # -- who reads the journal, and what may leave it -------------------------------------------------------------

    @abstractmethod
    def register_consumer(self, name: str, *, seq: int = 0) -> JournalConsumer:
        """Have the journal keep what this consumer has not read: the rows above `seq`.

        If it is registered already, nothing changes and it comes back as it is.

        Raises:
            InvalidArgumentError: the journal has no such `seq` yet.
        """

    @abstractmethod
    def hold_consumer(self, name: str, holder: str, lease: timedelta | float) -> JournalConsumer | None:
        """Take a consumer for `lease` from now on, or keep it for as long again; None if another one holds it.

        A consumer is held by one holder at a time. Who dies loses it when its lease is over. A lease of 0 gives it
        back.

        Raises:
            InvalidArgumentError: no consumer has this name.
        """

    @abstractmethod
    def advance_consumer(self, name: str, seq: int, *, holder: str | None = None) -> bool:
        """Say that everything up to `seq` is consumed; never goes back: a lower `seq` changes nothing.

        False, and nothing is changed, if somebody other than `holder` holds the consumer, or it was given one that
        does not hold it any more. A holder whose lease is over holds it until another one takes it.

        Raises:
            InvalidArgumentError: no consumer has this name, or the journal has no such `seq` yet.
        """

    @abstractmethod
    def list_consumers(self) -> list[JournalConsumer]:
        """Return all consumers, by name."""

    @abstractmethod
    def forget_consumer(self, name: str) -> bool:
        """Keep nothing more for this consumer, whoever holds it. False if there is none of this name."""

    @abstractmethod
    def archive_journal(self, older_than: timedelta | float) -> JournalArchive:
        """Remove whole histories from the journal, and return what was removed.

        A history goes if its job is final or deleted, its last row is at least `older_than` old and at or below the
        `seq` of every consumer, and the newest row of the journal is not in it. Jobs stay as they are. If such a job
        is deleted, corrected or restarted later, that row begins with its own `n`. Goes in portions, each a
        transaction of its own, so that others are not held up.
        """

    @abstractmethod
    def get_archive(self) -> JournalArchive:
        """Return what was ever removed from the journal."""

    # -- callbacks ----------------------------------------------------------------------------------------------

    def read_ends(
        self, after: int, limit: int = 100, *, max_result: int = 65_536
    ) -> tuple[list[JobEnd], int]:
        """Return ends of jobs that have a callback url, from the journal rows above `after`, and how far it looked.

        An end is a row whose status is final and was not before, or was another. A job that was deleted meanwhile
        has nobody to be told. Call again from where it looked to, until that stays the same.

        Args:
            after: the last row that was looked at before.
            limit: at most so many ends.
            max_result: larger results are left out.
        """
        for field, value in (("limit", limit), ("max_result", max_result)):
            if type(value) is not int or value < 1:
                raise InvalidArgumentError(
                    f"{field} must be a whole number of at least 1, got {shown(value)}",
                    field=field,
                    value=value,
                )
        rows = self.read_journal(after, 1000)
        ended = [row for row in rows if row.status.is_final and row.from_status is not row.status]
        jobs = self.get_jobs({row.job_id for row in ended})
        ends = [
            _end_of(row, jobs[row.job_id], max_result)
            for row in ended
            if row.job_id in jobs and jobs[row.job_id].callback_url is not None
        ]
        if len(ends) > limit:
            return ends[:limit], ends[limit - 1].entry.seq
        return ends, rows[-1].seq if rows else after

    @abstractmethod
    def save_deliveries(
        self,
        holder: str,
        deliveries: Sequence[Delivery] = (),
        *,
        done: Sequence[int] = (),
        seq: int | None = None,
    ) -> bool:
        """Write deliveries, remove those that are `done` (by their `seq`), and advance the consumer CALLBACKS to `seq`.

        False, and nothing is changed, unless `holder` holds that consumer.

        Raises:
            InvalidArgumentError: the consumer is not registered, or the journal has no such `seq` yet.
        """

    @abstractmethod
    def due_deliveries(self, limit: int = 100, *, per_lane: int = 1) -> list[Delivery]:
        """Return deliveries that are due now, longest due first, of each lane at most `per_lane`."""

    @abstractmethod
    def list_deliveries(self, after: int = 0, limit: int = 100) -> list[Delivery]:
        """Return a page of what is not delivered, given up or not, by `seq`, from above `after`; limit 1 to 1000."""

    @abstractmethod
    def count_deliveries(self) -> tuple[int, int]:
        """Return how many deliveries wait, and how many were given up."""

    @abstractmethod
    def retry_deliveries(self) -> int:
        """Make due again what was given up, as if it had never been tried. Returns how many.

        `maintain` forgets what was given up 30 days ago.
        """

    # -- schedules ----------------------------------------------------------------------------------------------

    @abstractmethod
    def tick_schedule(
        self, name: str, tick: datetime, jobs: Sequence[Job] = (), *, after: datetime | None
    ) -> bool:
        """Store the jobs of a schedule's ticks up to `tick`, if it stands at `after` (None: it is not known yet).

        False, and nothing is stored, if it stands elsewhere: another process was first. So each tick is dealt with
        once over all processes.

        Raises:
            PenstockError: those of `enqueue_jobs`; the schedule stays where it is.
        """

    @abstractmethod
    def list_schedules(self) -> list[Schedule]:
        """Return all schedules that ever ticked, by name."""

    @abstractmethod
    def forget_schedule(self, name: str) -> bool:
        """Forget where a schedule stands; if it ticks again, it begins anew. False if there is none of this name."""

    # -- upkeep -------------------------------------------------------------------------------------------------

    @abstractmethod
    def maintain(self) -> Maintenance:
        """Do one pass of all upkeep, at the clock's now, in this order.

        1. Unfinished jobs past their lifetime → DEAD_LETTER.
        2. Jobs whose owner or lease is gone → UNKNOWN_RETRY (DEAD_LETTER after the last allowed attempt;
           CANCELLING → UNKNOWN_STOPPED).
        3. RUNNING past the execution time + 10 s → failed, category TIMEOUT.
        4. Delayed jobs that are due become takeable and are announced.
        5. Finals past their retention are removed; counters are folded.
        """

    @abstractmethod
    def cleanup_expired_jobs(self, ttl: timedelta) -> int:
        """Remove COMPLETED jobs that ended at least `ttl` ago and return how many."""

    @abstractmethod
    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        """Remove the jobs that have all `tags`, and those listed, if all are final. Returns how many.

        Ids that do not exist are skipped. Deleting frees the idempotency key and, for ids given by callers, the id:
        a new history begins then, and fences do not reach across.

        Raises:
            InvalidTransitionError: one of them is not final; nothing is deleted.
        """

    @abstractmethod
    def set_blocked(self, blocked: bool) -> None:
        """Refuse (or accept again) new jobs, for every process. Retries and spawned jobs pass.

        When it has returned, no job that was accepted before is still on its way: whatever is not stored by then was
        refused. On PostgreSQL it therefore waits, up to the option `timeout` or the end of the ambient scope, for
        transactions that are adding jobs, those that `joined` takes part in included. The flag is set meanwhile, and
        nobody else waits.
        """

    @abstractmethod
    def is_blocked(self) -> bool:
        """Whether new jobs are refused."""

    @abstractmethod
    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        """Have `listener` called with the changes of each commit made through this object, in commit order.

        It is called after the commit and before the verb returns, must be quick and must not raise. Returns a
        function that ends it.
        """

    def joined(self, connection: object) -> Backend:  # noqa: ARG002  # a store's
        """Return a backend whose submissions are part of the transaction open on the caller's own connection.

        The jobs are there if, and only if, that transaction is committed. Only `enqueue_job`, `enqueue_jobs`,
        `get_job`, `get_jobs` and `close` are possible; `close` leaves the connection alone.

        Args:
            connection: a connection or session that the store knows; one of asyncio's is wrapped in `Awaited`.

        Raises:
            InvalidArgumentError: the store has no such transactions, or the connection is not one of its database.
        """
        raise InvalidArgumentError(
            f"{self!r} cannot join a transaction: only PostgreSQL stores can", field="connection"
        )

    # -- for queues that hold jobs -------------------------------------------------------------------------------
    # What follows has a plain answer here, so that a backend is complete without it, and a quick one in our stores.

    def now(self) -> datetime:
        """Return the store's time, by which everything is due."""
        return datetime.now(UTC)

    #: How long a process may be silent before its jobs are taken from it.
    liveness: timedelta = timedelta(seconds=15)

    #: How many unfinished jobs may wait for each other in a row.
    max_depth: int = 100

    #: Bytes that a payload, result or checkpoint may have.
    max_payload: int = 1_048_576

    #: Seconds between two looks for what other processes did.
    poll_seconds: float = 0.05

    def serve(self, taker: Taker) -> Callable[[], None]:  # noqa: ARG002  # a store with one writer at a time can
        """Let a taker have jobs in the commits of this process that make them takeable: one commit instead of two.

        A store may ignore this; whoever is served this way looks for jobs in other ways too. Returns a function that
        ends it.
        """
        return lambda: None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002  # polling is enough
        """Have `callback` called soon after another process has changed the store, as far as the store can tell.

        Returns a function that ends it. Whoever waits still looks by itself every `poll_seconds`.
        """
        return lambda: None

    def has_foreign_changes(self) -> bool:
        """Whether others may have changed the store since the last call; a hint that may be wrong to be true."""
        return True

    def released(self, jobs: Mapping[str, int]) -> dict[str, str]:
        """Return those of `{id: attempt}` that are in flight no more at that attempt, with the last verb's name."""
        found = self.get_jobs(jobs)
        return {
            job_id: ""
            for job_id, attempt in jobs.items()
            if job_id not in found or found[job_id].attempt != attempt or not found[job_id].status.holds_slot
        }

    def statuses(self, job_ids: Sequence[str]) -> dict[str, tuple[JobStatus, int]]:
        """Return status and attempt of those of the jobs that exist; cheaper than the jobs themselves."""
        return {job_id: (job.status, job.attempt) for job_id, job in self.get_jobs(job_ids).items()}

    def count_keyed(self, key: Key | str | None = None, *, type: str | None = None) -> int:
        """Count the jobs of a key, or of all keys, that wait: for their turn, time or dependencies, or to be taken.

        Ours look at the waiting jobs of that key alone; for all keys, at those that have one.
        """
        return sum(1 for _ in self._waiting_keyed(key, type))

    def list_keyed(
        self, key: Key | str | None = None, *, type: str | None = None, upto: int, limit: int = 1000
    ) -> list[str]:
        """Return the ids of up to `limit` of the jobs that `count_keyed` counts, in no order.

        Args:
            key: only this key.
            type: only this type.
            upto: only those whose insertion number (`jobs_span`) is not above this.
            limit: at most so many.
        """
        del upto  # jobs do not tell their numbers: whoever asks here may get later ones
        return [job.id for job in itertools.islice(self._waiting_keyed(key, type), limit)]

    def _waiting_keyed(self, key: Key | str | None, type: str | None) -> Iterator[Job]:
        wanted, page = Key.of(key), self.list_jobs(type=type, limit=_PAGE)
        while page:
            for job in page:
                if job.key is not None and wanted in (None, job.key) and job.status.is_eligible:
                    yield job
            page = self.list_jobs(type=type, after=page[-1].id, limit=_PAGE)

    def next_due(self) -> float | None:
        """Return in how many seconds the next delayed job is due (0 if one is); None if there is none or it is unknown."""
        return None

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        """Return all types and all tags that ready jobs have; None if that is unknown, or there are very many.

        Whoever serves many consumers learns from it which of them may find something.
        """
        return None

    def has_work(self, types: Sequence[str], tags: Sequence[str] = ()) -> bool:
        """Whether a job of these types that has all `tags` is ready, running or waiting for a retry.

        This takes several looks at a store that cannot answer at once: a caller who takes and reports jobs meanwhile
        has to ask again. Held jobs, which nobody takes unasked, are work only while they run.
        """
        return any(_has_work(self, each, tags) for each in types)

    def take_upkeep(self, interval: timedelta) -> bool:  # noqa: ARG002  # ours share the work by a row in the store
        """Whether it falls to the caller to `maintain` now; true for one caller of the store per interval."""
        return True

    def examine(self) -> list[Finding]:
        """Return what the store has to say about its own health and settings, for `penstock doctor`."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent; other calls raise QueueClosedError from then on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end_of(row: JournalEntry, job: Job, max_result: int) -> JobEnd:
    result = job.result if row.status is JobStatus.COMPLETED else None
    size = None if result is None else len(result)
    return JobEnd(
        entry=row,
        callback_url=job.callback_url or "",
        correlation_id=job.correlation_id,
        created_at=job.created_at or row.recorded_at,
        result=None if size is not None and size > max_result else result,
        result_size=size,
    )


# From where jobs wait to where they run: one that goes on between two looks is seen in one of the two.
_UNSETTLED: Final = (
    JobStatus.FAILED_RETRY,
    JobStatus.UNKNOWN_RETRY,
    JobStatus.RUNNING,
    JobStatus.CANCELLING,
)
_PAGE: Final = 1000


def _has_work(backend: Backend, type: str, tags: Sequence[str]) -> bool:
    return (
        _has_ready(backend, type, tags)
        or any(_has_unsettled(backend, status, type, tags) for status in _UNSETTLED)
        or _has_ready(backend, type, tags)  # what ended meanwhile may have made another ready
    )


def _has_ready(backend: Backend, type: str, tags: Sequence[str]) -> bool:
    pages = _pages(backend, JobStatus.INITIAL_PENDING, type, tags)
    return any(job.state is JobState.SCHEDULED and not job.held for job in pages)


def _has_unsettled(backend: Backend, status: JobStatus, type: str, tags: Sequence[str]) -> bool:
    return any(status.holds_slot or not job.held for job in _pages(backend, status, type, tags))


def _pages(backend: Backend, status: JobStatus, type: str, tags: Sequence[str]) -> Iterator[Job]:
    after: str | None = None
    while True:
        page = backend.list_jobs(status=status, type=type, tags=tags, after=after, limit=_PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].id
