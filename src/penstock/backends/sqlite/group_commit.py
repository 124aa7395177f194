"""Group commit: calls from many threads share one transaction and one flush.

    thread A  ──► leads: BEGIN, its own work ─┬─ work of B ─┬─ work of C ─┬─ COMMIT ──► answers A, B and C
    thread B  ──► waits ──────────────────────┘             │             │
    thread C  ──► waits ────────────────────────────────────┘             └─ D, which came later, leads the next

A call that finds no leader leads on its own thread, so a single call never switches threads. Calls that arrive meanwhile
wait as followers; the leader runs their work too, in a SAVEPOINT if it may fail halfway, so that it undoes no other call.
While recent commits were shared, the leader waits at most 0.2 ms for more followers: without that, eight callers split
into two groups of four. No call returns before the commit. If the commit fails, every call of the group fails and nothing
was changed.

A call whose cancel scope ends before its work has begun is withdrawn; after that it waits for the real outcome. A thread
that is interrupted (Ctrl-C) leaves the queue, so that no other thread waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import apsw

from penstock.backends.contract.values import Change
from penstock.backends.engine.store import AfterCommit, BeforeCommit, Transaction, ValidatesFirst
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.counters import Tally, fold_counters
from penstock.backends.sqlite.faults import translate
from penstock.backends.sqlite.files import StoreFiles
from penstock.backends.sqlite.transaction import SqliteTransaction
from penstock.backends.sqlite.write_lock import WriteLock
from penstock.backends.sqlite.writer_cache import WriterCache
from penstock.errors import BackendError, OperationCancelledError, PenstockError
from penstock.scope import CancelScope, current_scope

__all__ = ["Writer", "WriterRetiredError", "leak"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

GATHERING_TIME: Final = 0.0002
LARGEST_GROUP: Final = 512
FOLD_AT: Final = 2_000
# SQLite waits for its lock in pieces of this many milliseconds, so that a cancelled call is noticed in between.
LOCK_WAIT: Final = 50
_COUNT_REFUSED: Final = """BEGIN IMMEDIATE;
INSERT INTO setting (name, value) VALUES ('refused_commits', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1;
COMMIT"""


class WriterRetiredError(Exception):
    """The writer was closed before the call reached it."""


class _Request:
    """One call: its work and its outcome."""

    __slots__ = ("alone", "answered", "deadline", "error", "leads", "result", "scope", "work")

    def __init__(
        self, work: Callable[[Transaction], Any], alone: bool, deadline: float, scope: CancelScope | None
    ) -> None:
        self.work = work
        self.alone = alone
        self.deadline = deadline  # for its work to begin
        self.scope = scope
        self.answered: threading.Lock | None = None  # set for followers
        self.leads = False
        self.result: Any = None
        self.error: BaseException | None = None

    def answer(self) -> None:
        """Wake the caller; may be called more than once."""
        if self.answered is not None:
            with contextlib.suppress(RuntimeError):
                self.answered.release()


class _Bell:
    """Wakes one waiting thread. A bare lock: faster than an Event, and it cannot be interrupted halfway."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


class Writer:
    """The one connection of a store object that writes."""

    def __init__(
        self,
        connection: apsw.Connection,
        write_lock: WriteLock | None,
        *,
        path: str,
        now: Callable[[], int],
        timeout: float,
    ) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._write_lock = write_lock
        self._path = path
        self._now = now
        self._timeout = timeout
        self._mutex = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._arrived = _Bell()
        self._leader: int | None = None
        self._group: list[_Request] = []  # the leader's request and those of its followers
        self._idle = threading.Condition(self._mutex)
        self._recent = (1, 1)
        self._distrusts_work = False
        self._journaled = 0  # here, since the last fold
        self._tally: Tally | None = None  # journaled by any process since then; None: read the journal
        self._cache = WriterCache()
        self._closings = 0  # how many are closing it, for good or for a fork
        self._is_committed = False
        self._is_refused = False  # whether SQLite has refused the COMMIT
        self._is_disowned = False
        self._foreign_version: int | None = None
        self.on_commit: Callable[[Sequence[Change]], None] | None = None
        self.before_commit: BeforeCommit | None = None
        self.notify: Callable[[], None] | None = None
        self._files = None if path == ":memory:" else StoreFiles(path)
        connection.set_busy_timeout(LOCK_WAIT)

    def run(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:
        """Run `work` in a transaction, maybe a shared one, and return its result once it is durable."""
        scope = current_scope()
        if scope is not None:
            scope.check()
        request = _Request(work, alone, time.monotonic() + self._timeout, scope)
        try:
            self._enter(request)
            if request.answered is not None:
                self._wait(request, request.answered, scope)
            if request.leads:
                self._lead(request)
        except BaseException:
            self._leave(request)
            raise
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[no-any-return]  # what `work` returned

    def _enter(self, request: _Request) -> None:
        """Become the leader if there is none, else queue up."""
        with self._mutex:
            if self._leader == threading.get_ident():
                raise _inside("written to")
            if self._closings:
                raise WriterRetiredError
            if self._leader is None:
                request.leads = True
                self._leader = -1  # taken; the thread is named when it begins
                return
            request.answered = threading.Lock()
            request.answered.acquire()
            self._waiting.append(request)
        self._arrived.ring()

    def _leave(self, request: _Request) -> None:
        """Withdraw an interrupted request; if it was to lead, the next one does."""
        with self._mutex:
            if request in self._waiting:
                self._waiting.remove(request)
        if not request.leads:
            return
        self._abandon()
        others = self._group[1:] if self._group and self._group[0] is request else []
        if others and not self._is_committed:
            self._fail(self._group, KeyboardInterrupt())
        self._dismiss(request, others)

    def has_foreign_changes(self) -> bool | None:
        """Whether others have committed since the last call, by a version that our own commits do not change.

        None while calls of this process are under way: then the next poll answers.
        """
        probe = _Request(_nothing, True, 0.0, None)
        try:
            with self._mutex:
                if self._leader is not None or self._closings:
                    return None
                probe.leads = True
                self._leader = -1
            ((version,),) = fetch(self._cursor, "PRAGMA data_version")
        except apsw.Error:
            return True
        finally:
            self._hand_over(probe)
        seen, self._foreign_version = self._foreign_version, version
        return bool(seen != version)

    def is_led_here(self) -> bool:
        """Whether this very thread is inside a transaction."""
        return self._leader == threading.get_ident()

    def read_inside(self, work: Callable[[apsw.Cursor], T]) -> T:
        """Read from within the transaction that this thread is in."""
        return work(self._connection.cursor())

    @property
    def is_closed(self) -> bool:
        return self._closings > 0

    def close(self) -> None:
        """Take no new calls, let those under way finish, close the connection."""
        if self.is_led_here():
            raise _inside("closed")
        self.retire(None)

    def retire(self, timeout: float | None) -> bool:
        """Close if the calls under way finish in time; otherwise go on as before and return False."""
        with self._mutex:
            self._closings += 1
            try:
                is_idle = self._idle.wait_for(lambda: self._leader is None, timeout)
            except BaseException:  # Ctrl-C while waiting
                self._closings -= 1
                raise
            if not is_idle:
                self._closings -= 1
                return False
        self._connection.close()
        return True

    def disown(self) -> None:
        """Never touch the file again: this is the child of a fork, and the transaction is the parent's.

        Even rolling back or closing would reach into memory that SQLite shares between processes.
        """
        if self.is_led_here():  # else a thread that is no more may hold the connection's mutex
            self._connection.authorizer = _deny
        self._is_disowned = True
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._waiting.clear()
        leak(self._connection)

    # -- waiting ------------------------------------------------------------------------------------------------

    def _wait(self, request: _Request, answered: threading.Lock, scope: CancelScope | None) -> None:
        if scope is None:
            answered.acquire()
            return
        unsubscribe = scope.subscribe(lambda: self._withdraw(request))
        try:
            remaining = scope.remaining()
            if remaining is not None and not answered.acquire(timeout=remaining):
                self._withdraw(request, timed_out=True)
                answered.acquire()
            elif remaining is None:
                answered.acquire()
        finally:
            unsubscribe()

    def _withdraw(self, request: _Request, *, timed_out: bool = False) -> None:
        """Withdraw a request whose work has not begun; otherwise wait for its outcome."""
        with self._mutex:
            if request not in self._waiting:
                return
            self._waiting.remove(request)
        request.error = OperationCancelledError(
            "the call was cancelled before its work began", timed_out=timed_out
        )
        request.answer()

    # -- leading ------------------------------------------------------------------------------------------------

    def _lead(self, first: _Request) -> None:
        group = self._group = [first]
        self._is_committed = self._is_refused = False
        try:
            self._leader = threading.get_ident()
            self._commit_group(group)
        except apsw.BusyError as error:
            self._fail(group, translate(error, self._path))
            self._fail_overdue(error)
        except apsw.Error as error:
            self._fail(group, _forked_inside() if self._is_disowned else translate(error, self._path))
        except BaseException as error:
            self._abandon()
            if self._is_committed:
                first.error = error  # an interruption hits its own thread alone; the others were served
            else:
                self._fail(group, error)
        finally:
            self._dismiss(first, group[1:])

    def _dismiss(self, first: _Request, others: Sequence[_Request]) -> None:
        """Pass the lead on and answer all followers, even if interrupted (Ctrl-C): none may wait for ever."""
        try:
            self._hand_over(first)
            for request in others:
                request.answer()
        except BaseException:
            self._dismiss(first, others)  # what was done already is not done again
            raise

    def _abandon(self) -> None:
        """Roll back and release the write lock, unless that was done already."""
        with contextlib.suppress(apsw.Error):
            self._end()

    def _commit_group(self, group: list[_Request]) -> None:
        first = group[0]
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
            self._commit()
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
        self._recent = (len(group), self._recent[0])
        if news and self.notify is not None:
            self.notify()
        if self.on_commit is not None:
            changes = [change for each in transactions for change in each.changes]
            if changes:
                self.on_commit(changes)

    def _commit(self) -> None:
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
        if scope is not None and (remaining := scope.remaining()) is not None:
            deadline = min(deadline, time.monotonic() + remaining)
        if self._write_lock is not None:
            self._write_lock.acquire(deadline, scope)
        if scope is not None:
            scope.check()
        self._lock(deadline, scope)
        if self._files is not None:
            self._files.check()

    def _lock(self, deadline: float, scope: CancelScope | None) -> None:
        """Begin the transaction: only this keeps other writers out."""
        while True:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                if scope is not None:
                    scope.check()
                if time.monotonic() >= deadline:
                    raise
            else:
                return

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

    def _gather(self, group: list[_Request], transactions: list[SqliteTransaction]) -> None:
        expected = max(self._recent)
        deadline = time.monotonic() + GATHERING_TIME
        while len(group) < LARGEST_GROUP:
            request = self._next(group, expected - len(group), deadline)
            if request is None:
                return
            is_validated = not self._distrusts_work and isinstance(request.work, ValidatesFirst)
            tx = self._run_validated(request) if is_validated else self._run_guarded(request)
            if tx is not None:
                transactions.append(tx)

    def _next(self, group: list[_Request], missing: int, deadline: float) -> _Request | None:
        """Move a waiting request into the group; wait for one only while the group is smaller than recent ones.

        It joins the group before it leaves the queue, so that it is answered even after an interruption.
        """
        while True:
            with self._mutex:
                if self._waiting:
                    request = self._waiting[0]
                    if request.alone:
                        return None
                    group.append(request)
                    del self._waiting[0]
                    return request
                self._arrived.clear()
            patience = deadline - time.monotonic()
            if missing <= 0 or patience <= 0 or not self._arrived.wait(patience):
                return None

    def _run_guarded(self, request: _Request) -> SqliteTransaction | None:
        tx = self._transaction()
        self._cursor.execute("SAVEPOINT call")
        try:
            request.result = request.work(tx)
        except apsw.Error as error:
            request.error = translate(error, self._path)
        except Exception as error:  # the caller's own, to be raised on its thread
            request.error = error
        if request.error is None:
            self._cursor.execute("RELEASE call")
            return tx
        if not self._connection.in_transaction:
            # SQLite has rolled back everything (disk full, I/O error): nothing of the group is stored.
            raise BackendError(str(request.error), retryable=True)
        self._cache.facts.clear()
        self._cursor.execute("ROLLBACK TO call")
        self._cursor.execute("RELEASE call")
        return None

    def _run_validated(self, request: _Request) -> SqliteTransaction | None:
        """Run work that leaves nothing behind when it is refused, without a SAVEPOINT.

        Inside one SQLite keeps a copy of every page before it is changed, in pieces of a kilobyte, and walks through all of
        them after each statement: for a claim of a thousand jobs that was a sixth of the total time.
        A fault undoes the whole group. If it is not the disk's, work is guarded from then on, so that a damaged row that
        is met repeatedly does not fail other calls each time.
        """
        tx = self._transaction()
        try:
            request.result = request.work(tx)
        except apsw.Error as error:
            request.error = translate(error, self._path)
        except Exception as error:  # the caller's own, to be raised on its thread
            request.error = error
            if isinstance(error, PenstockError) and not isinstance(error, BackendError):
                return None
            self._distrusts_work = True
        else:
            return tx
        raise BackendError(f"nothing was stored, because of another call: {request.error}", retryable=True)

    def _transaction(self) -> SqliteTransaction:
        return SqliteTransaction(self._cursor, self._now(), self._cache, self.on_commit is not None)

    def _fail(self, group: list[_Request], error: BaseException) -> None:
        """Fail a group of which nothing was committed."""
        first, *others = group
        first.error = error
        with self._mutex:
            for request in others:
                # Also of one that was refused: the reason may be a change by another call of the group, which is undone.
                request.error = _for_another(error)
                if request in self._waiting:  # interrupted between joining the group and leaving the queue
                    self._waiting.remove(request)

    def _fail_overdue(self, error: apsw.BusyError) -> None:
        """Fail the requests whose deadline has passed, too: each would only wait in vain once more."""
        now = time.monotonic()
        with self._mutex:
            overdue = [request for request in self._waiting if request.deadline <= now]
            for request in overdue:
                self._waiting.remove(request)
        for request in overdue:
            request.error = translate(error, self._path)
            request.answer()

    def _hand_over(self, request: _Request) -> None:
        """If this request leads, make the next one in the queue the leader."""
        with self._mutex:
            if not request.leads:
                return
            if self._waiting:
                successor = self._waiting[0]
                successor.leads = True
                self._leader = -1  # until it has taken over
                successor.answer()  # it goes on when the mutex is free
                if self._waiting and self._waiting[0] is successor:
                    del self._waiting[0]
            else:
                self._leader = None
                self._idle.notify_all()
            request.leads = False  # last: until here, an interruption makes it be done again


def leak(connection: apsw.Connection) -> None:
    """Keep a connection from ever being closed, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _nothing(_: Transaction) -> None:
    pass


def _deny(*_: object) -> int:
    return apsw.SQLITE_DENY


def _forked_inside() -> BackendError:
    return BackendError(
        "this process was forked inside a transaction of the store, which stays with its parent; "
        "open a store of its own in the child"
    )


def _inside(what: str) -> BackendError:
    return BackendError(
        f"a store cannot be {what} from within its own transaction, "
        "for example by a listener or an iterator passed to enqueue_jobs"
    )


def _for_another(error: BaseException) -> BackendError:
    """Return the error for a call that shared a transaction with the one that met `error`.

    One object per thread, because a raised exception collects the traceback of its thread.
    """
    if isinstance(error, BackendError):
        return BackendError(str(error), retryable=error.retryable)
    return BackendError("the shared transaction was interrupted; try again", retryable=True)
