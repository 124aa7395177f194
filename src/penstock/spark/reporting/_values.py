"""Formatting of moments and numbers in a report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["moment", "number", "with_gaps"]


def moment(micros: int | None) -> str | None:
    """Return a moment as text: to the minute if it is a whole minute, else to the second."""
    if micros is None:
        return None
    precision = "minutes" if micros % 60_000_000 == 0 else "seconds"
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(tzinfo=None).isoformat(timespec=precision)


def number(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)


def with_gaps(series: dict[str, list[Any]], step: float) -> dict[str, list[Any]]:
    """Return a time series with an empty point in every gap, so that no line is drawn across it.

    Args:
        series: lists of equal length: `time`, `n`, and others, which are None at the empty points.
        step: seconds between adjacent points.
    """
    times = [datetime.fromisoformat(text) for text in series["time"]]
    found: dict[str, list[Any]] = {name: [] for name in series}
    for place, time in enumerate(times):
        if place and time - times[place - 1] > timedelta(seconds=step):
            after = times[place - 1] + timedelta(seconds=step)
            micros = int(after.replace(tzinfo=UTC).timestamp()) * 1_000_000
            empty = {"time": moment(micros), "n": 0}
            for name, values in found.items():
                values.append(empty.get(name))
        for name, values in series.items():
            found[name].append(values[place])
    return found
