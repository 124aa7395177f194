"""Clocks: any object with `now()` returning an aware datetime is one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

__all__ = ["Clock", "SystemClock", "from_micros", "to_micros"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@runtime_checkable
class Clock(Protocol):
    """Any object whose `now()` returns an aware datetime."""

    def now(self) -> datetime: ...


class SystemClock:
    """The host's wall clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def to_micros(moment: datetime) -> int:
    """Return an aware datetime as integer microseconds since 1970."""
    return (moment - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return integer microseconds since 1970 as an aware UTC datetime."""
    # Exact: up to the year 2255 a float holds microseconds since 1970 without loss.
    return datetime.fromtimestamp(micros / 1_000_000, UTC)
