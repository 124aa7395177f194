"""Group commit: calls from many threads share one transaction and one flush.

    thread A  ──► leads: BEGIN, its own work ─┬─ work of B ─┬─ work of C ─┬─ COMMIT ──► answers A, B and C
    thread B  ──► waits ──────────────────────┘             │             │
    thread C  ──► waits ────────────────────────────────────┘             └─ D, who came later, leads the next

Whoever finds nobody at work leads, on its own thread: a call alone pays for no hand-over. Those who come meanwhile wait;
the leader runs their work too, each in a SAVEPOINT, so that a refused one undoes nobody else's. Only while recent commits
were shared does the leader wait for the rest, at most 0.2 ms: without that, eight callers fall into two groups of four.
Nobody is answered before the commit. If the commit fails, everybody in it is told so and nothing was changed.

A call whose cancel scope ends before its turn is withdrawn; once its work has begun, it waits and gets the true outcome.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import apsw

from penstock.backends._store import Transaction
from penstock.backends.base import Change
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.counters import fold_counters
from penstock.backends.sqlite.faults import translate
from penstock.backends.sqlite.transaction import SqliteTransaction, SubmissionCache
from penstock.backends.sqlite.turns import Turns
from penstock.errors import BackendError, OperationCancelledError
from penstock.scope import current_scope

__all__ = ["Writer", "WriterRetiredError"]

T = TypeVar("T")

GATHERING_TIME: Final = 0.0002
LARGEST_GROUP: Final = 512
FOLD_AT: Final = 2_000


class WriterRetiredError(Exception):
    """The writer was closed before the call reached it."""


class _Request:
    """One call: its work, and the place where its outcome is left."""

    __slots__ = ("alone", "answered", "error", "leads", "result", "started", "work")

    def __init__(self, work: Callable[[Transaction], Any], *, alone: bool) -> None:
        self.work = work
        self.alone = alone
        self.answered: threading.Lock | None = None  # made for those who wait
        self.started = False
        self.leads = False
        self.result: Any = None
        self.error: BaseException | None = None

    def answer(self) -> None:
        """Wake the caller."""
        if self.answered is not None:
            self.answered.release()


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
        self._arrived = threading.Semaphore(0)
        self._leader: int | None = None
        self._idle = threading.Condition(self._mutex)
        self._recent = (1, 1)
        self._journaled = 0
        self._cache = SubmissionCache()
        self._closed = False
        self._foreign_version: int | None = None
        self.on_commit: Callable[[Sequence[Change]], None] | None = None

    def run(self, work: Callable[[Transaction], T], *, alone: bool = False) -> T:
        """Run `work` in a transaction, maybe a shared one, and return its result once it is durable."""
        scope = current_scope()
        if scope is not None:
            scope.check()
        request = _Request(work, alone=alone)
        with self._mutex:
            if self._closed:
                raise WriterRetiredError
            if self._leader is None:
                self._leader = -1  # taken; the thread is named when it begins
                leads = True
            elif self._leader == threading.get_ident():
                raise BackendError(
                    "a store cannot be written to from within its own transaction, "
                    "for example by an iterator passed to enqueue_jobs"
                )
            else:
                request.answered = threading.Lock()
                request.answered.acquire()
                self._waiting.append(request)
                self._arrived.release()
                leads = False
        if request.answered is not None:
            self._wait(request, request.answered)
            leads = request.leads
        if leads:
            self._leader = threading.get_ident()
            self._lead(request)
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[no-any-return]  # what `work` returned

    def has_foreign_changes(self) -> bool:
        """Whether others have committed since the last call. SQLite tells by a number that our commits do not change.

        While calls of this process are under way the answer waits for the next look.
        """
        with self._mutex:
            if self._leader is not None or self._closed:
                return False
            self._leader = -1
        try:
            ((version,),) = fetch(self._cursor, "PRAGMA data_version")
        except apsw.Error:
            return True
        finally:
            self._hand_over()
        seen, self._foreign_version = self._foreign_version, version
        return bool(seen != version)

    def is_led_here(self) -> bool:
        """Whether this very thread is inside a transaction."""
        return self._leader == threading.get_ident()

    def close(self) -> None:
        """Take no new calls, let those under way finish, close the connection."""
        with self._mutex:
            self._closed = True
            while self._leader is not None:
                self._idle.wait()
        self._connection.close()

    # -- waiting ------------------------------------------------------------------------------------------------

    def _wait(self, request: _Request, answered: threading.Lock) -> None:
        scope = current_scope()
        if scope is None:
            answered.acquire()
            return
        unsubscribe = scope.subscribe(lambda: self._withdraw(request))
        try:
            remaining = scope.remaining()
            if remaining is not None and not answered.acquire(timeout=remaining):
                self._withdraw(request)
                answered.acquire()
            elif remaining is None:
                answered.acquire()
        finally:
            unsubscribe()

    def _withdraw(self, request: _Request) -> None:
        """Take a request back whose work has not begun; otherwise its outcome is awaited."""
        with self._mutex:
            if request not in self._waiting:
                return
            self._waiting.remove(request)
        request.error = OperationCancelledError("the call was cancelled before its turn came")
        request.answer()

    # -- leading ------------------------------------------------------------------------------------------------

    def _lead(self, first: _Request) -> None:
        group = [first]
        try:
            self._commit_group(group)
        except apsw.Error as error:
            self._fail(group, translate(error, self._path))
        except BaseException as error:
            self._fail(group, error)
        finally:
            self._hand_over()
            for request in group[1:]:
                request.answer()

    def _commit_group(self, group: list[_Request]) -> None:
        first = group[0]
        self._begin()
        self._cache.clear()
        try:
            transactions = [self._run_first(first)]
            if not first.alone:
                self._gather(group, transactions)
            journaled = self._journaled + sum(each.journaled for each in transactions)
            if journaled >= FOLD_AT:
                fold_counters(self._cursor)
                journaled = 0
            self._cursor.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            if self._turns is not None:
                self._turns.release()
        self._journaled = journaled
        self._recent = (len(group), self._recent[0])
        if self.on_commit is not None:
            changes = [change for each in transactions for change in each.changes]
            if changes:
                self.on_commit(changes)

    def _begin(self) -> None:
        if self._turns is not None:
            scope = current_scope()
            remaining = None if scope is None else scope.remaining()
            patience = self._timeout if remaining is None else min(self._timeout, remaining)
            if not self._turns.acquire(patience):
                if scope is not None:
                    scope.check()
                raise apsw.BusyError("another process did not finish writing in time")
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
        except BaseException:
            if self._turns is not None:
                self._turns.release()
            raise

    def _run_first(self, request: _Request) -> SqliteTransaction:
        """Run the leader's own work. If it fails there is nothing else in the transaction yet."""
        request.started = True
        tx = self._transaction()
        request.result = request.work(tx)
        return tx

    def _gather(self, group: list[_Request], transactions: list[SqliteTransaction]) -> None:
        expected = max(self._recent)
        if expected == 1 and not self._waiting:
            return
        deadline = time.monotonic() + GATHERING_TIME
        while len(group) < LARGEST_GROUP:
            request = self._next(expected - len(group), deadline)
            if request is None:
                return
            group.append(request)
            tx = self._run_guarded(request)
            if tx is not None:
                transactions.append(tx)

    def _next(self, missing: int, deadline: float) -> _Request | None:
        """Return a waiting request; wait for one only while as many as lately shared a commit have not come."""
        while True:
            with self._mutex:
                if self._waiting and not self._waiting[0].alone:
                    request = self._waiting.popleft()
                    request.started = True
                    return request
                if self._waiting:
                    return None
            patience = deadline - time.monotonic()
            if missing <= 0 or patience <= 0 or not self._arrived.acquire(timeout=patience):
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
        self._cache.clear()
        self._cursor.execute("ROLLBACK TO call")
        self._cursor.execute("RELEASE call")
        return None

    def _transaction(self) -> SqliteTransaction:
        return SqliteTransaction(
            self._cursor, self._now(), self._cache, wants_changes=self.on_commit is not None
        )

    def _fail(self, group: list[_Request], error: BaseException) -> None:
        """Tell a group that nothing of it was committed."""
        first, *others = group
        first.error = error
        for request in others:
            if request.error is None:
                request.error = (
                    error
                    if isinstance(error, BackendError)
                    else BackendError("the shared transaction was interrupted; try again", retryable=True)
                )

    def _hand_over(self) -> None:
        """Let the next one in line lead, if there is one."""
        successor: _Request | None = None
        with self._mutex:
            if self._waiting:
                successor = self._waiting.popleft()
                successor.leads = successor.started = True
                self._leader = -1  # until it has taken over
            else:
                self._leader = None
                if self._closed:
                    self._idle.notify_all()
        if successor is not None:
            successor.answer()
