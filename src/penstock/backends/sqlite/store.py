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

from penstock.backends.contract.overview import Finding
from penstock.backends.contract.selection import JobPage
from penstock.backends.contract.values import Change, JobEnd
from penstock.backends.engine.group_commit import RetiredError
from penstock.backends.engine.outage import Outage
from penstock.backends.engine.rows import Row
from penstock.backends.engine.selecting import Wanted
from penstock.backends.engine.selecting import select_page as select_selected
from penstock.backends.engine.store import (
    BeforeCommit,
    Blobs,
    Consumer,
    Counted,
    DeliveryRow,
    State,
    Store,
    Transaction,
)
from penstock.backends.sqlite import consumers, journal, outbox, owners, runtime
from penstock.backends.sqlite.connection import fetch, open_connection, prepare_file
from penstock.backends.sqlite.faults import translate
from penstock.backends.sqlite.files import LogGlance
from penstock.backends.sqlite.health import examine_file, examine_sqlite
from penstock.backends.sqlite.migrate import migrate
from penstock.backends.sqlite.notifications import Listener, Notifier
from penstock.backends.sqlite.overview import read_overview
from penstock.backends.sqlite.reading import (
    count_by_tag,
    count_by_tags,
    count_keyed,
    count_released,
    list_keyed,
    select_page,
)
from penstock.backends.sqlite.selecting import SqliteSelectionReader, ids_from
from penstock.backends.sqlite.transaction import fetch_blobs
from penstock.backends.sqlite.transaction_base import COLUMN_LIST
from penstock.backends.sqlite.write_lock import WriteLock
from penstock.backends.sqlite.writer import Writer, leak
from penstock.clock import Clock, to_micros
from penstock.errors import BackendError, QueueClosedError
from penstock.job import JobStats, JournalArchive, JournalEntry

__all__ = ["SqliteStore"]

T = TypeVar("T")

