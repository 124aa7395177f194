from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

from penstock.job import Maintenance
from penstock.overview import Finding

__all__ = ["Upkeep"]


class Upkeep(ABC):
    """What has to be done now and then."""

    @abstractmethod
    def maintain(self) -> Maintenance:
        """Do one pass of all upkeep, at the clock's now, in this order.

        1. Unfinished jobs past their lifetime → DEAD_LETTER.
        2. Jobs whose owner or lease is gone → UNKNOWN_RETRY (DEAD_LETTER after the last allowed attempt;
           CANCELLING → UNKNOWN_STOPPED).
        3. RUNNING past the execution time + 10 s → failed, category TIMEOUT.
        4. Delayed jobs that are due become takeable and are announced.
        5. Finals past their retention are removed; counters are folded.
        """

    @abstractmethod
    def cleanup_expired_jobs(self, ttl: timedelta) -> int:
        """Remove COMPLETED jobs that ended at least `ttl` ago and return how many."""

    def take_upkeep(self, interval: timedelta) -> bool:  # noqa: ARG002  # ours share the work by a row in the store
        """Whether it falls to the caller to `maintain` now; true for one caller of the store per interval."""
        return True

    def examine(self) -> list[Finding]:
        """Return what the store has to say about its own health and settings, for `penstock doctor`."""
        return []
