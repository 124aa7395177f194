from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.backends.contract.values import UNSET, UnsetType
from penstock.job import Priority

__all__ = ["Changing"]


class Changing(ABC):
    """Jobs are changed from outside, whoever holds them."""

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
