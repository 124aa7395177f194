"""Whether anything is left to do: what `until_idle` means, for all who have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.backends.base import Backend
from penstock.job import JobState, JobStatus

__all__ = ["has_work"]

# From where jobs wait to where they run: one that goes on between two looks is seen in one of the two.
_UNSETTLED: Final = (
    JobStatus.FAILED_RETRY,
    JobStatus.UNKNOWN_RETRY,
    JobStatus.RUNNING,
    JobStatus.CANCELLING,
)
_PAGE: Final = 1000


def has_work(backend: Backend, type: str, tags: Sequence[str] = ()) -> bool:
    """Whether a job of the type is ready, running or waiting for a retry, here or elsewhere.

    It takes several looks at the store. A caller who takes and reports jobs meanwhile has to ask again.
    """
    return (
        _has_ready(backend, type, tags)
        or any(backend.list_jobs(status=status, type=type, tags=tags, limit=1) for status in _UNSETTLED)
        or _has_ready(backend, type, tags)  # what ended meanwhile may have made another ready
    )


def _has_ready(backend: Backend, type: str, tags: Sequence[str]) -> bool:
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
