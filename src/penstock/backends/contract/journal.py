from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta

from penstock.job import JournalArchive, JournalConsumer, JournalEntry

__all__ = ["Journal"]


class Journal(ABC):
    """What happened, who reads it, and what may leave it."""

    @abstractmethod
    def store_id(self) -> str:
        """Return what tells this store from every other one: random, made with the store, and of no secret."""

    @abstractmethod
    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """Return up to `limit` rows with `seq` above `after`, in order.

        `seq` is dense from 1, but for the numbers of rows that were archived. Whoever has seen `seq` n never later
        finds a new row at or below n. What was committed before the call is there.
        """

    @abstractmethod
    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        """Return the journal rows of a stored job, in order: the latest `limit` of them.

        What was archived is missing. Rows of an earlier job that had the same id are not its.

        Raises:
            JobNotFoundError: no job has this id, or not any more.
        """

    @abstractmethod
    def journal_span(self) -> tuple[int, int]:
        """Return the first and the last `seq` of the journal, (1, 0) if it is empty.

        What was committed before the call lies at or below the last one.
        """

    @abstractmethod
    def register_consumer(self, name: str, *, seq: int = 0) -> JournalConsumer:
        """Have the journal keep what this consumer has not read: the rows above `seq`.

        If it is registered already, nothing changes and it comes back as it is.

        Raises:
            InvalidArgumentError: the journal has no such `seq` yet.
        """

    @abstractmethod
    def hold_consumer(self, name: str, holder: str, lease: timedelta | float) -> JournalConsumer | None:
        """Take a consumer for `lease` from now on, or keep it for as long again; None if another one holds it.

        A consumer is held by one holder at a time. Who dies loses it when its lease is over. A lease of 0 gives it
        back.

        Raises:
            InvalidArgumentError: no consumer has this name.
        """

    @abstractmethod
    def advance_consumer(self, name: str, seq: int, *, holder: str | None = None) -> bool:
        """Say that everything up to `seq` is consumed; never goes back: a lower `seq` changes nothing.

        False, and nothing is changed, if somebody other than `holder` holds the consumer, or it was given one that
        does not hold it any more. A holder whose lease is over holds it until another one takes it.

        Raises:
            InvalidArgumentError: no consumer has this name, or the journal has no such `seq` yet.
        """

    @abstractmethod
    def list_consumers(self) -> list[JournalConsumer]:
        """Return all consumers, by name."""

    @abstractmethod
    def forget_consumer(self, name: str) -> bool:
        """Keep nothing more for this consumer, whoever holds it. False if there is none of this name."""

    @abstractmethod
    def archive_journal(self, older_than: timedelta | float) -> JournalArchive:
        """Remove whole histories from the journal, and return what was removed.

        A history goes if its job is final or deleted, its last row is at least `older_than` old and at or below the
        `seq` of every consumer, and the newest row of the journal is not in it. Jobs stay as they are. If such a job
        is deleted, corrected or restarted later, that row begins with its own `n`. Goes in portions, each a
        transaction of its own, so that others are not held up.
        """

    @abstractmethod
    def get_archive(self) -> JournalArchive:
        """Return what was ever removed from the journal."""
