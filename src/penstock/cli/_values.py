"""What people type, as what the library takes; whatever cannot be understood is refused by its field's name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import typer

from penstock._json import encode_json
from penstock.errors import InvalidArgumentError, shown
from penstock.job import Priority

__all__ = [
    "Ids",
    "Tags",
    "as_duration",
    "as_moment",
    "as_payload",
    "as_priority",
    "listed",
    "read_ids",
    "read_input",
]

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|min|m|h|d|w)?")
#: More than any store takes as a payload, so that the store's own limit is what is named.
MOST_INPUT: Final = 64 * 1_048_576

Ids: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="The jobs; - reads ids from stdin, one a line.", show_default=False),
]
Tags: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tags",
        "-t",
        metavar="TAG",
        help="Only jobs that have all of these; a,b or repeated.",
        show_default=False,
    ),
]


def listed(values: Iterable[str] | None) -> list[str]:
    """Return what was given as a,b or repeated."""
    return [part for value in values or () for part in value.split(",") if part]


def as_duration(text: str, field: str) -> timedelta:
    """Read 90, 90s, 1.5h, 250ms, 30m, 7d; a number alone is seconds."""
    match = _DURATION.fullmatch(text.strip())
    try:
        if match is not None:
            return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
    except OverflowError:
        pass
    raise InvalidArgumentError(
        f"{field} must be a number with ms, s, m, h, d or w, such as 90d, got {shown(text)}",
        field=field,
        value=text,
    )


def as_moment(text: str, field: str) -> datetime:
    """Read an ISO 8601 time with its zone."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise InvalidArgumentError(
            f"{field} must be an ISO 8601 time with its zone, such as 2026-11-16T14:30:00Z, got {shown(text)}",
            field=field,
            value=text,
        )
    return moment


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
    raise InvalidArgumentError(
        f"priority must be 0 to 4, or critical, high, normal, low or bulk, got {shown(text)}",
        field="priority",
        value=text,
    )


def as_payload(data: bytes, field: str = "payload") -> bytes:
    """Return JSON as it is stored, once it is known to be JSON that both stores can keep; nothing is nothing."""
    if not data.strip():
        return b""
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{field} is not JSON: {error}; got {shown(data[:200].decode(errors='replace'))}", field=field
        ) from None
    return encode_json(value, field)


def read_input(path: str | Path, field: str, *, most: int | None = MOST_INPUT) -> bytes:
    """Return what a file holds, or stdin for "-"; `most` bytes, None for any number."""
    wanted = -1 if most is None else most + 1
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
    if most is not None and len(data) > most:
        raise InvalidArgumentError(
            f"{field}: {path} has more than {most} bytes", field=field, value=str(path)
        )
    return data


def read_ids(ids: list[str] | None) -> list[str]:
    """Return ids without repeats; "-" stands for those on stdin."""
    found: list[str] = []
    for each in ids or ():
        if each == "-":
            lines = read_input("-", "ids", most=None).decode(errors="replace").splitlines()
            found += [line.strip() for line in lines if line.strip()]
        else:
            found.append(each)
    return list(dict.fromkeys(found))
