from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from penstock.job import Job

__all__ = ["Submission"]


class Submission(ABC):
    """Jobs come in."""

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
