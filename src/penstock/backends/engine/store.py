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
from typing import Any, Final, Generic, TypeVar

from penstock.backends.contract.overview import Finding
from penstock.backends.contract.selection import JobPage
from penstock.backends.contract.values import Change, JobEnd
from penstock.backends.engine.rows import Row
from penstock.backends.engine.selecting import Wanted
from penstock.backends.engine.stored import (
    AFTER,
    AFTER_ANY,
    GIVEN_UP_KEPT,
    NEVER,
    SPAWNED,
    UNRESPONSIVE_KEPT,
    Archived,
    Blobs,
    Claim,
    Consumer,
    Counted,
    DeliveryRow,
    Edge,
    KeyHolder,
    Owner,
    Reach,
    State,
    UpkeepPass,
)
from penstock.backends.engine.transaction import (
    DuplicateIdError,
    Transaction,
    claim_change,
    emit,
    find_row,
    jobs_of,
    plain_change,
    save_rows,
    select_rows,
)
from penstock.errors import JobExistsError, QueueBlockedError
from penstock.job import Job, JobStats, JournalArchive, JournalEntry

__all__ = [
    "AFTER",
    "AFTER_ANY",
    "GIVEN_UP_KEPT",
    "NEVER",
    "SPAWNED",
    "STORED",
    "UNRESPONSIVE_KEPT",
    "AfterCommit",
    "Archived",
    "BeforeCommit",
    "Blobs",
    "Claim",
    "Consumer",
    "Counted",
    "DeliveryRow",
    "DuplicateIdError",
    "Edge",
    "KeyHolder",
    "Owner",
    "PlainSubmission",
    "Reach",
    "State",
    "Store",
    "Transaction",
    "UpkeepPass",
    "ValidatesFirst",
    "claim_change",
    "emit",
    "find_row",
    "jobs_of",
    "plain_change",
    "save_rows",
    "select_rows",
]

T = TypeVar("T")

#: Called with whether the commit succeeded; None if that is unknown.
AfterCommit = Callable[[bool | None], None]
BeforeCommit = Callable[[Transaction, Sequence[Change]], AfterCommit | None]

#: Why a job is refused whose id is taken.
STORED: Final = "it is already stored"


class ValidatesFirst(Generic[T]):
    """Work that validates before its first write, so it needs no SAVEPOINT."""

    __slots__ = ("_arguments", "_work")

    def __init__(self, work: Callable[..., T], *arguments: Any) -> None:
        self._work = work
        self._arguments = arguments

    def __call__(self, tx: Transaction) -> T:
        return self._work(tx, *self._arguments)


