"""Values as text: safe to print on a terminal, and in units that people read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["clean", "counted", "first_line", "iso_time", "rough_span", "shortened", "span", "utc_time"]

MAX_TEXT: Final = 2_000
_UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def clean(text: object, *, keep_lines: bool = False) -> str:
    """Return text with control characters, escape sequences and direction marks escaped.

    Args:
        text: any object; its `str` is used.
        keep_lines: leave line breaks and tabs as they are.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    kept = "\n\t" if keep_lines else ""
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in shown)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 job", "2 jobs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_line(text: str | None) -> str:
    """Return the first line of a text, such as an error message with a traceback."""
    return (text or "").partition("\n")[0]


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """Return text cut after `limit` characters, with the number of missing ones."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} more characters)"


def iso_time(moment: datetime | None) -> str | None:
    """Return a time for programs: 2026-11-16T14:42:00.000000Z."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def utc_time(moment: datetime | None) -> str | None:
    """Return a time for people: 2026-11-16 14:42:00Z."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float | timedelta | None) -> str | None:
    """Return a duration in the unit that suits it: 12 ms, 3.4 s, 5 min 2 s, 2 h 3 min, 4 d 1 h."""
    if seconds is None:
        return None
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value < 1:
        return f"{sign}{value * 1000:.{0 if value >= 0.01 else 1}f} ms"
    if value < 60:
        return f"{sign}{value:.1f} s"
    whole = round(value)
    for size, unit, smaller_size, smaller in _UNITS:
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{sign}{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{sign}{whole} s"


def rough_span(time: timedelta) -> str:
    """Return a duration in its largest unit alone, for narrow columns: 5 min."""
    return " ".join((span(max(time, timedelta())) or "").split()[:2])
