"""Group commit: calls from many threads share one transaction and one flush.

    thread A  ──► leads: BEGIN, its own work ─┬─ work of B ─┬─ work of C ─┬─ COMMIT ──► answers A, B and C
    thread B  ──► waits ──────────────────────┘             │             │
    thread C  ──► waits ────────────────────────────────────┘             └─ D, who came later, leads the next

Whoever finds nobody at work leads, on its own thread: a call alone pays for no hand-over. Those who come meanwhile wait;
the leader runs their work too, in a SAVEPOINT if it may be refused halfway, so that it undoes nobody else's. Only while
recent commits were shared does the leader wait for the rest, at most 0.2 ms: without that, eight callers fall into two
groups of four. Nobody is answered before the commit. If the commit fails, everybody in it is told so and nothing was changed.

A call whose cancel scope ends before its turn is withdrawn; once its work has begun, it waits and gets the true outcome.
A thread that is interrupted (Ctrl-C) leaves its place in the queue, so that nobody waits for it.
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

from penstock.backends._store import BeforeCommit, HandedOut, Outright, Transaction
from penstock.backends._submission import PlainSubmission
from penstock.backends.base import Change
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.counters import Tally, fold_counters
from penstock.backends.sqlite.faults import translate
from penstock.backends.sqlite.files import StoreFiles
from penstock.backends.sqlite.memory import WriterMemory
from penstock.backends.sqlite.transaction import SqliteTransaction
from penstock.backends.sqlite.turns import Turns
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


class WriterRetiredError(Exception):
    """The writer was closed before the call reached it."""


class _Request:
    """One call: its work, and the place where its outcome is left."""

    __slots__ = ("alone", "answered", "deadline", "error", "leads", "result", "scope", "work")

    def __init__(
        self, work: Callable[[Transaction], Any], alone: bool, deadline: float, scope: CancelScope | None
    ) -> None:
        self.work = work
        self.alone = alone
        self.deadline = deadline  # for its turn to come
        self.scope = scope
        self.answered: threading.Lock | None = None  # made for those who wait
        self.leads = False
        self.result: Any = None
        self.error: BaseException | None = None

    def answer(self) -> None:
        """Wake the caller; once is enough, more often does no harm."""
        if self.answered is not None:
            with contextlib.suppress(RuntimeError):
                self.answered.release()


class _Bell:
    """Wakes one who waits. A bare lock: quicker than an Event, and nothing in it can be interrupted half-way."""

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
        turns: Turns | None,
        *,
        path: str,
        now: Callable[[], int],
        timeout: float,
    ) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._turns = turns
        self._path = path
        self._now = now
        self._timeout = timeout
        self._mutex = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._arrived = _Bell()
        self._leader: int | None = None
        self._group: list[_Request] = []  # those whom the leader serves
        self._idle = threading.Condition(self._mutex)
        self._recent = (1, 1)
        self._is_wary = False
        self._journaled = 0  # here, since the last fold
        self._tally: Tally | None = None  # what was journaled by anybody since then; None: ask the journal
        self._memory = WriterMemory()
        self._closings = 0  # how many are closing it, for good or for a fork
        self._is_committed = False
        self._is_disowned = False
        self._foreign_version: int | None = None
        self.on_commit: Callable[[Sequence[Change]], None] | None = None
        self.before_commit: BeforeCommit | None = None
        self.nudge: Callable[[], None] | None = None
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
        """Lead if nobody does, else queue up."""
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
        """Go without an answer: whoever is interrupted must not be waited for as the next leader."""
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
        """Whether others have committed since the last call. SQLite tells by a number that our commits do not change.

        None while calls of this process are under way: then the answer waits for the next look.
        """
        look = _Request(_nothing, True, 0.0, None)
        try:
            with self._mutex:
                if self._leader is not None or self._closings:
                    return None
                look.leads = True
                self._leader = -1
            ((version,),) = fetch(self._cursor, "PRAGMA data_version")
        except apsw.Error:
            return True
        finally:
            self._hand_over(look)
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
        """Take a request back whose work has not begun; otherwise its outcome is awaited."""
        with self._mutex:
            if request not in self._waiting:
                return
            self._waiting.remove(request)
        request.error = OperationCancelledError(
            "the call was cancelled before its turn came", timed_out=timed_out
        )
        request.answer()

    # -- leading ------------------------------------------------------------------------------------------------

    def _lead(self, first: _Request) -> None:
        group = self._group = [first]
        self._is_committed = False
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
        """Hand over and answer everybody, to the end: an interruption (Ctrl-C) must leave nobody waiting for ever."""
        try:
            self._hand_over(first)
            for request in others:
                request.answer()
        except BaseException:
            self._dismiss(first, others)  # what was done already is not done again
            raise

    def _abandon(self) -> None:
        """Leave no transaction and no turn behind; done already, unless that was interrupted."""
        with contextlib.suppress(apsw.Error):
            self._end()

    def _commit_group(self, group: list[_Request]) -> None:
        first = group[0]
        committing = False
        handed_out: HandedOut | None = None
        try:
            self._begin(first.deadline, first.scope)
            if self._memory.facts.check(self._connection):
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
            committing = True
            self._cursor.execute("COMMIT")
            self._memory.facts.keep(self._connection)
        finally:
            self._is_committed = committing and not self._connection.in_transaction
            try:
                self._end()
            finally:
                if handed_out is not None:
                    handed_out(self._is_committed)
        self._journaled, self._tally = journaled, tally
        self._recent = (len(group), self._recent[0])
        if news and self.nudge is not None:
            self.nudge()
        if self.on_commit is not None:
            changes = [change for each in transactions for change in each.changes]
            if changes:
                self.on_commit(changes)

    def _hand_out(self, transactions: list[SqliteTransaction]) -> HandedOut | None:
        """Let those who wait here take what is about to be committed, so that it costs no commit of its own.

        A fault of theirs is not the fault of those who commit: then they find the jobs afterwards, as ever.
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
            self._memory.facts.clear()
            self._cursor.execute("ROLLBACK TO handing_out")
            handed_out = None
        self._cursor.execute("RELEASE handing_out")
        if handed_out is not None:
            transactions.append(tx)
        return handed_out

    def _news(self, transactions: list[SqliteTransaction]) -> tuple[int, Tally | None]:
        """Return how much was journaled now, and all that was since the last fold, if that is known."""
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
        if self._turns is not None:
            self._turns.acquire(deadline, scope)
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
        """Undo what was not committed, and let the next process write."""
        if self._is_disowned:
            return
        try:
            if self._connection.in_transaction:
                self._memory.facts.clear()
                self._cursor.execute("ROLLBACK")
        finally:
            if self._turns is not None:
                self._turns.release()

    def _gather(self, group: list[_Request], transactions: list[SqliteTransaction]) -> None:
        expected = max(self._recent)
        deadline = time.monotonic() + GATHERING_TIME
        while len(group) < LARGEST_GROUP:
            request = self._next(group, expected - len(group), deadline)
            if request is None:
                return
            is_outright = not self._is_wary and isinstance(request.work, PlainSubmission | Outright)
            tx = self._run_outright(request) if is_outright else self._run_guarded(request)
            if tx is not None:
                transactions.append(tx)

    def _next(self, group: list[_Request], missing: int, deadline: float) -> _Request | None:
        """Add a waiting request to the group; wait for one only while as many as lately shared a commit have not come.

        It joins the group before it leaves the line: whatever interrupts this, somebody answers it.
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
            # SQLite has rolled back everything (disk full, I/O error): nobody in the group has been served.
            raise BackendError(str(request.error), retryable=True)
        self._memory.facts.clear()
        self._cursor.execute("ROLLBACK TO call")
        self._cursor.execute("RELEASE call")
        return None

    def _run_outright(self, request: _Request) -> SqliteTransaction | None:
        """Run work that leaves nothing behind when it is refused, without a SAVEPOINT.

        Inside one SQLite keeps a copy of every page before it is changed, in pieces of a kilobyte, and walks through all of
        them after each statement: for a claim of a thousand jobs that was a sixth of all the time there is.
        A fault undoes the whole group. If it is not the disk's, work is guarded from then on, so that a damaged row that
        is met again and again does not trouble others each time.
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
            self._is_wary = True
        else:
            return tx
        raise BackendError(f"nothing was stored, because of another call: {request.error}", retryable=True)

    def _transaction(self) -> SqliteTransaction:
        return SqliteTransaction(self._cursor, self._now(), self._memory, self.on_commit is not None)

    def _fail(self, group: list[_Request], error: BaseException) -> None:
        """Tell a group that nothing of it was committed."""
        first, *others = group
        first.error = error
        with self._mutex:
            for request in others:
                if request.error is None:
                    request.error = _for_another(error)
                if request in self._waiting:  # interrupted between joining the group and leaving the line
                    self._waiting.remove(request)

    def _fail_overdue(self, error: apsw.BusyError) -> None:
        """Tell those who have waited as long as the leader; each would only wait in vain once more."""
        now = time.monotonic()
        with self._mutex:
            overdue = [request for request in self._waiting if request.deadline <= now]
            for request in overdue:
                self._waiting.remove(request)
        for request in overdue:
            request.error = translate(error, self._path)
            request.answer()

    def _hand_over(self, request: _Request) -> None:
        """If this request leads, let the next one in line do so."""
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
    """Return what a call is told that shared a transaction with the one that met `error`.

    One object a thread: a raised exception collects the traceback of whoever raises it.
    """
    if isinstance(error, BackendError):
        return BackendError(str(error), retryable=error.retryable)
    return BackendError("the shared transaction was interrupted; try again", retryable=True)
