"""The options of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.backends.contract.values import Retention
from penstock.clock import Clock
from penstock.durations import duration
from penstock.errors import InvalidArgumentError, invalid

__all__ = ["StoreOptions", "boolean", "read_options", "seconds"]

MEBIBYTE = 1_048_576
_MAX_SECONDS = timedelta(hours=1)


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options every store has.

    Attributes:
        max_payload: bytes a payload, result or checkpoint may have; 1 MiB, at most 16 MiB.
        idempotency_window: how long an idempotency key stays taken, from submission.
        max_pending: more waiting jobs raise QueueFullError; None is no limit.
        retention: when `maintain` removes ended jobs; None is never.
        max_depth: how many unfinished jobs may wait for each other in a row; 100, at most 10,000.
        liveness: the jobs of a process whose last heartbeat is older are reclaimed.
    """

    max_payload: int = MEBIBYTE
    idempotency_window: timedelta = timedelta(hours=24)
    max_pending: int | None = None
    retention: Retention | None = Retention()
    max_depth: int = 100
    liveness: timedelta = timedelta(seconds=15)


def read_options(
    given: Mapping[str, Any],
    also: Mapping[str, Any] | None = None,
    readers: Mapping[str, Callable[[str, Any], Any]] | None = None,
    *,
    clock: Clock | None = None,
) -> tuple[StoreOptions, dict[str, Any]]:
    """Return the common options and those a store has of its own, or raise naming all problems at once.

    Args:
        given: what the caller passed.
        also: the store's own options with their defaults.
        readers: checks of the store's own options, so that their problems are named with the others.
        clock: checked with them.
    """
    wrong: list[InvalidArgumentError] = []
    if clock is not None:
        try:
            _check_clock(clock)
        except InvalidArgumentError as error:
            wrong.append(error)
    own = dict(also or {})
    common: dict[str, Any] = {}
    for name, value in given.items():
        known_reader = (readers or {}).get(name) or _READERS.get(name)
        if known_reader is not None:
            try:
                (own if name in own else common)[name] = known_reader(name, value)
            except InvalidArgumentError as error:
                wrong.append(error)
        elif name in own:
            own[name] = value
        else:
            known = ", ".join(sorted({*_READERS, *own}))
            wrong.append(InvalidArgumentError(f"unknown option {name!r} (known: {known})"))
    if wrong:
        if len(wrong) == 1 and wrong[0].field in ("clock", "schema"):
            raise wrong[0]
        raise InvalidArgumentError("; ".join(map(str, wrong)), field="options", value=sorted(given))
    return StoreOptions(**common), own


def _check_clock(clock: Clock) -> None:
    if not callable(getattr(clock, "now", None)):
        raise invalid("clock", "an object with now()", clock)
    now = clock.now()
    if not isinstance(now, datetime) or now.utcoffset() is None:
        raise invalid("clock", "an object whose now() returns an aware datetime", now)


def _max_payload(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 16 * MEBIBYTE:
        raise invalid(name, f"a whole number of bytes from 1 to {16 * MEBIBYTE}", value)
    return value


def _max_depth(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 10_000:
        raise invalid(name, "a whole number from 1 to 10000", value)
    return value


def _max_pending(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise invalid(name, "a whole number of at least 1 or None", value)
    return value


def _positive_duration(name: str, value: Any) -> timedelta:
    return duration(value, name, positive=True)


def _retention(name: str, value: Any) -> Retention | None:
    if value is None or isinstance(value, Retention):
        return value
    if isinstance(value, timedelta | int | float | str):
        span = duration(value, name, positive=True)
        return Retention(completed=span, other=span)
    if isinstance(value, Mapping) and value.keys() <= set(Retention.__struct_fields__):
        return Retention(**value)
    expected = "a duration, a mapping of completed and other to durations, a Retention or None"
    raise invalid(name, expected, value)


def seconds(name: str, value: Any) -> float:
    """Read a store's own option that is a duration of at most an hour."""
    span = duration(value, name, positive=True)
    if span > _MAX_SECONDS:
        raise invalid(name, f"a duration of at most {_MAX_SECONDS}", value)
    return span.total_seconds()


def boolean(name: str, value: Any) -> bool:
    """Read a store's own option that is true or false."""
    if type(value) is not bool:
        raise invalid(name, "True or False", value)
    return value


_READERS = {
    "max_payload": _max_payload,
    "idempotency_window": _positive_duration,
    "max_pending": _max_pending,
    "max_depth": _max_depth,
    "retention": _retention,
    "liveness": _positive_duration,
}
