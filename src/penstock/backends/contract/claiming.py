from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from penstock.backends.contract.values import ClaimRequest
from penstock.job import Job, Key
from penstock.overview import Intake

__all__ = ["Claiming"]


class Claiming(ABC):
    """Jobs are taken, and held while their holder lives."""

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

    @abstractmethod
    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """Take all jobs from an assignee: RUNNING → UNKNOWN_RETRY, CANCELLING → UNKNOWN_STOPPED.

        The lost attempt counts for jobs with a policy; if it was the last allowed one: DEAD_LETTER.
        """

    @abstractmethod
    def reset_running_jobs(self) -> None:
        """Do to every holder what `mark_worker_unresponsive` does to one."""
