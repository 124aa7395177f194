"""Group commit of single plain jobs: the jobs of several threads share one statement and one flush.

A caller without company stores its job at once, on its own thread. Calls that arrive meanwhile queue up as followers;
then the first of them becomes the leader and stores them all. Under load a leader waits briefly (at most 0.2 ms) for as
many callers as the last two groups had; otherwise the clients would split into two alternating groups.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from penstock.errors import BackendError
from penstock.job import Job
from penstock.scope import CancelScope, current_scope

__all__ = ["GroupCommit"]

_MAX_GROUP: Final = 200
_GATHER_SECONDS: Final = 0.0002
_POLL_SECONDS: Final = 0.00005


class _State(Enum):
    WAITING = 0
    TAKEN = 1
    LEADING = 2
    DONE = 3


class _Call:
    """One call, blocked on `wake` until it is stored or becomes the leader."""

    __slots__ = ("error", "job", "moment", "state", "wake")

    def __init__(self, job: Job, state: _State) -> None:
        self.job = job
        self.state = state
        self.error: BaseException | None = None
        self.moment: int | None = None
        self.wake = threading.Lock()
        self.wake.acquire()

    def notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # already notified
            self.wake.release()


class GroupCommit:
    """Groups the calls of all threads on one store object.

    Args:
        store: stores jobs together; returns per job the error, or the time at which it was stored, None if unknown. An
            error that it raises concerns the whole group.
    """

    def __init__(self, store: Callable[[Sequence[Job]], Sequence[BaseException | int | None]]) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        """Set the initial state: at first, and in a forked child."""
        self._lock = threading.Lock()
        self._followers: list[_Call] = []
        self._has_leader = False
        self._last_sizes = (1, 1)

    def add(self, job: Job) -> int | None:
        """Store a job and return the time of that, None if unknown; raise the error if it was refused."""
        with self._lock:
            call = _Call(job, _State.WAITING if self._has_leader else _State.LEADING)
            if self._has_leader:
                self._followers.append(call)
            self._has_leader = True
        if call.state is not _State.LEADING:
            try:
                self._follow(call, current_scope())
            except BaseException:
                self._leave(call)
                raise
        if call.state is _State.LEADING:
            self._lead(call)
        if call.error is not None:
            raise call.error
        return call.moment

    def _follow(self, call: _Call, scope: CancelScope | None) -> None:
        """Wait until the job is stored or this call becomes the leader; a cancelled scope withdraws it before that."""
        if scope is None:
            call.wake.acquire()
            return
        unsubscribe = scope.subscribe(call.notify)
        try:
            while True:
                left = scope.remaining()
                call.wake.acquire(
                    timeout=-1 if left is None or call.state is _State.TAKEN else max(left, 0.001)
                )
                with self._lock:
                    if call.state in {_State.LEADING, _State.DONE}:
                        return
                    if call.state is _State.WAITING and scope.cancelled:
                        self._followers.remove(call)
                        scope.check()
        finally:
            unsubscribe()

    def _leave(self, call: _Call) -> None:
        """Withdraw an interrupted call (Ctrl-C); if it was to lead, the next call does."""
        with self._lock:
            if call in self._followers:
                self._followers.remove(call)
            is_leading = call.state is _State.LEADING
        if is_leading:
            self._pass_lead(())

    def _lead(self, call: _Call) -> None:
        """Store the own job and those of the followers, then pass the lead on."""
        self._wait_for_followers()
        with self._lock:
            others, self._followers = self._followers[: _MAX_GROUP - 1], self._followers[_MAX_GROUP - 1 :]
            for other in others:
                other.state = _State.TAKEN
        batch = [call, *others]
        try:
            outcomes = self._store([each.job for each in batch])
            for each, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    each.error = outcome
                else:
                    each.moment = outcome
        except Exception as error:
            call.error = error
            for other in others:
                other.error = copy.copy(error)
        except BaseException:
            for other in others:
                other.error = BackendError(
                    "the thread that stored the job was interrupted", outcome_unknown=True
                )
            raise
        finally:
            self._pass_lead(others)

    def _wait_for_followers(self) -> None:
        if self._last_sizes[-1] == 1:
            return
        wanted = sum(self._last_sizes)
        until = time.monotonic() + _GATHER_SECONDS
        while len(self._followers) + 1 < wanted and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def _pass_lead(self, served: Sequence[_Call]) -> None:
        with self._lock:
            self._last_sizes = (self._last_sizes[-1], len(served) + 1)
            for each in served:
                each.state = _State.DONE
            successor = self._followers.pop(0) if self._followers else None
            if successor is None:
                self._has_leader = False
            else:
                successor.state = _State.LEADING
        for each in served:
            each.notify()
        if successor is not None:
            successor.notify()
