"""Consumers of the journal, how far each has read, and what may therefore be archived."""

from __future__ import annotations

from typing import Final

from penstock.backends.contract.journal import Journal
from penstock.backends.engine import arguments
from penstock.backends.engine.access import StoreAccess
from penstock.backends.engine.rows import micros_of, moment_at
from penstock.backends.engine.store import Consumer, Transaction
from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, JobNotFoundError, invalid, shown
from penstock.job import JournalArchive, JournalConsumer, JournalEntry
from penstock.scope import checkpoint

__all__ = ["EngineJournal", "advance", "known_consumer"]

MAX_NAME: Final = 256
#: Journal rows that one transaction of archiving looks at: some ten milliseconds of a SQLite writer's time.
ARCHIVE_PORTION: Final = 2_000


class EngineJournal(Journal):
    """The journal over a `Store`."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    def store_id(self) -> str:
        checkpoint()
        return self._access.store.store_id()

    def history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        arguments.job_id(job_id)
        arguments.limit(limit)
        checkpoint()
        found = self._access.store.job_history(job_id, limit)
        if found is None:
            raise JobNotFoundError(job_id)
        return found

    def span(self) -> tuple[int, int]:
        checkpoint()
        return self._access.store.journal_span()

    def register_consumer(self, name: str, *, seq: int = 0) -> JournalConsumer:
        arguments.text("name", name, MAX_NAME)
        _check_seq(seq)

        def work(tx: Transaction) -> Consumer:
            found = tx.consumer(name)
            if found is None:
                _check_reached(tx, seq)
                tx.add_consumer(Consumer(name, seq, None, None, tx.now))
                found = known_consumer(tx, name)
            return found

        return _shown(self._access.write(work))

    def hold_consumer(self, name: str, holder: str, lease: Duration) -> JournalConsumer | None:
        arguments.text("name", name, MAX_NAME)
        arguments.text("holder", holder, arguments.MAX_ID)
        span = micros_of(duration(lease, "lease"))

        def work(tx: Transaction) -> Consumer | None:
            found = known_consumer(tx, name)
            if found.holder != holder and _is_held(found, tx.now):
                return None
            held = found._replace(holder=holder, held_until=tx.now + span, updated_at=tx.now)
            if not span:
                if found.holder != holder:
                    return found
                held = held._replace(holder=None, held_until=None)
            tx.save_consumer(held)
            return held

        held = self._access.write(work)
        return None if held is None else _shown(held)

    def advance_consumer(self, name: str, seq: int, *, holder: str | None = None) -> bool:
        arguments.text("name", name, MAX_NAME)
        arguments.optional_text("holder", holder, arguments.MAX_ID)
        _check_seq(seq)

        return self._access.write(lambda tx: advance(tx, name, seq, holder))

    def list_consumers(self) -> list[JournalConsumer]:
        checkpoint()
        return [_shown(each) for each in self._access.store.consumers()]

    def forget_consumer(self, name: str) -> bool:
        arguments.text("name", name, MAX_NAME)
        return self._access.write(lambda tx: tx.drop_consumer(name))

    def archive(self, older_than: Duration) -> JournalArchive:
        age = micros_of(duration(older_than, "older_than"))
        self._access.write(lambda tx: tx.tidy())  # what is not counted yet stays; so count first
        histories = rows = upto = reached = 0
        while True:
            start = reached
            done, before = self._access.write(
                lambda tx, start=start: (tx.archive(start, tx.now - age, ARCHIVE_PORTION), tx.now - age)  # type: ignore[misc]
            )
            if done is None:
                break
            histories, rows = histories + done.histories, rows + done.rows
            upto, reached = max(upto, done.upto), done.reached
            # Rows lie in the order of their times, or nearly: behind a portion that is all too young come more of them.
            if done.oldest_at > before:
                break
        return JournalArchive(histories=histories, rows=rows, upto=upto)

    def get_archive(self) -> JournalArchive:
        checkpoint()
        return self._access.store.archived()


def advance(tx: Transaction, name: str, seq: int, holder: str | None) -> bool:
    """Advance a consumer; False if another holder has it."""
    found = known_consumer(tx, name)
    if not _may_advance(found, holder, tx.now):
        return False
    if seq > found.seq:
        _check_reached(tx, seq)
        tx.save_consumer(found._replace(seq=seq, updated_at=tx.now))
    return True


def known_consumer(tx: Transaction, name: str) -> Consumer:
    """Lock and return a consumer.

    Raises:
        InvalidArgumentError: none has this name.
    """
    found = tx.consumer(name)
    if found is None:
        raise InvalidArgumentError(
            f"no consumer of the journal is named {shown(name)}: register it first", field="name", value=name
        )
    return found


def _may_advance(consumer: Consumer, holder: str | None, now: int) -> bool:
    if holder is not None:
        return consumer.holder == holder
    return not _is_held(consumer, now)


def _is_held(consumer: Consumer, now: int) -> bool:
    """Whether its lease runs; one that begins in the future is from before the clock was set back."""
    return consumer.holder is not None and consumer.updated_at <= now < (consumer.held_until or 0)


def _check_seq(seq: object) -> None:
    if type(seq) is not int or seq < 0:
        raise invalid("seq", "a whole number of at least 0", seq)


def _check_reached(tx: Transaction, seq: int) -> None:
    if seq and seq > (last := tx.last_seq()):
        raise invalid("seq", f"at most {last}, the newest row of the journal", seq)


def _shown(consumer: Consumer) -> JournalConsumer:
    return JournalConsumer(
        name=consumer.name,
        seq=consumer.seq,
        updated_at=moment_at(consumer.updated_at),
        holder=consumer.holder,
        held_until=None if consumer.held_until is None else moment_at(consumer.held_until),
    )
