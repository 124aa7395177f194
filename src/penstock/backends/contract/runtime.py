from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.backends.contract.values import Change, Claimer, NextStep
from penstock.job import Job, JobState, JobStatus

if TYPE_CHECKING:
    from penstock.backends.contract.backend import Backend

__all__ = ["PASSES_PER_LIVENESS", "Runtime"]

#: A store is maintained at least this often per liveness period, so that no gap looks like an outage (see
#: `Backend.maintain`).
PASSES_PER_LIVENESS: Final = 6


class Runtime(ABC):
    """What queues and workers need while they run.

    All but `listen` have a plain answer here, so that a backend is complete without them, and a quick one in our stores.

    Attributes:
        poll_seconds: seconds between two polls for what other processes did.
        is_new: whether this object created the store; False if it cannot tell.
    """

    poll_seconds: float = 0.05
    is_new: bool = False

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @abstractmethod
    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        """Call `listener` with the changes of each commit made through this object, in commit order.

        It is called after the commit and before the verb returns, must be quick and must not raise. Returns a
        function that ends it.
        """

    def serve(self, claimer: Claimer) -> Callable[[], None]:  # noqa: ARG002  # a store with one writer at a time can
        """Let a claimer claim in the commits of this process that make jobs eligible: one commit instead of two.

        A store may ignore this; the claimer polls as well. Returns a function that ends it.
        """
        return lambda: None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002  # polling is enough
        """Call `callback` soon after another process has changed the store, as far as the store can tell.

        Returns a function that ends it. The caller still polls every `poll_seconds`.
        """
        return lambda: None

    def has_foreign_changes(self) -> bool:
        """Whether other processes may have changed the store since the last call; may be true without a change."""
        return True

    def released(self, jobs: Mapping[str, int]) -> dict[str, str]:
        """Return those of `{id: attempt}` that are in flight no more at that attempt, with the last verb's name.

        The name is empty if another attempt has begun, and after an acknowledged cancellation of a job that was
        executing: `acknowledge_cancellation` stands for one that keeps its slot.
        """
        found = self._backend.get_jobs(jobs)
        return {
            job_id: ""
            for job_id, attempt in jobs.items()
            if job_id not in found or found[job_id].attempt != attempt or not found[job_id].status.holds_slot
        }

    def unresponsive(self, assignee_ids: Collection[str]) -> set[str]:
        """Return those of the assignees that are declared unresponsive and have given no sign of life since.

        A store that does not remember this names them all: then only signs of life in this process count.
        """
        return set(assignee_ids)

    def statuses(self, job_ids: Sequence[str]) -> dict[str, tuple[JobStatus, int]]:
        """Return status and attempt of those of the jobs that exist; cheaper than the jobs themselves."""
        return {job_id: (job.status, job.attempt) for job_id, job in self._backend.get_jobs(job_ids).items()}

    def next_steps(self, job_ids: Sequence[str]) -> dict[str, NextStep]:
        """Return what comes next for those of the jobs that exist: status, attempt and due time."""
        return {
            job_id: NextStep(status=job.status, attempt=job.attempt)
            for job_id, job in self._backend.get_jobs(job_ids).items()
        }

    def next_due(self) -> float | None:
        """Return in how many seconds the next delayed job is due (0 if one is); None if there is none or it is unknown."""
        return None

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        """Return all types and all tags that ready jobs have; None if that is unknown, or there are very many.

        A dispatcher of many streams learns from it which of them may find something.
        """
        return None

    def has_work(self, types: Sequence[str], tags: Sequence[str] = ()) -> bool:
        """Whether a job of these types that has all `tags` is ready, running or waiting for a retry.

        A store without a quick answer reads several pages: a caller that claims and reports jobs meanwhile has to ask
        again. Held jobs are work only while they run.
        """
        return any(_has_work(self._backend, each, tags) for each in types)

    def take_upkeep(self, interval: timedelta) -> bool:  # noqa: ARG002  # ours share the work by a row in the store
        """Whether the caller is to `maintain` now; true for one caller of the store per interval."""
        return True


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
