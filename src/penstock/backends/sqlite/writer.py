"""The one connection of a store object that writes: the transaction of a group of calls.

The leader of a group (see `engine.group_commit`) begins the transaction, runs its own work, then that of its followers, each
in a SAVEPOINT if it may fail halfway, so that it undoes no other call. If the commit fails, nothing was changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import apsw

from penstock.backends.contract.values import Change
from penstock.backends.engine.group_commit import Call, GroupCommit
from penstock.backends.engine.outage import Outage
from penstock.backends.engine.store import AfterCommit, BeforeCommit, Transaction, ValidatesFirst
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.counters import Tally, fold_counters
from penstock.backends.sqlite.faults import translate
from penstock.backends.sqlite.files import StoreFiles
from penstock.backends.sqlite.transaction import SqliteTransaction
from penstock.backends.sqlite.write_lock import WriteLock
from penstock.backends.sqlite.writer_cache import WriterCache
from penstock.errors import BackendError, PenstockError
from penstock.scope import CancelScope

__all__ = ["Writer", "leak"]

logger = logging.getLogger("penstock")
T = TypeVar("T")
Work: TypeAlias = Callable[[Transaction], Any]

FOLD_AT: Final = 2_000
# SQLite waits for its lock in pieces of this many milliseconds, so that a cancelled call is noticed in between.
LOCK_WAIT: Final = 50
_COUNT_REFUSED: Final = """BEGIN IMMEDIATE;
INSERT INTO setting (name, value) VALUES ('refused_commits', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1;
COMMIT"""


class Writer(GroupCommit[Work]):
    """The one connection of a store object that writes."""

    max_group = 512

    def __init__(
        self,
        connection: apsw.Connection,
        write_lock: WriteLock | None,
        *,
        path: str,
        now: Callable[[], int],
        timeout: float,
        outage: Outage,
    ) -> None:
        super().__init__(timeout)
        self._outage = outage
        self._connection = connection
        self._cursor = connection.cursor()
        self._write_lock = write_lock
        self._path = path
        self._now = now
        self._distrusts_work = False
        self._journaled = 0  # here, since the last fold
        self._tally: Tally | None = None  # journaled by any process since then; None: read the journal
        self._cache = WriterCache()
        self._is_refused = False  # whether SQLite has refused the COMMIT
        self._is_disowned = False
        self._foreign_version: int | None = None
        self.on_commit: Callable[[Sequence[Change]], None] | None = None
        self.before_commit: BeforeCommit | None = None
        self.notify: Callable[[], None] | None = None
        self._files = None if path == ":memory:" else StoreFiles(path)
        connection.set_busy_timeout(LOCK_WAIT)

    def has_foreign_changes(self) -> bool | None:
        """Whether others have committed since the last call, by a version that our own commits do not change.

        None while calls of this process are under way: then the next poll answers.
        """
        try:
            version = self.run_if_idle(self._data_version)
        except apsw.Error:
            return True
        if version is None:
            return None
        seen, self._foreign_version = self._foreign_version, version
        return seen != version

    def _data_version(self) -> int:
        ((version,),) = fetch(self._cursor, "PRAGMA data_version")
        return int(version)

    def read_inside(self, work: Callable[[apsw.Cursor], T]) -> T:
        """Read from within the transaction that this thread is in."""
        return work(self._connection.cursor())

    def retire(self, timeout: float | None) -> bool:
        """Close the connection if the calls under way finish in time; otherwise go on as before and return False."""
        is_idle = super().retire(timeout)
        if is_idle:
            self._connection.close()
        return is_idle

    def disown(self) -> None:
        """Never touch the file again: this is the child of a fork, and the transaction is the parent's.

        Even rolling back or closing would reach into memory that SQLite shares between processes.
        """
        if self.is_led_here():  # else a thread that is no more may hold the connection's mutex
            self._connection.authorizer = _deny
        self._is_disowned = True
        self.reset()
        leak(self._connection)

    # -- the transaction of a group -----------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Roll back and release the write lock, unless that was done already."""
        with contextlib.suppress(apsw.Error):
            self._end()

    def _failure(self, error: BaseException) -> BaseException:
        if not isinstance(error, apsw.Error):
            return error
        if self._is_disowned:
            return _forked_inside()
        failure = translate(error, self._path)
        if isinstance(error, apsw.BusyError):
            self._outage.annotate(failure)
            self._fail_overdue(failure)
        return failure

    def _commit(self, group: list[Call[Work]]) -> None:
        first = group[0]
        self._is_refused = False
        handed_out: AfterCommit | None = None
        try:
            self._begin(first.deadline, first.scope)
            if self._cache.facts.check(self._connection):
                self._tally = None
            # The leader's own work. If it fails there is nothing else in the transaction yet.
            tx = self._transaction()
            first.result = first.work(tx)
            transactions = [tx]
            if not first.alone and (self._waiting or max(self._recent) > 1):
                self._gather(group, transactions)
            if self.before_commit is not None:
                handed_out = self._hand_out(transactions)
            news, tally = self._news(transactions)
            journaled = self._journaled + news
            if journaled >= FOLD_AT:
                fold_counters(self._cursor, tally)
                journaled, tally = 0, []
            self._commit_transaction()
        finally:
            try:
                self._end()
            finally:
                if handed_out is not None:
                    handed_out(self._is_committed)
        self._journaled, self._tally = journaled, tally
        for tx in transactions:
            if tx.first_claims:
                self._cache.hold(tx.first_claims)
        if news and self.notify is not None:
            self.notify()
        if self.on_commit is not None:
            changes = [change for each in transactions for change in each.changes]
            if changes:
                self.on_commit(changes)

    def _commit_transaction(self) -> None:
        """Commit. An error of SQLite means not committed, whether or not it has rolled back by itself already.

        Only an interruption (Ctrl-C) may arrive after the commit: then SQLite says whether it has committed.
        """
        try:
            self._cursor.execute("COMMIT")
            self._is_committed = True
        except apsw.Error:
            self._is_refused = True
            raise
        except BaseException:
            self._is_committed = not self._connection.in_transaction
            raise
        self._cache.facts.keep(self._connection)

    def _hand_out(self, transactions: list[SqliteTransaction]) -> AfterCommit | None:
        """Let waiting streams of this process claim what is about to be committed, which saves a commit.

        An error of theirs does not fail the commit: they find the jobs by polling instead.
        """
        changes = [change for each in transactions for change in each.changes]
        if self.before_commit is None or not any(change.available for change in changes):
            return None
        tx = self._transaction()
        self._cursor.execute("SAVEPOINT handing_out")
        try:
            handed_out = self.before_commit(tx, changes)
        except Exception:
            if not self._connection.in_transaction:
                raise
            logger.exception("waiting streams could not be served at once")
            self._cache.facts.clear()
            self._cursor.execute("ROLLBACK TO handing_out")
            handed_out = None
        try:
            self._cursor.execute("RELEASE handing_out")
        except BaseException:
            if handed_out is not None:
                handed_out(False)
            raise
        if handed_out is not None:
            transactions.append(tx)
        return handed_out

    def _news(self, transactions: list[SqliteTransaction]) -> tuple[int, Tally | None]:
        """Return the number of rows journaled now, and the tally since the last fold, if known."""
        news, tally, self._tally = 0, self._tally, None  # unknown until the commit is done
        for tx in transactions:
            news += tx.journaled
            if tx.folded:
                tally = None
            elif tally is not None:
                tally += tx.tally
        return news, tally

    def _begin(self, deadline: float, scope: CancelScope | None) -> None:
        """Wait for this process's turn, then for SQLite's own lock: only that keeps other writers out."""
        began = deadline - self._timeout
        if scope is not None and (remaining := scope.remaining()) is not None:
            deadline = min(deadline, time.monotonic() + remaining)
        if self._write_lock is not None:
            self._write_lock.acquire(deadline, scope)
        if scope is not None:
            scope.check()
        while True:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
                break
            except apsw.BusyError:
                if scope is not None:
                    scope.check()
                if time.monotonic() >= deadline:
                    waited = time.monotonic() - began
                    if waited >= self._timeout:
                        self._outage.failed("it is locked by another process", waited)
                    raise
        if self._outage.is_logged:
            self._outage.worked()
        if self._files is not None:
            self._files.check()

    def _end(self) -> None:
        """Roll back what was not committed, and release the write lock."""
        if self._is_disowned:
            return
        try:
            if not self._is_committed or self._connection.in_transaction:
                self._cache.facts.clear()
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            if self._is_refused:
                self._is_refused = False
                self._overwrite_refused()
        finally:
            if self._write_lock is not None:
                self._write_lock.release()

    def _overwrite_refused(self) -> None:
        """Overwrite what a refused COMMIT may have left at the end of the log.

        If only the flush failed, the log holds a whole transaction that no connection reads. But should every process
        die now, the next one would find it there and take it for committed. The next commit overwrites it; so one is
        made here, which changes nothing that matters.
        """
        try:
            self._cursor.execute(_COUNT_REFUSED)
        except apsw.Error:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")

    def _gather(self, group: list[Call[Work]], transactions: list[SqliteTransaction]) -> None:
        for call in self._followers(group):
            is_validated = not self._distrusts_work and isinstance(call.work, ValidatesFirst)
            tx = self._run_validated(call) if is_validated else self._run_guarded(call)
            if tx is not None:
                transactions.append(tx)

    def _run_guarded(self, call: Call[Work]) -> SqliteTransaction | None:
        tx = self._transaction()
        self._cursor.execute("SAVEPOINT call")
        try:
            call.result = call.work(tx)
        except apsw.Error as error:
            call.error = translate(error, self._path)
        except Exception as error:  # the caller's own, to be raised on its thread
            call.error = error
        if call.error is None:
            self._cursor.execute("RELEASE call")
            return tx
        if not self._connection.in_transaction:
            # SQLite has rolled back everything (disk full, I/O error): nothing of the group is stored.
            raise BackendError(str(call.error), retryable=True)
        self._cache.facts.clear()
        self._cursor.execute("ROLLBACK TO call")
        self._cursor.execute("RELEASE call")
        return None

    def _run_validated(self, call: Call[Work]) -> SqliteTransaction | None:
        """Run work that leaves nothing behind when it is refused, without a SAVEPOINT.

        Inside one SQLite keeps a copy of every page before it is changed, in pieces of a kilobyte, and walks through all of
        them after each statement: for a claim of a thousand jobs that was a sixth of the total time.
        A fault undoes the whole group. If it is not the disk's, work is guarded from then on, so that a damaged row that
        is met repeatedly does not fail other calls each time.
        """
        tx = self._transaction()
        try:
            call.result = call.work(tx)
        except apsw.Error as error:
            call.error = translate(error, self._path)
        except Exception as error:  # the caller's own, to be raised on its thread
            call.error = error
            if isinstance(error, PenstockError) and not isinstance(error, BackendError):
                return None
            self._distrusts_work = True
        else:
            return tx
        raise BackendError(f"nothing was stored, because of another call: {call.error}", retryable=True)

    def _transaction(self) -> SqliteTransaction:
        return SqliteTransaction(self._cursor, self._now(), self._cache, self.on_commit is not None)


def leak(connection: apsw.Connection) -> None:
    """Keep a connection from ever being closed, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _deny(*_: object) -> int:
    return apsw.SQLITE_DENY


def _forked_inside() -> BackendError:
    return BackendError(
        "this process was forked inside a transaction of the store, which stays with its parent; "
        "open a store of its own in the child"
    )
