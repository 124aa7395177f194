"""Durations as callers write them: a timedelta, a number of seconds, or text such as "1h30m"."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeAlias

from penstock.errors import invalid

__all__ = ["MAX_DURATION", "Duration", "duration", "parse_duration"]

#: The types that every duration argument accepts.
Duration: TypeAlias = timedelta | float | str

MAX_DURATION: Final = timedelta(days=3650)

#: Seconds per unit, the longest unit first, which is the order in which text must name them.
_UNITS: Final = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_ALIASES: Final = {"min": "m"}
_PART: Final = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(ms|min|[wdhms]|(?=\s*$))\s*")
_LONGEST_TEXT: Final = 100


def duration(value: object, field: str, *, positive: bool = False) -> timedelta:
    """Return `value` (a timedelta, a number of seconds, or text such as "5m") as a timedelta within limits.

    Raises:
        InvalidArgumentError: not a duration, negative (or zero when `positive`), not finite, over ten years.
    """
    span = value if isinstance(value, timedelta) else _from_number_or_text(value, field)
    if span > MAX_DURATION:
        raise invalid(field, f"at most {MAX_DURATION.days} days", value)
    if span < timedelta(0) or (positive and span == timedelta(0)):
        bound = "more than" if positive else "at least"
        raise invalid(field, f"{bound} 0", value)
    return span


def parse_duration(text: str, field: str, *, unit: str | None = None) -> timedelta:
    """Read "90s", "5m", "1h30m", "1.5h", "250ms", "2d" or "1w".

    Args:
        text: numbers, each with its unit.
        field: the argument's name, for the error.
        unit: what a number alone is in; None refuses it.

    Raises:
        InvalidArgumentError: anything else, also units that repeat or stand in another order than w, d, h, m, s, ms.
    """
    seconds, place, last_unit = 0.0, 0, -1
    order = list(_UNITS)
    while match := _PART.match(text, place) if len(text) <= _LONGEST_TEXT else None:
        name = _ALIASES.get(match[2], match[2]) or (unit if place == 0 else None)
        if name is None or order.index(name) <= last_unit:
            break
        seconds, place, last_unit = seconds + float(match[1]) * _UNITS[name], match.end(), order.index(name)
        if place == len(text):
            return _span(seconds)
    raise invalid(field, 'a duration such as "90s", "5m", "1h30m", "1.5h", "250ms" or "2d"', text)


def _from_number_or_text(value: object, field: str) -> timedelta:
    if isinstance(value, str):
        return parse_duration(value, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or _is_not_finite(value):
        raise invalid(field, 'a timedelta, a finite number of seconds or text such as "5m" or "1h30m"', value)
    return _span(value)


def _is_not_finite(value: float) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _span(seconds: float) -> timedelta:
    """Return seconds as a timedelta; what is beyond its range becomes its bound, which the limits refuse."""
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return timedelta.max if seconds > 0 else timedelta.min
