"""What a store can be told when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from penstock.backends.base import Retention
from penstock.errors import InvalidArgumentError, shown
from penstock.policy import duration

__all__ = ["StoreOptions", "read_options"]

MEBIBYTE = 1_048_576


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options every store has.

    Attributes:
        max_payload: bytes a payload, result or checkpoint may have; 1 MiB, at most 16 MiB.
        idempotency_window: how long an idempotency key stays taken, from submission.
        max_pending: more waiting jobs raise QueueFullError; None is no limit.
        retention: when `maintain` removes ended jobs; None is never.
        liveness: a process whose last beat is older has lost its jobs.
    """

    max_payload: int = MEBIBYTE
    idempotency_window: timedelta = timedelta(hours=24)
    max_pending: int | None = None
    retention: Retention | None = Retention()
    liveness: timedelta = timedelta(seconds=15)


def read_options(
    given: Mapping[str, Any], also: Mapping[str, Any] | None = None
) -> tuple[StoreOptions, dict[str, Any]]:
    """Return the common options and those a store has of its own, or raise naming all problems at once.

    Args:
        given: what the caller passed.
        also: the store's own options with their defaults.
    """
    problems: list[str] = []
    own = dict(also or {})
    common: dict[str, Any] = {}
    for name, value in given.items():
        if name in own:
            own[name] = value
        elif name in _READERS:
            try:
                common[name] = _READERS[name](name, value)
            except InvalidArgumentError as error:
                problems.append(str(error))
        else:
            known = ", ".join(sorted({*_READERS, *own}))
            problems.append(f"unknown option {name!r} (known: {known})")
    if problems:
        raise InvalidArgumentError("; ".join(problems), field="options", value=sorted(given))
    return StoreOptions(**common), own


def _max_payload(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 16 * MEBIBYTE:
        raise InvalidArgumentError(
            f"{name} must be a whole number of bytes from 1 to {16 * MEBIBYTE}, got {shown(value)}"
        )
    return value


def _max_pending(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidArgumentError(f"{name} must be a whole number of at least 1 or None, got {shown(value)}")
    return value


def _positive_duration(name: str, value: Any) -> timedelta:
    return duration(value, name, positive=True)


def _retention(name: str, value: Any) -> Retention | None:
    if value is None or isinstance(value, Retention):
        return value
    if isinstance(value, timedelta | int | float):
        span = duration(value, name, positive=True)
        return Retention(completed=span, other=span)
    raise InvalidArgumentError(f"{name} must be a Retention, a duration or None, got {shown(value)}")


_READERS = {
    "max_payload": _max_payload,
    "idempotency_window": _positive_duration,
    "max_pending": _max_pending,
    "retention": _retention,
    "liveness": _positive_duration,
}
