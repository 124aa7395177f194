"""Values as they are typed, converted to those of the library; an error names the field."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import typer

from penstock.durations import duration, parse_duration
from penstock.errors import InvalidArgumentError, invalid, shown
from penstock.job import Priority
from penstock.payloads.json import encode_json

__all__ = [
    "Ids",
    "Tags",
    "as_duration",
    "as_moment",
    "as_payload",
    "as_priority",
    "as_seconds",
    "as_time",
    "listed",
    "read_ids",
    "read_input",
]

#: Larger than the payload limit of every store, so that the error names the store's limit.
MAX_INPUT: Final = 64 * 1_048_576

Ids: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="The jobs. The beginning of an id is enough if it is unique. - reads whole ids from stdin, one per line.",
        show_default=False,
    ),
]
Tags: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tags",
        "-t",
        metavar="TAG",
        help="Jobs that have all of these tags. Use a,b or repeat the option.",
        show_default=False,
    ),
]


def listed(values: Iterable[str] | None) -> list[str]:
    """Return the values of an option that was given as a,b or repeated."""
    return [part for value in values or () for part in value.split(",") if part]


def as_duration(value: str | float, field: str) -> timedelta:
    """Read 90, 90s, 1.5h, 1h30m, 250ms, 7d; a number alone is seconds."""
    return parse_duration(str(value), field, unit="s")


def as_seconds(value: str | float, field: str, *, low: float = 0.0, high: float = math.inf) -> float:
    """Read a duration within bounds as seconds."""
    seconds = duration(as_duration(value, field), field).total_seconds()
    if not low <= seconds <= high:
        bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise invalid(field, f"{bounds} seconds", value)
    return seconds


def as_moment(text: str, field: str) -> datetime:
    """Read an ISO 8601 time with its zone."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise invalid(field, "an ISO 8601 time with its zone, such as 2026-11-16T14:30:00Z", text)
    return moment


def as_time(text: str, field: str, now: datetime) -> datetime:
    """Read an ISO 8601 time, UTC unless it has a zone, or an age: 90m, 2h, 7d."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is not None:
        return moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)
    try:
        return now - as_duration(text, field)
    except (InvalidArgumentError, OverflowError):
        raise invalid(
            field,
            "an ISO 8601 time, such as 2026-11-16 or 2026-11-16T14:30:00Z, or an age, such as 90m or 7d",
            text,
        ) from None


def as_priority(text: str | int) -> Priority:
    """Read 0 to 4, or critical, high, normal, low, bulk."""
    if isinstance(text, str):
        names = {each.name.lower(): each for each in Priority}
        found = names.get(text.strip().lower())
        if found is not None:
            return found
        text = int(text) if text.strip().isdecimal() else text
    if type(text) is int and text in set(Priority):
        return Priority(text)
    raise invalid("priority", "0 to 4, or critical, high, normal, low or bulk", text)


def as_payload(data: bytes, field: str = "payload") -> bytes:
    """Return JSON as it is stored; empty if the data is blank.

    Raises:
        InvalidArgumentError: it is not JSON, or no store can keep it.
    """
    if not data.strip():
        return b""
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{field} is not JSON: {error}; got {shown(data[:200].decode(errors='replace'))}", field=field
        ) from None
    return encode_json(value, field)


def read_input(path: str | Path, field: str, *, max_bytes: int | None = MAX_INPUT) -> bytes:
    """Return the bytes of a file, or of stdin for "-", up to a number of them; None is no limit."""
    wanted = -1 if max_bytes is None else max_bytes + 1
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(wanted)
        else:
            with Path(path).open("rb") as file:
                data = file.read(wanted)
    except OSError as error:
        raise InvalidArgumentError(
            f"{field}: {path} cannot be read: {error.strerror}", field=field, value=str(path)
        ) from error
    if max_bytes is not None and len(data) > max_bytes:
        raise InvalidArgumentError(
            f"{field}: {path} has more than {max_bytes} bytes", field=field, value=str(path)
        )
    return data


def read_ids(ids: list[str] | None) -> tuple[list[str], list[str]]:
    """Return the typed ids, and those on stdin if "-" was typed; each without repeats."""
    typed = [each for each in ids or () if each != "-"]
    piped: list[str] = []
    if len(typed) < len(ids or ()):
        lines = read_input("-", "ids", max_bytes=None).decode(errors="replace").splitlines()
        piped = [line.strip() for line in lines if line.strip()]
    return list(dict.fromkeys(typed)), list(dict.fromkeys(piped))
