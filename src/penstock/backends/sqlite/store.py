"""The store on one SQLite file: a writer with group commit, readers beside it, safe across threads and forks.

Fork: SQLite's locks belong to the process that took them, and its bookkeeping would tell a child that it holds what only
its parent holds. So connections are closed before a fork and opened again, by need, on both sides of it. Where that cannot
be, because a transaction is under way that does not end (the fork may come from inside it), the store stays with the parent
and the child leaves the connections alone for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import msgspec

from penstock.backends._rows import JOURNAL_COLUMNS, Row, damage_named, journal_entry
from penstock.backends._store import BeforeCommit, Blobs, Consumer, Counted, DeliveryRow, Store, Transaction
from penstock.backends.base import Change, JobEnd
from penstock.backends.sqlite import outbox
from penstock.backends.sqlite.connection import fetch, open_connection, prepare_file
from penstock.backends.sqlite.consumers import archived, consumers
from penstock.backends.sqlite.faults import translate
from penstock.backends.sqlite.files import LogGlance
from penstock.backends.sqlite.health import examine_file, examine_sqlite
from penstock.backends.sqlite.hints import HintReceiver, HintSender
from penstock.backends.sqlite.migrate import migrate
from penstock.backends.sqlite.overview import read_overview
from penstock.backends.sqlite.reading import (
    count_by_tag,
    count_by_tags,
    count_keyed,
    has_work,
    list_keyed,
    ready_tags,
    ready_types,
    select_page,
)
from penstock.backends.sqlite.transaction import COLUMN_LIST, fetch_blobs
from penstock.backends.sqlite.turns import Turns
from penstock.backends.sqlite.writer import Writer, WriterRetiredError, leak
from penstock.clock import Clock, to_micros
from penstock.errors import BackendError, QueueClosedError
from penstock.job import JobStats, JournalArchive, JournalEntry
from penstock.overview import Finding

__all__ = ["SqliteStore"]

T = TypeVar("T")

_IDLE_READERS: Final = 4
_LONG_TAIL: Final = 10_000
_JOURNAL: Final = f"SELECT {', '.join(JOURNAL_COLUMNS)} FROM journal WHERE seq > ? ORDER BY seq LIMIT ?"
_HISTORY: Final = (
    f"SELECT {', '.join(JOURNAL_COLUMNS)} FROM journal WHERE job_seq = ? ORDER BY n DESC LIMIT ?"
)
_COUNTED: Final = {
    "initial_pending": "pending_jobs",
    "running": "running_jobs",
    "completed": "completed_jobs",
    "failed_retry": "failed_jobs",
    "unknown_retry": "failed_jobs",
    "stopped": "stopped_jobs",
    "unscheduled": "stopped_jobs",
    "unknown_stopped": "stopped_jobs",
    "failed": "stopped_jobs",
    "dead_letter": "stopped_jobs",
}


class SqliteStore(Store):
    """Jobs in a file, or in memory for as long as the object lives."""

    def __init__(
        self, path: str, *, clock: Clock | None, durability: str, timeout: float, create: bool = True
    ) -> None:
        self._is_memory = path == ":memory:"
        # Absolute: readers are opened by need, and all again after a fork, when the working folder may be another.
        self._path = path if self._is_memory else str(Path(path).absolute())
        self._clock = clock
        self._glance = None if self._is_memory else LogGlance(self._path)
        self._durability = durability
        self._timeout = timeout
        self._closed = False
        self._gate = threading.RLock()
        self._readers: list[apsw.Connection] = []
        self._active_readers = 0
        self._changed = threading.Condition(self._gate)
        self._writer: Writer | None = None
        self._turns: Turns | None = None
        self._sender: HintSender | None = None
        #: Those of this store object, which its own commits do not nudge.
        self._receivers: dict[str, HintReceiver] = {}
        self._writer_rests = False  # a fork is near: no writer is opened
        self._readers_rest = False  # nor a reader
        self._forgotten = False
        self._stays_with_parent = False
        self._on_commit: Callable[[Sequence[Change]], None] | None = None
        self._before_commit: BeforeCommit | None = None
        with self._gate, self._translated():
            with _stores_lock:
                _stores.add(self)
            if not self._is_memory:
                prepare_file(self._path, create=create)
            self._open_writer()

    # -- contract -----------------------------------------------------------------------------------------------

    def now(self) -> int:
        return time.time_ns() // 1000 if self._clock is None else to_micros(self._clock.now())

    def write(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:
        while True:
            try:
                return self._current_writer().run(work, alone=alone)
            except WriterRetiredError:  # closed, or a fork came between
                with self._gate:
                    self._changed.wait_for(lambda: not self._writer_rests)

    @property
    def on_commit(self) -> Callable[[Sequence[Change]], None] | None:
        return self._on_commit

    @on_commit.setter
    def on_commit(self, listener: Callable[[Sequence[Change]], None] | None) -> None:
        if listener is not None:  # to stop listening is always possible
            self._check_usable()
        self._on_commit = listener
        writer = self._writer
        if writer is not None:
            writer.on_commit = listener

    @property
    def before_commit(self) -> BeforeCommit | None:
        return self._before_commit

    @before_commit.setter
    def before_commit(self, hook: BeforeCommit | None) -> None:
        self._before_commit = hook
        writer = self._writer
        if writer is not None:
            writer.before_commit = hook

    def fetch_jobs(self, ids: Sequence[str]) -> tuple[list[tuple[Row, Blobs]], int]:
        if len(ids) == 1:
            query, parameter = f"SELECT {COLUMN_LIST} FROM job WHERE id = ?", ids[0]
        else:
            query = f"SELECT {COLUMN_LIST} FROM job WHERE id IN (SELECT value FROM json_each(?))"
            parameter = msgspec.json.encode(ids).decode()
        found = self._read(lambda cursor: _with_blobs(cursor, fetch(cursor, query, (parameter,))))
        return found, self.now()

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
        found = self._read(
            lambda cursor: _with_blobs(
                cursor, select_page(cursor, status, type, tags, after, limit, newest=newest)
            )
        )
        return found, self.now()

    def count_keyed(self, key: str | None, type: str | None) -> int:
        return self._read(lambda cursor: count_keyed(cursor, key, type))

    def list_keyed(self, key: str | None, type: str | None, upto: int, limit: int) -> list[str]:
        return self._read(lambda cursor: list_keyed(cursor, key, type, upto, limit))

    def stats(self, tags: Sequence[str]) -> JobStats:
        if len(tags) > 1:
            return _stats(tags, self._read(lambda cursor: count_by_tags(cursor, tags)))
        counts, tail = self._read(lambda cursor: count_by_tag(cursor, tags[0] if tags else ""))
        self._fold_long(tail)
        return _stats(tags, counts)

    def overview(self, most: int) -> Counted:
        counted, tail = self._read(lambda cursor: read_overview(cursor, self.now(), most))
        self._fold_long(tail)
        return counted

    def examine(self) -> list[Finding]:
        if self._is_memory:
            return []
        connection = self._borrow()
        try:
            with self._translated():
                found = examine_sqlite(connection)
        finally:
            self._give_back(connection)
        return found + examine_file(Path(self._path))

    def _fold_long(self, tail: int) -> None:
        """Fold for all if nobody has for long; if that cannot be, the counts are right all the same."""
        if tail > _LONG_TAIL:
            with contextlib.suppress(BackendError):
                self.write(lambda tx: tx.tidy())

    def read_journal(self, after: int, limit: int) -> list[JournalEntry]:
        found = self._read(lambda cursor: fetch(cursor, _JOURNAL, (min(after, 2**62), limit)))
        with damage_named():
            return [journal_entry(values) for values in found]

    def job_history(self, job_id: str, limit: int) -> list[JournalEntry] | None:
        def look(cursor: apsw.Cursor) -> list[Any] | None:
            job = fetch(cursor, "SELECT seq FROM job WHERE id = ?", (job_id,))
            return fetch(cursor, _HISTORY, (job[0][0], limit)) if job else None

        found = self._read(look)
        with damage_named():
            return None if found is None else [journal_entry(values) for values in reversed(found)]

    def store_id(self) -> str:
        query = "SELECT value FROM setting WHERE name = 'store_id'"
        return str(self._read(lambda cursor: fetch(cursor, query))[0][0])

    def journal_span(self) -> tuple[int, int]:
        return self._span("journal")

    def jobs_span(self) -> tuple[int, int]:
        return self._span("job")

    def _span(self, table: str) -> tuple[int, int]:
        # Two look-ups: one min and max together would walk through the whole table.
        query = f"SELECT (SELECT min(seq) FROM {table}), (SELECT max(seq) FROM {table})"
        first, last = self._read(lambda cursor: fetch(cursor, query))[0]
        return (1, 0) if first is None else (first, last)

    def consumers(self) -> list[Consumer]:
        return self._read(consumers)

    def archived(self) -> JournalArchive:
        return self._read(archived)

    def read_ends(self, after: int, limit: int, max_result: int) -> tuple[list[JobEnd], int]:
        return self._read(lambda cursor: outbox.read_ends(cursor, after, limit, max_result))

    def due_deliveries(self, limit: int, per_lane: int) -> list[DeliveryRow]:
        return self._read(lambda cursor: outbox.due_deliveries(cursor, self.now(), limit, per_lane))

    def deliveries(self, after: int, limit: int) -> list[DeliveryRow]:
        return self._read(lambda cursor: outbox.deliveries(cursor, after, limit))

    def count_deliveries(self) -> tuple[int, int]:
        return self._read(outbox.count_deliveries)

    def schedules(self) -> list[tuple[str, int, int]]:
        return self._read(outbox.schedules)

    poll_seconds = 0.01

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        if self._is_memory or not hasattr(socket, "AF_UNIX"):
            return super().watch(callback)
        try:
            receiver = HintReceiver(self._path, callback)
        except OSError:  # no such sockets here: looking every few milliseconds is enough
            return super().watch(callback)
        self._receivers = {**self._receivers, receiver.name: receiver}

        def stop() -> None:
            self._receivers = {name: each for name, each in self._receivers.items() if each is not receiver}
            receiver.close()

        return stop

    def _nudge(self) -> None:
        if self._sender is not None:
            self._sender.send(but=self._receivers)

    def has_foreign_changes(self) -> bool:
        if self._glance is None or not self._glance.is_news():
            return False
        answer = self._current_writer().has_foreign_changes()
        if answer is not None:
            self._glance.settle()
        return bool(answer)

    def states(self, ids: Sequence[str]) -> dict[str, tuple[str, int, str]]:
        query = "SELECT id, status, attempt, verb FROM job WHERE id IN (SELECT value FROM json_each(?))"
        wanted = msgspec.json.encode(ids).decode()
        found = self._read(lambda cursor: fetch(cursor, query, (wanted,)))
        return {job_id: (status, attempt, verb) for job_id, status, attempt, verb in found}

    def fetch_output(self, job_id: str) -> bytes | None:
        query = "SELECT output.data FROM job LEFT JOIN output ON output.seq = job.seq WHERE job.id = ?"
        found = self._read(lambda cursor: fetch(cursor, query, (job_id,)))
        return (found[0][0] or b"") if found else None

    def next_due_at(self) -> int | None:
        query = "SELECT " + ", ".join(
            f"(SELECT min(due_at) FROM job INDEXED BY job_delayed WHERE gate = 1 AND priority = {level})"
            for level in range(5)
        )
        (found,) = self._read(lambda cursor: fetch(cursor, query))
        return min((due_at for due_at in found if due_at is not None), default=None)

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        types, tags = self._read(lambda cursor: (ready_types(cursor), ready_tags(cursor)))
        return None if types is None or tags is None else (types, tags)

    def has_work(self, types: Sequence[str], tags: Sequence[str]) -> bool:
        now = self.now()
        return self._read(lambda cursor: has_work(cursor, types, tags, now))

    def is_blocked(self) -> bool:
        query = "SELECT value FROM setting WHERE name = 'blocked'"
        return bool(self._read(lambda cursor: fetch(cursor, query))[0][0])

    def has_owner(self, owner: str) -> bool:
        query = "SELECT 1 FROM owner WHERE id = ?"
        return bool(self._read(lambda cursor: fetch(cursor, query, (owner,))))

    def close(self) -> None:
        with self._gate:
            if self._closed:
                return
            writer = self._writer
            if not self._forgotten and writer is not None and writer.is_led_here():
                writer.close()  # refuses, and says why
            self._changed.wait_for(lambda: not self._writer_rests)
            self._closed = True
            if self._forgotten:
                return
        with self._translated(), contextlib.ExitStack() as last:
            last.callback(_forget, self)  # after all else: until then a fork must know of it
            last.callback(self._close_turns)
            if self._writer is not None:
                last.callback(self._writer.close)
            self._close_readers()

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, work: Callable[[apsw.Cursor], T]) -> T:
        """Run `work` inside one read transaction, so that all it reads is of one moment."""
        if self._is_memory:
            # The writer's connection is the only one there is.
            writer = self._current_writer()
            if writer.is_led_here():  # by an iterator passed to enqueue_jobs
                return writer.read_inside(work)
            return self.write(lambda tx: work(tx.cursor))  # type: ignore[attr-defined]  # a SqliteTransaction
        connection = self._borrow()
        try:
            with self._translated(), connection:
                result = work(connection.cursor())
        finally:
            self._give_back(connection)
        return result

    def _borrow(self) -> apsw.Connection:
        with self._gate:
            self._changed.wait_for(lambda: not self._readers_rest)
            self._check_usable()
            self._active_readers += 1
            if self._readers:
                return self._readers.pop()
        try:
            with self._translated():
                return open_connection(self._path, durability=self._durability, timeout=self._timeout)
        except BaseException:
            self._return_slot()
            raise

    def _give_back(self, connection: apsw.Connection) -> None:
        with self._gate:
            keep = not self._closed and len(self._readers) < _IDLE_READERS
            if keep:
                self._readers.append(connection)
        try:
            if not keep:
                connection.close()
        finally:
            self._return_slot()

    def _return_slot(self) -> None:
        with self._gate:
            self._active_readers -= 1
            self._changed.notify_all()

    # -- connections --------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._closed:
            raise QueueClosedError
        if self._forgotten:
            raise BackendError("this store belongs to the process that opened it; open one in the child")

    def _current_writer(self) -> Writer:
        self._check_usable()
        writer = self._writer
        if writer is not None:
            return writer
        with self._gate, self._translated():
            self._changed.wait_for(lambda: not self._writer_rests)
            self._check_usable()
            return self._writer or self._open_writer()

    def _open_writer(self) -> Writer:
        connection = open_connection(self._path, durability=self._durability, timeout=self._timeout)
        try:
            migrate(connection, self._path)
            self._turns = None if self._is_memory else Turns.open(self._path)
        except BaseException:
            connection.close(force=True)
            raise
        self._writer = Writer(connection, self._turns, path=self._path, now=self.now, timeout=self._timeout)
        self._writer.on_commit = self._on_commit
        self._writer.before_commit = self._before_commit
        if not self._is_memory and hasattr(socket, "AF_UNIX"):
            self._sender = HintSender(self._path)
            self._writer.nudge = self._nudge
        return self._writer

    def _close_readers(self) -> None:
        """Close the readers once all of them are back."""
        with self._gate:
            self._changed.wait_for(lambda: not self._active_readers)
            readers, self._readers = self._readers, []
        with contextlib.ExitStack() as closing:
            for reader in readers:
                closing.callback(reader.close)

    def _close_turns(self) -> None:
        with self._gate:
            turns, self._turns = self._turns, None
            sender, self._sender = self._sender, None
        if turns is not None:
            turns.close()
        if sender is not None:
            sender.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise translate(error, self._path) from error
        except UnicodeDecodeError as error:
            raise translate(apsw.CorruptError(str(error)), self._path) from error

    # -- fork ---------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Close everything and let nobody open anything until the fork is done."""
        self._stays_with_parent = True  # if this is interrupted (Ctrl-C), the fork comes all the same
        self._stays_with_parent = not self._rest()

    def _rest(self) -> bool:
        """Return whether nothing is left that a child could harm.

        The writer goes first and without the gate, because a transaction under way may read, for example in an
        iterator passed to enqueue_jobs.
        """
        with self._gate:
            self._writer_rests = True
            writer = self._writer
        if self._is_memory or (writer is not None and writer.is_led_here()):
            return False
        with contextlib.suppress(apsw.Error):
            if writer is not None and not writer.retire(self._timeout):
                return False
        with self._gate:
            self._writer = None
            self._readers_rest = True
        with contextlib.suppress(apsw.Error):
            self._close_readers()
        self._close_turns()
        return True

    def after_fork_in_parent(self) -> None:
        with self._gate:
            if self._writer is not None and self._writer.is_closed:
                self._writer = None
            self._writer_rests = self._readers_rest = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        self._gate = threading.RLock()
        self._changed = threading.Condition(self._gate)
        self._writer_rests = self._readers_rest = False
        self._active_readers = 0
        if self._stays_with_parent:
            self._forgotten = True
            for reader in self._readers:
                leak(reader)
            if self._writer is not None:
                self._writer.disown()
        # Listeners and receivers are the parent's: their threads and locks did not come along.
        self._on_commit = self._before_commit = None
        self._receivers = {}