class PlainSubmission(ValidatesFirst[int]):
    """One plain job (`Job.is_plain`): what `Submission` does, without what only others need. Returns the time of it."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, tx: Transaction) -> int:
        if tx.is_blocked():
            raise QueueBlockedError
        try:
            tx.insert_plain([self._job])
        except DuplicateIdError:
            raise JobExistsError(self._job.id, [(0, self._job.id, STORED)]) from None
        return tx.now


class Store(ABC):
    """A database that runs transactions for the engine."""

    @abstractmethod
    def write(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:
        """Run `work` in a transaction, commit durably, return its result; if it raises, nothing was changed.

        Honours the ambient cancel scope until the work begins. May run the work again from its start.

        Args:
            alone: the work is long; do not share its transaction.
        """

    def enqueue_plain(self, job: Job) -> int | None:
        """Store one plain job (`Job.is_plain`) and return its `created_at`, None if only reading it can tell.

        A store overrides this where it has a quicker way than a transaction.
        """
        return self.write(PlainSubmission(job))

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
    def select_jobs(
        self, wanted: Wanted, after: int | None, upto: int | None, limit: int, *, newest: bool
    ) -> JobPage:
        """See `Reading.select_jobs`."""

    @abstractmethod
    def ids_from(self, first: str, limit: int) -> list[str]:
        """Return up to `limit` ids that are not below `first`, in their own order."""

    @abstractmethod
    def count_keyed(self, key: str | None, type: str | None) -> int:
        """See `Reading.count_keyed`."""

    @abstractmethod
    def list_keyed(self, key: str | None, type: str | None, upto: int, limit: int) -> list[str]:
        """See `Reading.list_keyed`."""

    @abstractmethod
    def stats(self, tags: Sequence[str]) -> JobStats: ...

    @abstractmethod
    def counts(self, tags: Sequence[str], most: int) -> tuple[dict[str, int], int]:
        """Return how many jobs with all `tags` have each status ("" is their retries), and how many were released.

        The latter are counted up to `most`.
        """

    @abstractmethod
    def overview(self, most: int) -> Counted:
        """Return what `Reading.overview` is made of, all of one moment; counts up to `most` what must be counted."""

    def examine(self) -> list[Finding]:
        """See `Reading.examine`."""
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
        """See `Outbox.read_ends`."""

    @abstractmethod
    def due_deliveries(self, limit: int, per_lane: int) -> list[DeliveryRow]:
        """See `Outbox.due_deliveries`."""

    @abstractmethod
    def deliveries(self, after: int, limit: int) -> list[DeliveryRow]:
        """See `Outbox.list_deliveries`."""

    @abstractmethod
    def count_deliveries(self) -> tuple[int, int]:
        """See `Outbox.count_deliveries`."""

    @abstractmethod
    def schedules(self) -> list[tuple[str, int, int]]:
        """Return name, tick and time of the last change of all schedules, by name."""

    @abstractmethod
    def is_blocked(self) -> bool: ...

    def await_submissions(self) -> None:  # noqa: B027  # where writers run side by side
        """Wait until transactions that read the flag of blocking before it was last changed have ended."""

    @abstractmethod
    def has_owner(self, owner: str) -> bool:
        """See `Owners.has`."""

    @abstractmethod
    def unresponsive(self, assignee_ids: Sequence[str]) -> set[str]:
        """See `Runtime.unresponsive`."""

    @abstractmethod
    def close(self) -> None: ...

    poll_seconds: float = 0.05

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002  # a store's
        """See `Runtime.watch`."""
        return lambda: None

    def has_foreign_changes(self) -> bool:
        """See `Runtime.has_foreign_changes`."""
        return True

    def fetch_output(self, job_id: str) -> bytes | None:
        """Return what a job has printed, empty if nothing; None if there is no such job."""
        return b"" if self.fetch_jobs([job_id])[0] else None

    def states(self, ids: Sequence[str]) -> dict[str, State]:
        """Return the states of the jobs that exist."""
        return {
            row.id: State(row.status, row.attempt, row.verb, row.due_at, row.owner, row.seq)
            for row, _ in self.fetch_jobs(ids)[0]
        }

    def next_due_at(self) -> int | None:
        """Return when the next delayed job is due, if the store can tell."""
        return None

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        """See `Runtime.ready_filters`."""
        return None

    @abstractmethod
    def has_work(self, types: Sequence[str], tags: Sequence[str]) -> bool:
        """See `Runtime.has_work`; one look, at one moment."""

    def take_upkeep(self, interval: int) -> bool:
        """Record in the store that upkeep is done now, unless it was less than `interval` ago; return whether."""
        return self.write(lambda tx: tx.take_upkeep(interval))

    #: Called with the changes of a transaction that is about to be committed, if the store can do that. May claim in it;
    #: what it returns is called afterwards with whether the commit succeeded.
    before_commit: BeforeCommit | None = None

    #: Whether `before_commit` would claim a job of this type with these tags at this moment; a guess.
    is_wanted: Callable[[str, Sequence[str]], bool] | None = None

    #: Called with the changes of each commit, in commit order, when set.
    on_commit: Callable[[Sequence[Change]], None] | None = None
