from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.durations import Duration
from penstock.job import JournalArchive, JournalConsumer, JournalEntry

__all__ = ["Journal"]


class Journal(ABC):
    """The journal's consumers, its archive, and the history of a job; `Backend.read_journal` reads the rows."""

    @abstractmethod
    def store_id(self) -> str:
        """Return the random id that the store was created with; it holds no secret."""

    @abstractmethod
    def history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        """Return the journal rows of a stored job, in order: the latest `limit` of them.

        What was archived is missing. Rows of an earlier job that had the same id are not its.

        Raises:
            JobNotFoundError: no job has this id, or not any more.
        """

    @abstractmethod
    def span(self) -> tuple[int, int]:
        """Return the first and the last `seq` of the journal, (1, 0) if it is empty.

        What was committed before the call lies at or below the last one.
        """

    @abstractmethod
    def register_consumer(self, name: str, *, seq: int = 0) -> JournalConsumer:
        """Register a consumer: the journal keeps the rows above its `seq`.

        If it is registered already, nothing changes and it comes back as it is.

        Raises:
            InvalidArgumentError: the journal has no such `seq` yet.
        """

    @abstractmethod
    def hold_consumer(self, name: str, holder: str, lease: Duration) -> JournalConsumer | None:
        """Lease a consumer to a holder from now on, or renew that lease; None if another holder has it.

        A consumer has one holder at a time, until the lease ends. A lease of 0 releases it.

        Raises:
            InvalidArgumentError: no consumer has this name.
        """

    @abstractmethod
    def advance_consumer(self, name: str, seq: int, *, holder: str | None = None) -> bool:
        """Record that everything up to `seq` is consumed; a lower `seq` than before changes nothing.

        False, and nothing is changed, if another holder than `holder` has the consumer, or `holder` has it no more.
        A holder whose lease is over keeps the consumer until another one leases it.

        Raises:
            InvalidArgumentError: no consumer has this name, or the journal has no such `seq` yet.
        """

    @abstractmethod
    def list_consumers(self) -> list[JournalConsumer]:
        """Return all consumers, by name."""

    @abstractmethod
    def forget_consumer(self, name: str) -> bool:
        """Remove a consumer, held or not. False if there is none of this name."""

    @abstractmethod
    def archive(self, older_than: Duration) -> JournalArchive:
        """Remove whole histories from the journal, and return what was removed.

        A history goes if its job is final or deleted, its last row is at least `older_than` old and at or below the
        `seq` of every consumer, and the newest row of the journal is not in it. Jobs stay as they are. If such a job
        is deleted, corrected or restarted later, that row begins with its own `n`. Goes in portions, each a
        transaction of its own, so that other writers do not wait.
        """

    @abstractmethod
    def get_archive(self) -> JournalArchive:
        """Return what was ever removed from the journal."""
