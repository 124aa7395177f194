from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.backends.contract.overview import Intake

__all__ = ["Owners"]


class Owners(ABC):
    """The liveness rows of processes that hold jobs; `StoreOptions.liveness` is how long one may be silent."""

    @abstractmethod
    def open(self) -> str:
        """Write this process's liveness row (host, pid, start time) and return its id, for `owner=`."""

    @abstractmethod
    def beat(self, owner: str, *, intakes: Sequence[Intake] | None = None) -> bool:
        """Record a heartbeat of an owner. False if its row is gone: its jobs were reclaimed.

        Args:
            intakes: what its streams claim from now on, for `Reading.overview`; None leaves what was reported before.
        """

    @abstractmethod
    def has(self, owner: str) -> bool:
        """Whether a liveness row is there; writes nothing."""

    @abstractmethod
    def close(self, owner: str) -> None:
        """Remove a liveness row. Jobs it still holds are reclaimed at the next `maintain`."""
