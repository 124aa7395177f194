"""What a raw probe can do, whatever the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from benchmarks.items import Item


class RawStore(ABC):
    """The driver alone on the product's own schema: the same rows, indexes, triggers and journal.

    It is what a careful programmer writes by hand for exactly one workload: constants stand in the SQL text, nothing
    is checked, no objects are made.
    """

    @abstractmethod
    def submit(self, item: Item) -> object:
        """Insert one job and commit."""

    @abstractmethod
    def clients(self, number: int) -> list[Callable[[Item], object]]:
        """Return what `number` threads call to insert one job and commit."""

    @abstractmethod
    def bulk(self, items: Sequence[Item]) -> None:
        """Insert a chunk of jobs in one transaction, the fastest way there is."""

    @abstractmethod
    def drain(self, batch: int) -> int:
        """Claim and complete `batch` jobs at a time until none is left; return how many there were.

        Completion of one batch and claim of the next are one transaction.
        """

    @abstractmethod
    def checkpoint(self) -> None:
        """Put what was written to its place, so that the next measurement does not pay for it."""

    @abstractmethod
    def close(self) -> None: ...
