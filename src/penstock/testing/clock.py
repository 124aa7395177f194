"""A clock that moves only when a test advances it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from penstock.errors import invalid

__all__ = ["ManualClock"]

_START = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """A clock for tests: `now()` changes only through `advance` and `set`. Safe to share between threads."""

    def __init__(self, start: datetime | None = None) -> None:
        self._lock = threading.Lock()
        self._now = _START if start is None else _utc(start)

    def now(self) -> datetime:
        """Return the time it was last set to."""
        with self._lock:
            return self._now

    def advance(self, by: float | timedelta) -> datetime:
        """Move by seconds or a timedelta (backwards if negative) and return the new time."""
        span = by if isinstance(by, timedelta) else timedelta(seconds=by)
        with self._lock:
            self._now += span
            return self._now

    def set(self, moment: datetime) -> None:
        """Jump to an aware datetime."""
        moment = _utc(moment)
        with self._lock:
            self._now = moment

    def __repr__(self) -> str:
        return f"ManualClock({self.now().isoformat()})"


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise invalid("moment", "an aware datetime", moment)
    return moment.astimezone(UTC)