_IDLE_READERS: Final = 4
_LONG_TAIL: Final = 10_000
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
        self.outage = Outage(self._path, "does not answer")
        self._closed = False
        self._gate = threading.RLock()
        self._readers: list[apsw.Connection] = []
        self._active_readers = 0
        self._changed = threading.Condition(self._gate)
        self._writer: Writer | None = None
        self._write_lock: WriteLock | None = None
        self._sender: Notifier | None = None
        #: Those of this store object, which its own commits do not notify.
        self._receivers: dict[str, Listener] = {}
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
            writer = self._writer
            if writer is None or self._closed or self._forgotten:
                writer = self._current_writer()
            try:
                result: T = writer.run(work, alone=alone)
            except RetiredError:  # closed, or a fork came between
                with self._gate:
                    self._changed.wait_for(lambda: not self._writer_rests)
            else:
                return result

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

    def select_jobs(
        self, wanted: Wanted, after: int | None, upto: int | None, limit: int, *, newest: bool
    ) -> JobPage:
        return self._read(
            lambda cursor: select_selected(
                SqliteSelectionReader(cursor), wanted, after, upto, limit, newest=newest
            )
        )

    def ids_from(self, first: str, limit: int) -> list[str]:
        return self._read(lambda cursor: ids_from(cursor, first, limit))

    def count_keyed(self, key: str | None, type: str | None) -> int:
        return self._read(lambda cursor: count_keyed(cursor, key, type))

    def list_keyed(self, key: str | None, type: str | None, upto: int, limit: int) -> list[str]:
        return self._read(lambda cursor: list_keyed(cursor, key, type, upto, limit))

    def stats(self, tags: Sequence[str]) -> JobStats:
        return _stats(tags, self._status_counts(tags))

    def counts(self, tags: Sequence[str], most: int) -> tuple[dict[str, int], int]:
        found = self._status_counts(tags)
        released = self._read(lambda cursor: count_released(cursor, tags, most))
        by_status = {status: jobs for status, jobs, _ in found}
        return {**by_status, "": sum(retries for *_, retries in found)}, released

    def _status_counts(self, tags: Sequence[str]) -> Sequence[tuple[str, int, int]]:
        if len(tags) > 1:
            return self._read(lambda cursor: count_by_tags(cursor, tags))
        counts, tail = self._read(lambda cursor: count_by_tag(cursor, tags[0] if tags else ""))
        self._fold_long(tail)
        return counts

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
        """Fold a long tail; if that fails, the counts are still right."""
        if tail > _LONG_TAIL:
            with contextlib.suppress(BackendError):
                self.write(lambda tx: tx.tidy())

    def read_journal(self, after: int, limit: int) -> list[JournalEntry]:
        return self._read(lambda cursor: journal.read(cursor, after, limit))

    def job_history(self, job_id: str, limit: int) -> list[JournalEntry] | None:
        return self._read(lambda cursor: journal.history(cursor, job_id, limit))

    def store_id(self) -> str:
        return self._read(journal.store_id)

    def journal_span(self) -> tuple[int, int]:
        return self._read(lambda cursor: journal.span(cursor, "journal"))

    def jobs_span(self) -> tuple[int, int]:
        return self._read(lambda cursor: journal.span(cursor, "job"))

    def consumers(self) -> list[Consumer]:
        return self._read(consumers.consumers)

    def archived(self) -> JournalArchive:
        return self._read(consumers.archived)

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
            receiver = Listener(self._path, callback)
        except OSError:  # no such sockets here: polling every few milliseconds is enough
            return super().watch(callback)
        self._receivers = {**self._receivers, receiver.name: receiver}

        def stop() -> None:
            self._receivers = {name: each for name, each in self._receivers.items() if each is not receiver}
            receiver.close()

        return stop

    def _notify(self) -> None:
        if self._sender is not None:
            self._sender.send(but=self._receivers)

    def has_foreign_changes(self) -> bool:
        if self._glance is None or not self._glance.is_news():
            return False
        answer = self._current_writer().has_foreign_changes()
        if answer is not None:
            self._glance.settle()
        return bool(answer)

    def states(self, ids: Sequence[str]) -> dict[str, State]:
        return self._read(lambda cursor: runtime.states(cursor, ids))

    def fetch_output(self, job_id: str) -> bytes | None:
        query = "SELECT output.data FROM job LEFT JOIN output ON output.seq = job.seq WHERE job.id = ?"
        found = self._read(lambda cursor: fetch(cursor, query, (job_id,)))
        return (found[0][0] or b"") if found else None

    def next_due_at(self) -> int | None:
        return self._read(runtime.next_due_at)

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        return self._read(runtime.ready_filters)

    def has_work(self, types: Sequence[str], tags: Sequence[str]) -> bool:
        now = self.now()
        return self._read(lambda cursor: runtime.has_work(cursor, types, tags, now))

    def is_blocked(self) -> bool:
        query = "SELECT value FROM setting WHERE name = 'blocked'"
        return bool(self._read(lambda cursor: fetch(cursor, query))[0][0])

    def unresponsive(self, assignee_ids: Sequence[str]) -> set[str]:
        return self._read(lambda cursor: owners.unresponsive(cursor, assignee_ids))

    def has_owner(self, owner: str) -> bool:
        return self._read(lambda cursor: owners.has_owner(cursor, owner))

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
            with self._translated():
                result = _read_at_once(connection, work)
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
            # One that a fault left inside its transaction would read the past for ever.
            is_idle = not connection.in_transaction
            keep = is_idle and not self._closed and len(self._readers) < _IDLE_READERS
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
            self._write_lock = None if self._is_memory else WriteLock.open(self._path)
        except BaseException:
            connection.close(force=True)
            raise
        self._writer = Writer(
            connection,
            self._write_lock,
            path=self._path,
            now=self.now,
            timeout=self._timeout,
            outage=self.outage,
        )
        self.outage.was_reached = True
        self._writer.on_commit = self._on_commit
        self._writer.before_commit = self._before_commit
        if not self._is_memory and hasattr(socket, "AF_UNIX"):
            self._sender = Notifier(self._path)
            self._writer.notify = self._notify
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
            write_lock, self._write_lock = self._write_lock, None
            sender, self._sender = self._sender, None
        if write_lock is not None:
            write_lock.close()
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
        """Close all connections, and prevent new ones until the fork is done."""
        self._stays_with_parent = True  # the fork happens even if this is interrupted (Ctrl-C)
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
        self.outage.reset()
        if self._stays_with_parent:
            self._forgotten = True
            for reader in self._readers:
                leak(reader)
            if self._writer is not None:
                self._writer.disown()
        # Listeners are the parent's: a fork does not copy their threads.
        self._on_commit = self._before_commit = None
        self._receivers = {}


def _read_at_once(connection: apsw.Connection, work: Callable[[apsw.Cursor], T]) -> T:
    """Run `work` in one read transaction.

    After an I/O error SQLite has ended the transaction, and apsw fails to roll it back: the first error is the true one.
    """
    first: apsw.Error | None = None
    try:
        with connection:
            try:
                result = work(connection.cursor())
            except apsw.Error as error:
                first = error
                raise
    except apsw.Error as error:
        raise first or error from None
    return result


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
    WriteLock.forget_all()
    for store in _forking:
        store.after_fork_in_child()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
