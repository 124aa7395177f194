from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from penstock.backends.contract.reading import Reading
from penstock.backends.contract.values import Change, Taker

__all__ = ["Serving"]


class Serving(Reading):
    """What a queue needs that holds jobs for its streams.

    All but `listen` have a plain answer here, so that a backend is complete without them, and a quick one in our stores.
    """

    #: How long a process may be silent before its jobs are taken from it.
    liveness: timedelta = timedelta(seconds=15)

    #: How many unfinished jobs may wait for each other in a row.
    max_depth: int = 100

    #: Bytes that a payload, result or checkpoint may have.
    max_payload: int = 1_048_576

    #: Seconds between two looks for what other processes did.
    poll_seconds: float = 0.05

    @abstractmethod
    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        """Have `listener` called with the changes of each commit made through this object, in commit order.

        It is called after the commit and before the verb returns, must be quick and must not raise. Returns a
        function that ends it.
        """

    def now(self) -> datetime:
        """Return the store's time, by which everything is due."""
        return datetime.now(UTC)

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

    def next_due(self) -> float | None:
        """Return in how many seconds the next delayed job is due (0 if one is); None if there is none or it is unknown."""
        return None

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        """Return all types and all tags that ready jobs have; None if that is unknown, or there are very many.

        Whoever serves many consumers learns from it which of them may find something.
        """
        return None
