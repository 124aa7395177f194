"""Retry policies, timeouts and the two errors handlers raise to classify a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from penstock._lazy import random
from penstock.durations import Duration, duration
from penstock.errors import InvalidArgumentError, invalid, shown

__all__ = [
    "DEFAULT_RETRY",
    "DEFAULT_TIMEOUTS",
    "FailureCategory",
    "PermanentError",
    "RetryPolicy",
    "TemporaryError",
    "Timeouts",
    "register_backoff",
]

logger = logging.getLogger("penstock")

MAX_ATTEMPTS_LIMIT = 1_000_000
MAX_BACKOFF_NAME = 100


class FailureCategory(StrEnum):
    """The reason for a failed attempt; exactly one per failure.

    Attributes:
        TEMPORARY: a retry may succeed; retried.
        PERMANENT: no retry can succeed; the job ends FAILED.
        TIMEOUT: the attempt took too long; retried.
        CANCELLED: the job was cancelled; it ends STOPPED.
        SYSTEM: the process died, or memory was short; retried.
    """

    TEMPORARY = "temporary"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    SYSTEM = "system"


RETRIABLE = (FailureCategory.TEMPORARY, FailureCategory.TIMEOUT, FailureCategory.SYSTEM)

BackoffFunction = Callable[[int, timedelta, timedelta], timedelta]
_backoffs: dict[str, BackoffFunction] = {}
_BUILT_IN = ("constant", "linear", "exponential")


class TemporaryError(Exception):
    """Raised by a handler for a failure that a retry may cure.

    Args:
        message: what happened.
        cause: the underlying error, if any.
        retry_after: how long to wait before the next attempt, instead of the policy's delay.
        code: a short machine-readable reason.
    """

    category = FailureCategory.TEMPORARY

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        retry_after: Duration | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.retry_after = None if retry_after is None else duration(retry_after, "retry_after")
        self.code = code
        if cause is not None:
            self.__cause__ = _checked_cause(cause)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, None, self.retry_after, self.code)


def _checked_cause(cause: object) -> BaseException:
    if not isinstance(cause, BaseException):
        raise invalid("cause", "an exception or None", cause)
    return cause


class PermanentError(Exception):
    """Raised by a handler for a failure that no retry can cure.

    Args:
        message: what happened.
        cause: the underlying error, if any.
        code: a short machine-readable reason.
    """

    category = FailureCategory.PERMANENT

    def __init__(self, message: str, cause: BaseException | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.code = code
        if cause is not None:
            self.__cause__ = _checked_cause(cause)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, None, self.code)


def register_backoff(name: str, function: BackoffFunction) -> None:
    """Make `RetryPolicy(backoff=name)` use `function(n, initial_delay, max_delay) -> timedelta`.

    The store keeps the name alone. The process that reports a failure looks the function up, so every process
    that reports failures registers it; where it is missing, the exponential delay is used.
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_BACKOFF_NAME
        or not name.isprintable()
        or name in _BUILT_IN
    ):
        raise invalid(
            "name",
            f"a printable text of at most {MAX_BACKOFF_NAME} characters that names no built-in backoff",
            name,
        )
    if not callable(function):
        raise invalid("function", "a function of (n, initial_delay, max_delay)", function)
    _backoffs[name] = function


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and after which delays a failed attempt is retried.

    Durations are timedelta; seconds and text such as "5m" are accepted.

    Attributes:
        max_attempts: attempts in all, the first included; at least 1.
        backoff: "constant", "linear", "exponential", or a name given to `register_backoff`.
        initial_delay: delay before the first retry.
        max_delay: no delay is longer, jitter included.
        multiplier: factor of the exponential backoff, at least 1.
        jitter: share of the delay by which it may vary either way, 0 to 1; 0 is none, 0.1 is ±10 %.
        retry_on: the categories that are retried. PERMANENT and CANCELLED never are.
    """

    max_attempts: int = 3
    backoff: str = "exponential"
    initial_delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(hours=1)
    multiplier: float = 2.0
    jitter: float = 0.0
    retry_on: tuple[FailureCategory, ...] = RETRIABLE

    if TYPE_CHECKING:  # the fields are what is read; this is what may be given

        def __init__(
            self,
            max_attempts: int = 3,
            backoff: str = "exponential",
            initial_delay: Duration = ...,
            max_delay: Duration = ...,
            multiplier: float = 2.0,
            jitter: float = 0.0,
            retry_on: Iterable[FailureCategory | str] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        set_field = msgspec.structs.force_setattr
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MAX_ATTEMPTS_LIMIT:
            raise invalid("max_attempts", f"a whole number from 1 to {MAX_ATTEMPTS_LIMIT}", self.max_attempts)
        _check_backoff(self.backoff)
        set_field(self, "initial_delay", duration(self.initial_delay, "initial_delay"))
        set_field(self, "max_delay", duration(self.max_delay, "max_delay"))
        set_field(self, "multiplier", _number("multiplier", self.multiplier, 1.0, 1000.0))
        set_field(self, "jitter", _number("jitter", self.jitter, 0.0, 1.0))
        set_field(self, "retry_on", _retriable(self.retry_on))

    @classmethod
    def restore(cls, *, backoff: str, **fields: Any) -> RetryPolicy:
        """Rebuild a stored policy, whose custom backoff may not be registered in this process."""
        policy = cls(backoff="exponential", **fields)
        msgspec.structs.force_setattr(policy, "backoff", backoff)
        return policy

    def delay(self, failures: int, *, rng: random.Random | None = None) -> timedelta:
        """Return the delay before the retry that follows the `failures`-th counted failure (1 for the first)."""
        seconds = self._plain_delay(failures)
        if self.jitter:
            seconds *= 1.0 + self.jitter * (rng or random).uniform(-1.0, 1.0)
        return timedelta(seconds=min(max(seconds, 0.0), self.max_delay.total_seconds()))

    def allows(self, category: FailureCategory, failures: int) -> bool:
        """Whether another attempt follows after `failures` counted failures, the last of this category."""
        return category in self.retry_on and failures < self.max_attempts

    def _plain_delay(self, failures: int) -> float:
        initial = self.initial_delay.total_seconds()
        longest = self.max_delay.total_seconds()
        if self.backoff == "constant":
            return min(initial, longest)
        if self.backoff == "linear":
            return min(initial * failures, longest)
        custom = _backoffs.get(self.backoff)
        if custom is not None:
            try:
                delay = custom(failures, self.initial_delay, self.max_delay)
                return min(duration(delay, "backoff").total_seconds(), longest)
            except Exception:  # a report of failure must not be lost to a faulty backoff
                logger.exception("custom backoff %r failed; the exponential delay is used", self.backoff)
        try:
            return min(initial * self.multiplier ** (failures - 1), longest)
        except OverflowError:
            return longest


class Timeouts(msgspec.Struct, frozen=True):
    """The time limits of a job; None is unlimited.

    Durations are timedelta; seconds and text such as "5m" or "1h30m" are accepted.

    Attributes:
        execution: one attempt's run.
        visibility: how long a claim holds without a heartbeat before the job is reclaimed.
        lifetime: from submission to a final status.
    """

    execution: timedelta | None = None
    visibility: timedelta | None = None
    lifetime: timedelta | None = None

    if TYPE_CHECKING:  # the fields are what is read; this is what may be given

        def __init__(
            self,
            execution: Duration | None = None,
            visibility: Duration | None = None,
            lifetime: Duration | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in ("execution", "visibility", "lifetime"):
            value = getattr(self, name)
            if value is not None:
                msgspec.structs.force_setattr(self, name, duration(value, name, positive=True))


def _check_backoff(backoff: object) -> None:
    if callable(backoff):
        name = getattr(backoff, "__name__", "")
        name = name if name.isidentifier() else "my_backoff"
        raise InvalidArgumentError(
            "backoff must be a name, because the store keeps no functions: call"
            f' penstock.register_backoff("{name}", {name}) in every process that runs jobs,'
            f' then RetryPolicy(backoff="{name}"); got {shown(backoff)}',
            field="backoff",
            value=backoff,
        )
    if not isinstance(backoff, str) or (backoff not in _BUILT_IN and backoff not in _backoffs):
        known = ", ".join((*_BUILT_IN, *sorted(_backoffs)))
        raise invalid("backoff", f"one of {known}, or a name given to penstock.register_backoff", backoff)


def _number(field: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise invalid(field, f"a number from {low:g} to {high:g}", value)
    return float(value)


def _retriable(categories: object) -> tuple[FailureCategory, ...]:
    if isinstance(categories, str) or not isinstance(categories, tuple | list | set | frozenset):
        raise invalid("retry_on", "a sequence of failure categories", categories)
    wanted: list[FailureCategory] = []
    for item in categories:
        if not isinstance(item, str) or item not in FailureCategory.__members__.values():
            raise invalid("retry_on", "made of failure categories", item)
        category = FailureCategory(item)
        if category not in RETRIABLE:
            raise invalid(
                "retry_on", "made of temporary, timeout and system (others are never retried)", item
            )
        wanted.append(category)
    return tuple(category for category in RETRIABLE if category in wanted)


DEFAULT_RETRY = RetryPolicy()
DEFAULT_TIMEOUTS = Timeouts(
    execution=timedelta(minutes=30), visibility=timedelta(minutes=5), lifetime=timedelta(days=7)
)
