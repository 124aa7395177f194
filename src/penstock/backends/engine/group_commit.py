"""Group commit: calls from many threads share one transaction and one flush.

    thread A  ──► leads: its own work ─┬─ work of B ─┬─ work of C ─┬─ commit ──► answers A, B and C
    thread B  ──► waits ───────────────┘             │             │
    thread C  ──► waits ─────────────────────────────┘             └─ D, which came later, leads the next group

A call that finds no leader leads on its own thread, so a single call never switches threads. Calls that arrive meanwhile
wait as followers, until a leader takes them into its group or hands the lead over to the first of them. While recent groups
were shared, the leader waits at most 0.2 ms for more followers: without that, eight callers split into two groups of four.
No call returns before the commit. If the group fails, every call of it fails, each with an error object of its own.

How a group is committed is up to the store, which implements `_commit`.

A call whose cancel scope ends before a leader has taken it is withdrawn; after that it waits for the real outcome.

A thread that is interrupted (Ctrl-C) leaves the queue, and strands no other thread. Python runs a signal handler only
after a call, at the start of a function and when a loop repeats. So a step that must not be interrupted halfway is a
sequence of assignments without a call, and every other step may be repeated: `_leave` repeats those that are not done.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from penstock.errors import BackendError, OperationCancelledError, PenstockError
from penstock.scope import CancelScope, current_scope

__all__ = ["Call", "GroupCommit", "RetiredError"]

T = TypeVar("T")
W = TypeVar("W")

GATHERING_TIME: Final = 0.0002
#: The leader while its thread is not known yet.
_UNNAMED: Final = -1


class RetiredError(Exception):
    """The group commit was closed before the call reached it."""


class Call(Generic[W]):
    """One call: its work and its outcome.

    Attributes:
        work: what the store is to do.
        alone: whether its transaction is not shared.
        deadline: for its work to begin (monotonic).
        scope: the cancel scope that it was made in.
        answered: for a follower: held until the call has its outcome or is to lead.
        leads: whether it is the leader.
        group: for a leader: its own call and those of its followers.
        successor: for a leader that is done: the one that leads next.
    """

    __slots__ = (
        "alone", "answered", "deadline", "error", "group", "leads", "result", "scope", "successor", "work"
    )  # fmt: skip

    def __init__(self, work: W, alone: bool, deadline: float, scope: CancelScope | None) -> None:
        self.work = work
        self.alone = alone
        self.deadline = deadline
        self.scope = scope
        self.answered: threading.Lock | None = None
        self.leads = False
        self.group: Sequence[Call[W]] = ()
        self.successor: Call[W] | None = None
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


class GroupCommit(ABC, Generic[W]):
    """The queue of calls on one store object, and who leads.

    Args:
        timeout: seconds within which the work of a call should begin; see `_fail_overdue`.
    """

    max_group: ClassVar[int]

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._recent = (1, 1)  # sizes of the last two groups
        self._closings = 0  # how many threads are closing it
        self.reset()

    def reset(self) -> None:
        """Forget all calls: at first, and in the child of a fork, where their threads do not exist."""
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._arrived = _Bell()
        self._waiting: deque[Call[W]] = deque()
        self._leader: int | None = None  # its thread
        self._is_committed = False

    # -- what the store does ------------------------------------------------------------------------------------

    @abstractmethod
    def _commit(self, group: list[Call[W]]) -> None:
        """Do the work of the leader, and of the followers that `_followers` adds to the group, and commit.

        Called on the leader's thread. Sets `result` or `error` of the calls, then `_is_committed`. What it raises before
        that fails the whole group; after that, it is the leader's alone.
        """

    def _abandon(self) -> None:
        """Undo what a failed or interrupted `_commit` may have left undone; may be called more than once."""

    def _failure(self, error: BaseException) -> BaseException:
        """Return the error of a group whose `_commit` has raised `error`."""
        return error

    def _interrupted(self) -> BackendError:
        """Return the error of a follower whose group failed by an error that is not the store's, such as Ctrl-C."""
        return BackendError("the shared transaction was interrupted; try again", retryable=True)

    # -- one call -----------------------------------------------------------------------------------------------

    def run(self, work: W, *, alone: bool = False) -> Any:
        """Do some work, maybe in a group, and return its result once it is durable.

        Raises:
            RetiredError: it is closed.
            OperationCancelledError: the scope has ended before the work began.
        """
        scope = current_scope()
        if scope is not None:
            scope.check()
        call = Call(work, alone, time.monotonic() + self._timeout, scope)
        try:
            self._enter(call)
            if call.answered is not None:
                self._wait(call, call.answered)
            if call.leads:
                self._lead(call)
        except BaseException:
            self._leave(call)
            raise
        if call.error is not None:
            raise call.error
        return call.result

    def run_if_idle(self, action: Callable[[], T]) -> T | None:
        """Run an action while no call is under way; return None without running it if one is."""
        call: Call[Any] = Call(None, True, 0.0, None)
        try:
            with self._mutex:
                if self._leader is not None or self._closings:
                    return None
                call.leads = True
                self._leader = _UNNAMED
            found = action()
            self._hand_over(call)
        except BaseException:
            self._leave(call)
            raise
        return found

    def is_led_here(self) -> bool:
        """Whether the calling thread leads."""
        return self._leader == threading.get_ident()

    def _enter(self, call: Call[W]) -> None:
        """Become the leader if there is none, else queue up."""
        with self._mutex:
            if self._leader == threading.get_ident():
                raise _inside("written to")
            if self._closings:
                raise RetiredError
            if self._leader is None:
                call.leads = True
                self._leader = _UNNAMED
                return
            call.answered = threading.Lock()
            call.answered.acquire()
            self._waiting.append(call)
        self._arrived.ring()

    def _wait(self, call: Call[W], answered: threading.Lock) -> None:
        """Wait until the call has its outcome or is to lead; withdraw it if its scope ends before."""
        scope = call.scope
        if scope is None:
            answered.acquire()
            return
        unsubscribe = scope.subscribe(lambda: self._withdraw(call))
        try:
            remaining = scope.remaining()
            if remaining is not None and not answered.acquire(timeout=remaining):
                self._withdraw(call, timed_out=True)
                answered.acquire()
            elif remaining is None:
                answered.acquire()
        finally:
            unsubscribe()

    def _withdraw(self, call: Call[W], *, timed_out: bool = False) -> None:
        """Withdraw a call that no leader has taken yet."""
        error = OperationCancelledError("the call was cancelled before its work began", timed_out=timed_out)
        with self._mutex:
            if call in self._waiting:
                self._refuse(call, error)

    def _refuse(self, call: Call[W], error: BaseException) -> None:
        """Answer a waiting call with an error."""
        call.error = error
        try:
            self._waiting.remove(call)
        finally:
            call.answer()

    def _leave(self, call: Call[W]) -> None:
        """Withdraw an interrupted call; if it leads, fail its group and hand the lead over. May be called again."""
        try:
            with self._mutex:
                if call in self._waiting:
                    self._waiting.remove(call)
            if call.leads:
                self._fail(call, KeyboardInterrupt())
            self._hand_over(call)
        except BaseException:
            self._leave(call)
            raise

    # -- leading ------------------------------------------------------------------------------------------------

    def _lead(self, call: Call[W]) -> None:
        self._is_committed = False
        self._leader = threading.get_ident()
        group = [call]
        call.group = group
        try:
            self._commit(group)
        except BaseException as error:
            self._fail(call, error)
        else:
            self._recent = (len(group), self._recent[0])
        self._hand_over(call)

    def _followers(self, group: list[Call[W]]) -> Iterator[Call[W]]:
        """Move waiting calls into the group, one by one; wait for more only while it is smaller than recent groups.

        A call joins the group before it leaves the queue, so that it is answered even after an interruption.
        """
        expected = max(self._recent)
        deadline = time.monotonic() + GATHERING_TIME
        while len(group) < self.max_group:
            with self._mutex:
                if self._waiting:
                    call = self._waiting[0]
                    if call.alone:
                        return
                    group.append(call)
                    del self._waiting[0]
                else:
                    call = None
                    self._arrived.clear()
            if call is not None:
                yield call
                continue
            patience = deadline - time.monotonic()
            if len(group) >= expected or patience <= 0 or not self._arrived.wait(patience):
                return

    def _fail(self, first: Call[W], error: BaseException) -> None:
        """Fail a group; if it was committed, only its leader, because an interruption hits its own thread alone."""
        self._abandon()
        first.error = failure = self._failure(error)
        if self._is_committed:
            return
        with self._mutex:
            for call in first.group[1:]:
                # Also of one that was refused: the reason may be a change by another call of the group, which is undone.
                call.error = self._shared(failure)
                if call in self._waiting:  # interrupted between joining the group and leaving the queue
                    self._waiting.remove(call)

    def _fail_overdue(self, failure: BackendError) -> None:
        """Fail the calls whose deadline has passed while they waited: each would only wait in vain once more."""
        now = time.monotonic()
        with self._mutex:
            for call in [each for each in self._waiting if each.deadline <= now]:
                self._refuse(call, self._shared(failure))

    def _shared(self, failure: BaseException) -> BaseException:
        """Return the error for a call that shared the group: one object per thread, because each collects a traceback."""
        if not isinstance(failure, PenstockError):
            return self._interrupted()
        twin = copy.copy(failure)
        vars(twin).update(vars(failure))
        return twin

    def _hand_over(self, call: Call[W]) -> None:
        """If this call leads, let the next one lead; answer the followers. May be called again."""
        if call.leads:
            with self._mutex:
                # No call in here, so no interruption.
                if self._waiting:
                    successor = self._waiting[0]
                    call.successor = successor
                    successor.leads = True
                    self._leader = _UNNAMED
                    call.leads = False
                    del self._waiting[0]
                else:
                    self._leader = None
                    call.leads = False
        if call.successor is not None:
            call.successor.answer()
        elif self._closings:
            with self._mutex:
                self._idle.notify_all()
        for other in call.group[1:]:
            other.answer()

    # -- closing ------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closings > 0

    def retire(self, timeout: float | None) -> bool:
        """Take no new calls if those under way finish in time; otherwise go on as before and return False."""
        with self._mutex:
            self._closings += 1
            try:
                is_idle = self._idle.wait_for(lambda: self._leader is None, timeout)
            except BaseException:  # Ctrl-C while waiting
                self._closings -= 1
                raise
            if not is_idle:
                self._closings -= 1
        return is_idle

    def close(self) -> None:
        """Take no new calls and let those under way finish."""
        if self.is_led_here():
            raise _inside("closed")
        self.retire(None)


def _inside(what: str) -> BackendError:
    return BackendError(
        f"a store cannot be {what} from within its own transaction, "
        "for example by a listener or an iterator passed to enqueue_jobs"
    )