def _with_blobs(cursor: apsw.Cursor, found: list[tuple[Any, ...]]) -> list[tuple[Row, Blobs]]:
    rows = [Row(*values) for values in found]
    blobs = fetch_blobs(cursor, [row.seq for row in rows]) if rows else {}
    return [(row, blobs.get(row.seq, Blobs())) for row in rows]


def _stats(tags: Sequence[str], counts: Sequence[tuple[str, int, int]]) -> JobStats:
    fields: dict[str, int] = {}
    for status, jobs, retries in counts:
        fields["total_jobs"] = fields.get("total_jobs", 0) + jobs
        fields["total_retries"] = fields.get("total_retries", 0) + retries
        name = _COUNTED.get(status)
        if name is not None:
            fields[name] = fields.get(name, 0) + jobs
    return JobStats(tags=tuple(tags), **fields)


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_stores_lock = threading.Lock()
_forking: list[SqliteStore] = []
_fork_lock = threading.Lock()


def _forget(store: SqliteStore) -> None:
    with _stores_lock:
        _stores.discard(store)


def _before_fork() -> None:
    _fork_lock.acquire()  # one fork at a time; held until it is done
    with _stores_lock:
        _forking[:] = list(_stores)
    with contextlib.ExitStack() as all_of_them:  # also those after one that was interrupted
        for store in _forking:
            all_of_them.callback(store.before_fork)


def _after_fork_in_parent() -> None:
    for store in _forking:
        store.after_fork_in_parent()
    _forking.clear()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    global _fork_lock, _stores_lock  # a thread that is no more may hold them
    _fork_lock, _stores_lock = threading.Lock(), threading.Lock()
    Turns.forget_all()
    for store in _forking:
        store.after_fork_in_child()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
