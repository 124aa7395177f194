"""Storing single plain jobs, those of several threads together.

A caller that is alone stores its job itself, at once. While it does, others line up; when it is done, the first of them
stores all that have come. So under load one statement and one flush serve many callers, and nobody hands work to another
thread for nothing. While batches are shared, whoever leads waits a moment (at most 0.2 ms) until as many have come as
the last two batches held; else clients would fall into two groups that take turns.
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

__all__ = ["Gatherer"]

_MOST: Final = 200
_MOMENT: Final = 0.0002
_GLANCE: Final = 0.00005


class _State(Enum):
    WAITING = 0
    TAKEN = 1
    LEADING = 2
    DONE = 3


class _Place:
    """One caller in the line, asleep on `wake` until its state says that it may go on."""

    __slots__ = ("error", "job", "state", "wake")

    def __init__(self, job: Job, state: _State) -> None:
        self.job = job
        self.state = state
        self.error: BaseException | None = None
        self.wake = threading.Lock()
        self.wake.acquire()

    def rouse(self) -> None:
        with contextlib.suppress(RuntimeError):  # somebody else has just done so
            self.wake.release()


class Gatherer:
    """The line of callers, for one store of one process.

    Args:
        store: stores jobs together; returns for each None or why it was refused. What it raises concerns all.
    """

    def __init__(self, store: Callable[[Sequence[Job]], Sequence[BaseException | None]]) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        """Begin anew: at first, and in a forked child."""
        self._lock = threading.Lock()
        self._line: list[_Place] = []
        self._is_led = False
        self._last_sizes = (1, 1)

    def add(self, job: Job) -> None:
        """Store a job; raises what speaks against it."""
        with self._lock:
            place = _Place(job, _State.WAITING if self._is_led else _State.LEADING)
            if self._is_led:
                self._line.append(place)
            self._is_led = True
        if place.state is not _State.LEADING:
            try:
                self._await_turn(place, current_scope())
            except BaseException:
                self._leave(place)
                raise
        if place.state is _State.LEADING:
            self._lead(place)
        if place.error is not None:
            raise place.error

    def _await_turn(self, place: _Place, scope: CancelScope | None) -> None:
        """Sleep until the job is stored, or it falls to this caller to lead; a scope may withdraw it before."""
        if scope is None:
            place.wake.acquire()
            return
        unsubscribe = scope.subscribe(place.rouse)
        try:
            while True:
                left = scope.remaining()
                place.wake.acquire(
                    timeout=-1 if left is None or place.state is _State.TAKEN else max(left, 0.001)
                )
                with self._lock:
                    if place.state in {_State.LEADING, _State.DONE}:
                        return
                    if place.state is _State.WAITING and scope.cancelled:
                        self._line.remove(place)
                        scope.check()
        finally:
            unsubscribe()

    def _leave(self, place: _Place) -> None:
        """Go without an answer (Ctrl-C): nobody must wait for this caller to lead."""
        with self._lock:
            if place in self._line:
                self._line.remove(place)
            is_leading = place.state is _State.LEADING
        if is_leading:
            self._hand_over(())

    def _lead(self, place: _Place) -> None:
        """Store the own job and those in line, then hand over."""
        self._wait_a_moment()
        with self._lock:
            others, self._line = self._line[: _MOST - 1], self._line[_MOST - 1 :]
            for other in others:
                other.state = _State.TAKEN
        batch = [place, *others]
        try:
            errors = self._store([each.job for each in batch])
            for each, error in zip(batch, errors, strict=True):
                each.error = error
        except Exception as error:
            place.error = error
            for other in others:
                other.error = copy.copy(error)
        except BaseException:
            for other in others:
                other.error = BackendError(
                    "the thread that stored the job was interrupted", outcome_unknown=True
                )
            raise
        finally:
            self._hand_over(others)

    def _wait_a_moment(self) -> None:
        if self._last_sizes[-1] == 1:
            return
        wanted = sum(self._last_sizes)
        until = time.monotonic() + _MOMENT
        while len(self._line) + 1 < wanted and time.monotonic() < until:
            time.sleep(_GLANCE)

    def _hand_over(self, served: Sequence[_Place]) -> None:
        with self._lock:
            self._last_sizes = (self._last_sizes[-1], len(served) + 1)
            for each in served:
                each.state = _State.DONE
            heir = self._line.pop(0) if self._line else None
            if heir is None:
                self._is_led = False
            else:
                heir.state = _State.LEADING
        for each in served:
            each.rouse()
        if heir is not None:
            heir.rouse()
