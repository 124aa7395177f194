"""How moments and numbers stand in a report."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["moment", "number"]


def moment(micros: int | None) -> str | None:
    """Return a moment as text, to the minute if it is a whole one, else to the second."""
    if micros is None:
        return None
    precision = "minutes" if micros % 60_000_000 == 0 else "seconds"
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(tzinfo=None).isoformat(timespec=precision)


def number(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)
