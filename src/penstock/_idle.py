"""Whether anything is left to do: what `until_idle` means, for all who have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.backends.base import Backend
from penstock.job import JobState, JobStatus

__all__ = ["has_work"]

_UNSETTLED: Final = (
    JobStatus.RUNNING,
    JobStatus.CANCELLING,
    JobStatus.FAILED_RETRY,
    JobStatus.UNKNOWN_RETRY,
)
_PAGE: Final = 1000


def has_work(backend: Backend, type: str, tags: Sequence[str] = ()) -> bool:
    """Whether a job of the type is ready, running or waiting for a retry, here or elsewhere."""
    for status in _UNSETTLED:
        if backend.list_jobs(status=status, type=type, tags=tags, limit=1):
            return True
    after: str | None = None
    while True:
        page = backend.list_jobs(
            status=JobStatus.INITIAL_PENDING, type=type, tags=tags, after=after, limit=_PAGE
        )
        if any(job.state is JobState.SCHEDULED and not job.held for job in page):
            return True
        if len(page) < _PAGE:
            return False
        after = page[-1].id
