"""Ambient cancellation: every call made inside a `cancel_scope` honours it.

    with penstock.cancel_scope(timeout=2.0) as scope:
        backend.enqueue_job(job)        # OperationCancelledError once the time is over
        ...
    scope.cancel()                      # from any thread

Scopes nest; an inner call obeys all of them. The current scope travels in a context variable, so it follows
`asyncio` tasks and `contextvars.copy_context()`, but not threads started by hand.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from penstock.durations import Duration, parse_duration
from penstock.errors import OperationCancelledError, invalid

__all__ = ["CancelScope", "cancel_scope", "checkpoint", "current_scope"]

#: Half of what locks accept, in seconds.
LONGEST_WAIT: Final = threading.TIMEOUT_MAX / 2

_current: contextvars.ContextVar[CancelScope | None] = contextvars.ContextVar("penstock_scope", default=None)


class CancelScope:
    """A block of calls that can be cancelled together, by hand or by time."""

    def __init__(self, timeout: Duration | None = None) -> None:
        self._seconds = _seconds(timeout)
        self._deadline: float | None = None
        self._cancelled = False
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._parent: CancelScope | None = None
        self._token: contextvars.Token[CancelScope | None] | None = None

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError("a cancel scope can be entered only once at a time")
        self._parent = _current.get()
        if self._seconds is not None:
            self._deadline = time.monotonic() + self._seconds
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None

    def cancel(self) -> None:
        """Cancel every call that runs in this scope, from any thread. Idempotent."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    @property
    def cancelled(self) -> bool:
        """Whether this scope, or one around it, was cancelled or has run out of time."""
        return self._verdict() is not None

    def remaining(self) -> float | None:
        """Seconds until the nearest deadline of this scope and those around it; None without one.

        Never more than a lock can wait for.
        """
        left: float | None = None
        scope: CancelScope | None = self
        while scope is not None:
            if scope._deadline is not None:
                own = scope._deadline - time.monotonic()
                left = own if left is None else min(left, own)
            scope = scope._parent
        return None if left is None else min(max(0.0, left), LONGEST_WAIT)

    def check(self) -> None:
        """Raise OperationCancelledError if a call may not go on."""
        verdict = self._verdict()
        if verdict is not None:
            raise verdict

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when this scope or one around it is cancelled by hand.

        Called at once if that has already happened. Returns a function that ends the subscription.
        A deadline calls no callback: a caller that waits bounds its wait by `remaining()`.
        """
        handle = object()
        scopes: list[CancelScope] = []
        scope: CancelScope | None = self
        already = False
        while scope is not None:
            with scope._lock:
                already = already or scope._cancelled
                scope._callbacks[handle] = callback
            scopes.append(scope)
            scope = scope._parent
        if already:
            callback()

        def unsubscribe() -> None:
            for each in scopes:
                with each._lock:
                    each._callbacks.pop(handle, None)

        return unsubscribe

    def _verdict(self) -> OperationCancelledError | None:
        scope: CancelScope | None = self
        while scope is not None:
            if scope._cancelled:
                return OperationCancelledError()
            if scope._deadline is not None and time.monotonic() >= scope._deadline:
                return OperationCancelledError(
                    f"the time limit of {scope._seconds:g} s is over", timed_out=True
                )
            scope = scope._parent
        return None


def cancel_scope(timeout: Duration | None = None) -> CancelScope:
    """Return a context manager whose calls can be cancelled, and end by themselves after `timeout` seconds.

    Args:
        timeout: seconds or a timedelta; zero means already over; None means no time limit.
    """
    return CancelScope(timeout)


def current_scope() -> CancelScope | None:
    """Return the scope that calls made here obey, or None."""
    return _current.get()


@contextmanager
def shielded() -> Iterator[None]:
    """Run a block that no scope cancels, because the change it belongs to is committed already."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def checkpoint() -> None:
    """Raise OperationCancelledError if the ambient scope is cancelled or expired."""
    scope = _current.get()
    if scope is not None:
        scope.check()


def _seconds(timeout: Duration | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, str):
        timeout = parse_duration(timeout, "timeout")
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise invalid(
            "timeout", 'a number of seconds of at least 0, a timedelta, text such as "5m" or None', timeout
        )
    try:
        return float(timeout)
    except OverflowError:  # an integer beyond any clock
        return math.inf
