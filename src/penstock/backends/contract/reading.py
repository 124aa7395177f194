from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.job import Job, JobState, JobStats, JobStatus, Key
from penstock.overview import Overview

__all__ = ["Reading"]


class Reading(ABC):
    """Jobs as they are."""

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

    def get_output(self, job_id: str) -> str:  # noqa: ARG002  # of a store that keeps none
        """Return what the latest attempt that printed something has printed; "" if none did. Raises JobNotFoundError."""
        return ""

    @abstractmethod
    def jobs_span(self) -> tuple[int, int]:
        """Return the first and the last insertion number of the jobs stored, (1, 0) if there are none."""

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

    def has_work(self, types: Sequence[str], tags: Sequence[str] = ()) -> bool:
        """Whether a job of these types that has all `tags` is ready, running or waiting for a retry.

        This takes several looks at a store that cannot answer at once: a caller who takes and reports jobs meanwhile
        has to ask again. Held jobs, which nobody takes unasked, are work only while they run.
        """
        return any(_has_work(self, each, tags) for each in types)


# From where jobs wait to where they run: one that goes on between two looks is seen in one of the two.
_UNSETTLED: Final = (
    JobStatus.FAILED_RETRY,
    JobStatus.UNKNOWN_RETRY,
    JobStatus.RUNNING,
    JobStatus.CANCELLING,
)
_PAGE: Final = 1000


def _has_work(store: Reading, type: str, tags: Sequence[str]) -> bool:
    return (
        _has_ready(store, type, tags)
        or any(_has_unsettled(store, status, type, tags) for status in _UNSETTLED)
        or _has_ready(store, type, tags)  # what ended meanwhile may have made another ready
    )


def _has_ready(store: Reading, type: str, tags: Sequence[str]) -> bool:
    pages = _pages(store, JobStatus.INITIAL_PENDING, type, tags)
    return any(job.state is JobState.SCHEDULED and not job.held for job in pages)


def _has_unsettled(store: Reading, status: JobStatus, type: str, tags: Sequence[str]) -> bool:
    return any(status.holds_slot or not job.held for job in _pages(store, status, type, tags))


def _pages(store: Reading, status: JobStatus, type: str, tags: Sequence[str]) -> Iterator[Job]:
    after: str | None = None
    while True:
        page = store.list_jobs(status=status, type=type, tags=tags, after=after, limit=_PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].id
