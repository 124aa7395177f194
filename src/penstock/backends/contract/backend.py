"""The store contract: one atomic verb per method, and one small class per role of what Penstock's own parts need.

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
            ReportErrors group whose `freed` holds what the accepted part freed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import msgspec

from penstock.backends.contract.joined import JoinedBackend
from penstock.backends.contract.journal import Journal
from penstock.backends.contract.outbox import Outbox
from penstock.backends.contract.owners import Owners
from penstock.backends.contract.reading import Reading
from penstock.backends.contract.runtime import Runtime
from penstock.backends.contract.values import UNSET, ClaimRequest, Failure, UnsetType
from penstock.backends.options import StoreOptions
from penstock.durations import Duration
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.job import Job, JobStats, JobStatus, JournalEntry, Key, Maintenance, Priority
from penstock.policy import FailureCategory
from penstock.scope import shielded

__all__ = ["ROLES", "Backend", "read_stored"]

logger = logging.getLogger("penstock")

#: The classes of a backend's roles, by attribute.
ROLES: Final = {
    "journal": Journal,
    "owners": Owners,
    "outbox": Outbox,
    "runtime": Runtime,
    "reading": Reading,
}


class Backend(ABC):
    """A durable store of jobs and their journal.

    Attributes:
        options: the options in force.
        journal: the journal's consumers, its archive, and the history of a job.
        owners: the liveness rows of processes that hold jobs.
        outbox: callbacks to deliver, and where periodic schedules stand.
        runtime: what queues and workers need while they run.
        reading: what people and their tools look at.
    """

    options: StoreOptions
    journal: Journal
    owners: Owners
    outbox: Outbox
    runtime: Runtime
    reading: Reading

    # -- submission -----------------------------------------------------------------------------------------

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

    def submit_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        """Store jobs as `enqueue_job` and `enqueue_jobs` do, and return them as stored; a duplicate's place has the first job.

        A store that knows what it has written overrides this, and reads back only what it cannot know.
        """
        ids = [self.enqueue_job(jobs[0])] if len(jobs) == 1 else self.enqueue_jobs(jobs)
        return read_stored(self, jobs, ids)

    @abstractmethod
    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        """Store those of many jobs that are not stored yet, all or none, and return how many those were.

        For a caller that may repeat itself, such as a restarted pipeline. As `enqueue_jobs`, but
        a job whose id is taken is left out; what waits for it waits for the stored one. An id or idempotency key that
        stands twice among `jobs` raises JobExistsError.

        Args:
            jobs: any iterable.
            writer: the name of a publisher whose batches have numbers that only grow. What it has published up to
                `batch` is never stored again, even if those jobs were deleted since: nothing is stored then.
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

    @abstractmethod
    def set_blocked(self, blocked: bool) -> None:
        """Refuse (or accept again) new jobs, for every process. Retries and spawned jobs pass.

        When it has returned, no job that was accepted before is still on its way: whatever is not stored by then was
        refused. On PostgreSQL it therefore waits, up to the option `timeout` or the end of the ambient scope, for
        transactions that are adding jobs, those that `joined` takes part in included. The flag is set meanwhile, and
        no other call waits.
        """

    @abstractmethod
    def is_blocked(self) -> bool:
        """Whether new jobs are refused."""

    def joined(self, connection: object) -> JoinedBackend:  # noqa: ARG002  # a store's
        """Return the submitting verbs as part of the transaction that is open on the caller's own connection.

        The jobs are there if, and only if, that transaction is committed.

        Args:
            connection: a connection or session that the store knows; an asyncio one is wrapped in `Awaited`.

        Raises:
            InvalidArgumentError: the store has no such transactions, or the connection is not one of its database.
        """
        raise InvalidArgumentError(
            f"{self!r} cannot join a transaction: only PostgreSQL stores can", field="connection"
        )

    # -- claims and leases ----------------------------------------------------------------------------------

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
            assignee_id: for whom the jobs are claimed.
            tags: only jobs that have all of these.
            limit: at most so many, at least 1.
            types: only these types; None is any, an empty sequence is none.
            key: only this key.
            job_ids: only these, held ones included.
            owner: the liveness row (`owners.open`) that holds the jobs. Without one, a job with a visibility timeout
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

    @abstractmethod
    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        """Renew the leases of an assignee's jobs in flight and return how many it holds.

        A sign of life: an assignee that was declared unresponsive is served by streams again.

        Args:
            jobs: `{id: attempt}`: only those, and only where the attempt still holds the job.
        """

    @abstractmethod
    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """Reclaim all jobs of an assignee: RUNNING → UNKNOWN_RETRY, CANCELLING → UNKNOWN_STOPPED.

        The lost attempt counts for jobs with a policy; if it was the last allowed one: DEAD_LETTER. From now on pushed
        claims (`ClaimRequest.pushed`, those of streams) for this assignee get nothing, until a sign of life: an accepted
        report on a reclaimed job, a `heartbeat`, or a claim that `revives` it (that of a new stream).
        """

    @abstractmethod
    def reset_running_jobs(self) -> None:
        """Reclaim the jobs of every assignee, as `mark_worker_unresponsive` does for one."""

    # -- reports --------------------------------------------------------------------------------------------

    @abstractmethod
    def complete_job(
        self, job_id: str, result: bytes | None = None, *, attempt: int | None = None
    ) -> dict[str, int]:
        """RUNNING, CANCELLING, UNKNOWN_RETRY or UNKNOWN_STOPPED → COMPLETED, with its result. Returns freed.

        Sets `finalized_at` to now. Jobs that wait for this one may proceed. With `attempt`, also from the DEAD_LETTER that
        the loss of the last allowed attempt led to; dependents that shared this fate stay.
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
        retry_after: Duration | None = None,
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
        retry_after: Duration | None = None,
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
        """Release jobs uncounted: RUNNING → FAILED_RETRY, due at once; CANCELLING → STOPPED. Plural.

        `retry_count` + 1 and `last_retry_at` = now, but the policy does not count the attempt.
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

    @abstractmethod
    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        """Store progress (0 to 100) of a RUNNING or CANCELLING job. Writes no journal row."""

    @abstractmethod
    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        """Store a checkpoint of a RUNNING or CANCELLING job, for its next attempt. Writes no journal row."""

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:  # noqa: B027
        """Replace the output of a RUNNING or CANCELLING job. Writes no journal row.

        Up to `max_payload` bytes; of more, the end is kept. A store may ignore it.
        """

    # -- changes from outside -------------------------------------------------------------------------------

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

    @abstractmethod
    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        """Remove the jobs that have all `tags`, and those listed, if all are final. Returns how many.

        Ids that do not exist are skipped. Deleting frees the idempotency key and, for ids given by callers, the id:
        a new history begins then, and fences do not reach across.

        Raises:
            InvalidTransitionError: one of them is not final; nothing is deleted.
        """

    # -- reading --------------------------------------------------------------------------------------------

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

        `seq` is dense from 1, but for the numbers of rows that were archived. A reader that has seen `seq` n never later
        finds a new row at or below n. What was committed before the call is included.
        """

    def now(self) -> datetime:
        """Return the store's time, by which everything is due."""
        return datetime.now(UTC)

    # -- upkeep ---------------------------------------------------------------------------------------------

    @abstractmethod
    def maintain(self) -> Maintenance:
        """Do one pass of all upkeep, at the clock's now, in this order.

        1. Unfinished jobs past their lifetime → DEAD_LETTER.
        2. Jobs whose owner or lease is gone → UNKNOWN_RETRY (DEAD_LETTER after the last allowed attempt;
           CANCELLING → UNKNOWN_STOPPED). The silence of an owner counts only while the store could be written: after a
           gap between two passes that is longer than half the liveness (unless such gaps are usual), owners
           have one liveness period to beat. An owner that was closed, and one whose process ended on this host, is
           gone at once; a lease by hand ends when it ends.
        3. RUNNING past the execution time + 10 s → failed, category TIMEOUT; only without an owner. An owner bounds its jobs by its own monotonic clock: no jump of the wall clock ends them.
        4. Delayed jobs that are due are promoted and announced.
        5. Finals past their retention are removed; counters are folded.
        """

    @abstractmethod
    def cleanup_expired_jobs(self, ttl: Duration) -> int:
        """Remove COMPLETED jobs that ended at least `ttl` ago and return how many."""

    # -- the object itself --------------------------------------------------------------------------------------

    @property
    def location(self) -> str:
        """Where the store is, for people: a url without its password, or an absolute path."""
        return repr(self).strip("<>")

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent; other calls raise QueueClosedError from then on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_stored(backend: JoinedBackend, jobs: Sequence[Job], ids: Sequence[str]) -> list[Job]:
    """Return jobs that were just stored under these ids, as they are now.

    They are stored, so a caller that got an error would submit them again: no scope ends this, and if the store does not
    answer, or a job was deleted since, the request itself is returned.
    """
    found: dict[str, Job] = {}
    try:
        with shielded():
            found = backend.get_jobs(ids)
    except PenstockError as error:
        logger.warning("jobs were stored, but could not be read: %s", error)
    return [
        found.get(job_id) or msgspec.structs.replace(job, id=job_id)
        for job, job_id in zip(jobs, ids, strict=True)
    ]
