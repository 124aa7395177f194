"""The one loop in which calls are tried again: what an error means, how often and when to repeat, what to raise.

| fault      | what happened                                 | tried again                                               |
| ---------- | --------------------------------------------- | --------------------------------------------------------- |
| TRANSIENT  | a deadlock or a serialisation failure         | after a short pause, 20 times                             |
| DISCONNECT | there is no connection, or it broke           | after a longer pause, until the time of the call is over  |
| READ_ONLY  | the server refuses to write                   | once, because after a failover the url may lead elsewhere |
| UNKNOWN    | the outcome of a commit is not known yet      | after a longer pause, until the time is over              |
| REFUSED    | everything else                               | never                                                     |

An attempt says by FailedAttemptError that it took no effect, or that repeating it is harmless. What else it raises ends
the call, with one exception: once an attempt may have taken effect (`unknown`), only a later attempt can tell, and a call
that ends without its answer raises BackendError with `outcome_unknown`, also if it was cancelled or the store was closed.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from math import inf
from typing import Final, TypeVar

import psycopg

from penstock.backends.engine.outage import Outage
from penstock.backends.postgres import faults
from penstock.backends.postgres.faults import Fault
from penstock.errors import BackendError, OperationCancelledError, QueueClosedError
from penstock.scope import CancelScope, current_scope

__all__ = ["FailedAttemptError", "Patience", "Retries"]

T = TypeVar("T")

_MAX_RETRIES: Final = {
    Fault.TRANSIENT: 20,
    Fault.DISCONNECT: inf,
    Fault.READ_ONLY: 1,
    Fault.UNKNOWN: inf,
    Fault.REFUSED: 0,
}
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 1.0


class Patience:
    """How long one call may take: the store's timeout, or less if the ambient cancel scope ends sooner."""

    def __init__(self, seconds: float, *, obeys_scope: bool = True) -> None:
        self.scope: CancelScope | None = current_scope() if obeys_scope else None
        self._until = time.monotonic() + seconds
        self._pauses = 0

    def check(self) -> None:
        if self.scope is not None:
            self.scope.check()

    def is_over(self) -> bool:
        """Whether the scope has ended."""
        return self.scope is not None and self.scope.cancelled

    def left(self) -> float:
        """Seconds left, also of the scope."""
        left = self._until - time.monotonic()
        if self.scope is not None:
            rest = self.scope.remaining()
            if rest is not None:
                left = min(left, rest)
        return max(0.0, left)

    def until(self) -> float:
        """The moment (monotonic) at which the server has taken too long."""
        return self._until

    def within(self, seconds: float | None) -> Patience:
        """Return the patience for a part of the call that may take so long, at most."""
        part = copy.copy(self)
        if seconds is not None:
            part._until = min(self._until, time.monotonic() + seconds)  # noqa: SLF001  # of the same class
        return part

    def pause(self, *, short: bool) -> bool:
        """Wait a little, longer each time and never in step with others; False if the time is over."""
        self.check()
        self._pauses += 1
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._pauses) / (8 if short else 1)
        wait = longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        if wait >= self.left():
            self.check()
            return False
        time.sleep(wait)
        self.check()
        return True


class FailedAttemptError(Exception):
    """An attempt failed and took no effect, or may be repeated although it did.

    Args:
        cause: the driver's error.
        fault: what it means, if that is not what the error itself says.
        is_last: whether the attempt cannot be repeated, for example because it has begun to read an iterator.
    """

    def __init__(self, cause: psycopg.Error, fault: Fault | None = None, *, is_last: bool = False) -> None:
        self.cause = cause
        self.fault = faults.classify(cause) if fault is None else fault
        self.is_last = is_last
        super().__init__(str(cause))


class Retries:
    """The attempts of one call.

    Args:
        patience: how long the call may take.
        outage: tells whether the log already says that the server cannot be reached.
        on_lost: called when a connection was lost, because the idle ones are probably lost too.
        unknown: see below.

    Attributes:
        unknown: the error that hides whether an attempt took effect; None while every failed attempt took none.
    """

    def __init__(
        self,
        patience: Patience,
        outage: Outage,
        on_lost: Callable[[], None] = lambda: None,
        *,
        unknown: psycopg.Error | None = None,
    ) -> None:
        self._patience = patience
        self._outage = outage
        self._on_lost = on_lost
        self._failures: dict[Fault, int] = {}
        self.unknown = unknown

    def run(self, attempt: Callable[[], T]) -> T:
        """Attempt something until it succeeds; raise what the module's table says if it does not."""
        try:
            while True:
                try:
                    return attempt()
                except FailedAttemptError as failed:
                    if not self._pause_after(failed):
                        raise self._translated(failed) from failed.cause
        except (BackendError, OperationCancelledError, QueueClosedError):
            if self.unknown is None:
                raise
            raise self._outage.annotate(faults.lost_at_commit(self.unknown)) from self.unknown

    def _pause_after(self, failed: FailedAttemptError) -> bool:
        """Wait until the next attempt; return False if there is none."""
        fault = failed.fault
        failures = self._failures[fault] = self._failures.get(fault, 0) + 1
        if fault is Fault.DISCONNECT or fault is Fault.READ_ONLY:
            self._on_lost()
        if failed.is_last or failures > _MAX_RETRIES[fault]:
            return False
        return self._patience.pause(short=fault is Fault.TRANSIENT)

    def _translated(self, failed: FailedAttemptError) -> BackendError:
        """Return the error of the call; raise OperationCancelledError if the server ended the statement for the scope."""
        if failed.cause.sqlstate == faults.CANCELLED:
            self._patience.check()
        failure = faults.translate(failed.cause)
        return self._outage.annotate(failure) if failed.fault is Fault.DISCONNECT else failure
