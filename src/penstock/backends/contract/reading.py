from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.backends.contract.overview import Finding, JobCounts, Overview
from penstock.backends.contract.selection import JobPage, JobSelection
from penstock.job import Job, Key

if TYPE_CHECKING:
    from penstock.backends.contract.backend import Backend

__all__ = ["Reading"]

_PAGE: Final = 1000


class Reading(ABC):
    """What people and their tools look at; no verb here changes anything."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @abstractmethod
    def overview(self) -> Overview:
        """Return how many jobs there are, what waits and which processes work, all of one moment.

        This is what people and their tools look at. Its cost does not grow with the jobs stored: counts by type and
        status are kept, and what is not kept is counted up to `Overview.most_counted`.
        """

    @abstractmethod
    def count_jobs(self, tags: Sequence[str] = ()) -> JobCounts:
        """Count the jobs that have all `tags`, by the groups that people distinguish; all jobs if there are none.

        The cost does not grow with the jobs stored, for no tag or one.
        """

    @abstractmethod
    def select_jobs(
        self,
        selection: JobSelection,
        *,
        after: int | None = None,
        upto: int | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> JobPage:
        """Return a page of the jobs that a selection selects, in insertion order or the newest first.

        One page costs a bounded look at the store, so it may hold few jobs, or none, although others follow:
        `JobPage.next` says where to go on, and None that this was the last page.

        Args:
            selection: which jobs.
            after: `next` of the page before.
            upto: only jobs whose insertion number is not above this (`jobs_span`), so that jobs submitted meanwhile are
                left out.
            limit: 1 to 100,000.
            newest: the other way round.
        """

    @abstractmethod
    def find_ids(self, prefix: str, limit: int = 10) -> list[str]:
        """Return up to `limit` ids that begin with a text, in their own order; the id itself, if there is one, first."""

    def get_output(self, job_id: str) -> str:  # noqa: ARG002  # of a store that keeps none
        """Return the output of the latest attempt that printed something; "" if none did. Raises JobNotFoundError."""
        return ""

    @abstractmethod
    def jobs_span(self) -> tuple[int, int]:
        """Return the first and the last insertion number of the jobs stored, (1, 0) if there are none."""

    def count_keyed(self, key: Key | str | None = None, *, type: str | None = None) -> int:
        """Count the jobs of a key, or of all keys, that wait: for their turn, time or dependencies, or for a claim.

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
        del upto  # jobs do not hold their numbers: later ones may be among them
        return [job.id for job in itertools.islice(self._waiting_keyed(key, type), limit)]

    def _waiting_keyed(self, key: Key | str | None, type: str | None) -> Iterator[Job]:
        wanted, page = Key.of(key), self._backend.list_jobs(type=type, limit=_PAGE)
        while page:
            for job in page:
                if job.key is not None and wanted in (None, job.key) and job.status.is_eligible:
                    yield job
            page = self._backend.list_jobs(type=type, after=page[-1].id, limit=_PAGE)

    def examine(self) -> list[Finding]:
        """Return findings about the store's health and settings, for `penstock doctor`."""
        return []
