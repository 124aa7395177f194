"""What the engine asks of a database.

The engine (`engine`) holds the rules of every verb, once. A store knows how to run a piece of work in a transaction and
offers that work the primitives of a `Transaction`. Nothing here decides what is legal: a primitive finds, locks, writes rows.

Locks: what a primitive returns stays locked against other writers until the transaction ends. A store with one writer
at a time (SQLite) gets this for nothing. Where writers run side by side (PostgreSQL), locks are taken in sorted order,
keys before jobs and all keys at once, which is why work says beforehand how far it goes (`Transaction.expect`). A
transaction that meets a deadlock or a serialisation failure all the same is run again from its start; so work must not
have effects of its own before it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from penstock.backends._rows import Row
from penstock.backends._stored import (
    AFTER,
    AFTER_ANY,
    GIVEN_UP_KEPT,
    SPAWNED,
    Archived,
    Blobs,
    Claim,
    Consumer,
    Counted,
    DeliveryRow,
    Edge,
    Owner,
    Reach,
)
from penstock.backends._transaction import (
    DuplicateIdError,
    Transaction,
    claim_change,
    jobs_of,
    plain_change,
    tell,
)
from penstock.backends.base import Change, JobEnd
from penstock.job import JobStats, JournalArchive, JournalEntry
from penstock.overview import Finding

__all__ = [
    "AFTER",
    "AFTER_ANY",
    "GIVEN_UP_KEPT",
    "SPAWNED",
    "Archived",
    "BeforeCommit",
    "Blobs",
    "Claim",
    "Consumer",
    "Counted",
    "DeliveryRow",
    "DuplicateIdError",
    "Edge",
    "HandedOut",
    "Outright",
    "Owner",
    "Reach",
    "Store",
    "Transaction",
    "claim_change",
    "jobs_of",
    "plain_change",
    "tell",
]

T = TypeVar("T")

#: Told whether the commit succeeded; None if nobody can say.
HandedOut = Callable[[bool | None], None]
BeforeCommit = Callable[[Transaction, Sequence[Change]], HandedOut | None]


class Outright(Generic[T]):
    """Work that is refused before it changes anything, if it is refused at all: nothing of it needs to be undone by itself."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[Transaction], T]) -> None:
        self._work = work

    def __call__(self, tx: Transaction) -> T:
        return self._work(tx)


class Store(ABC):
    """A database that runs transactions for the engine."""

    @abstractmethod
    def write(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:
        """Run `work` in a transaction, commit durably, return its result; if it raises, nothing was changed.

        Honours the ambient cancel scope until the work's turn comes. May run the work again from its start.

        Args:
            alone: the work is long; do not make others share its transaction.
        """

    @abstractmethod
    def now(self) -> int:
        """Return the store's time."""

    @abstractmethod
    def fetch_jobs(self, ids: Sequence[str]) -> tuple[list[tuple[Row, Blobs]], int]:
        """Return committed jobs with their blobs, and the store's time."""

    @abstractmethod
    def list_jobs(
        self,
        *,
        status: str | None,
        type: str | None,
        tags: Sequence[str],
        after: str | None,
        limit: int,
        newest: bool,
    ) -> tuple[list[tuple[Row, Blobs]], int]:
        """Return a page in insertion order, or the other way round; JobNotFoundError if `after` does not exist."""

    @abstractmethod
    def count_keyed(self, key: str | None, type: str | None) -> int:
        """See `Backend.count_keyed`."""

    @abstractmethod
    def list_keyed(self, key: str | None, type: str | None, upto: int, limit: int) -> list[str]:
        """See `Backend.list_keyed`."""

    @abstractmethod
    def stats(self, tags: Sequence[str]) -> JobStats: ...

    @abstractmethod
    def overview(self, most: int) -> Counted:
        """Return what `Backend.overview` is made of, all of one moment; counts up to `most` what must be counted."""

    def examine(self) -> list[Finding]:
        """See `Backend.examine`."""
        return []

    @abstractmethod
    def read_journal(self, after: int, limit: int) -> list[JournalEntry]: ...

    @abstractmethod
    def job_history(self, job_id: str, limit: int) -> list[JournalEntry] | None:
        """Return the latest rows of a job, oldest first; None if there is no such job."""

    @abstractmethod
    def store_id(self) -> str: ...

    @abstractmethod
    def journal_span(self) -> tuple[int, int]: ...

    @abstractmethod
    def jobs_span(self) -> tuple[int, int]: ...

    @abstractmethod
    def consumers(self) -> list[Consumer]:
        """Return all consumers, by name."""

    @abstractmethod
    def archived(self) -> JournalArchive:
        """Return what was ever removed from the journal."""

    @abstractmethod
    def read_ends(self, after: int, limit: int, max_result: int) -> tuple[list[JobEnd], int]:
        """See `Backend.read_ends`."""

    @abstractmethod
    def due_deliveries(self, limit: int, per_lane: int) -> list[DeliveryRow]:
        """See `Backend.due_deliveries`."""

    @abstractmethod
    def deliveries(self, after: int, limit: int) -> list[DeliveryRow]:
        """See `Backend.list_deliveries`."""

    @abstractmethod
    def count_deliveries(self) -> tuple[int, int]:
        """See `Backend.count_deliveries`."""

    @abstractmethod
    def schedules(self) -> list[tuple[str, int, int]]:
        """Return name, tick and time of the last change of all schedules, by name."""

    @abstractmethod
    def is_blocked(self) -> bool: ...

    def await_submissions(self) -> None:  # noqa: B027  # where writers run side by side
        """Wait until transactions that read the flag of blocking before it was last changed have ended."""

    @abstractmethod
    def has_owner(self, owner: str) -> bool:
        """See `Backend.has_owner`."""

    @abstractmethod
    def close(self) -> None: ...

    poll_seconds: float = 0.05

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002  # a store's
        """See `Backend.watch`."""
        return lambda: None

    def has_foreign_changes(self) -> bool:
        """See `Backend.has_foreign_changes`."""
        return True

    def fetch_output(self, job_id: str) -> bytes | None:
        """Return what a job has printed, empty if nothing; None if there is no such job."""
        return b"" if self.fetch_jobs([job_id])[0] else None

    def states(self, ids: Sequence[str]) -> dict[str, tuple[str, int, str]]:
        """Return status, attempt and last verb of the jobs that exist."""
        return {row.id: (row.status, row.attempt, row.verb) for row, _ in self.fetch_jobs(ids)[0]}

    def next_due_at(self) -> int | None:
        """Return when the next delayed job is due, if the store can tell."""
        return None

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        """See `Backend.ready_filters`."""
        return None

    @abstractmethod
    def has_work(self, types: Sequence[str], tags: Sequence[str]) -> bool:
        """See `Backend.has_work`; one look, at one moment."""

    def take_upkeep(self, interval: int) -> bool:
        """Note in the store that upkeep is done now, unless it was less than `interval` ago; return whether."""
        return self.write(lambda tx: tx.take_upkeep(interval))

    #: Called with the changes of a transaction that is about to be committed, if the store can do that. May claim in it;
    #: what it returns is called afterwards with whether the commit succeeded.
    before_commit: BeforeCommit | None = None

    #: Called with the changes of each commit, in commit order, when set.
    on_commit: Callable[[Sequence[Change]], None] | None = None
