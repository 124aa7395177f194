"""The limits of a job's process, and the grace with which it is ended."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.errors import invalid
from penstock.isolation.output import DEFAULT_LIMIT

__all__ = ["Grace", "Limits", "decode_limits", "encode_limits"]

MEBIBYTE: Final = 1024 * 1024
#: The largest number that a system call accepts.
MOST: Final = 2**63 - 1


class Limits(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The limits of one job; None sets no limit.

    Attributes:
        memory: bytes the job's process may allocate beyond what it starts with (at least 1 MiB). Allocation beyond it
            fails, which Python shows as MemoryError; a tree of processes that together hold more is killed.
        processes: processes the job may have at a time, its own included. More: the job is killed.
        files: descriptors its process may have open.
        seconds: how long it may run; then it is ended with `grace`, whatever its supervisor does meanwhile.
        output: bytes of output that are kept; the middle of more is left out.
    """

    memory: int | None = None
    processes: int | None = None
    files: int | None = None
    seconds: float | None = None
    output: int = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        for field, least in (("memory", MEBIBYTE), ("processes", 1), ("files", 16), ("output", 0)):
            value = getattr(self, field)
            if value is None and field != "output":
                continue
            if type(value) is not int or not least <= value <= MOST:
                raise invalid(field, f"an integer from {least} to {MOST}", value)
        _check_seconds("seconds", self.seconds, may_be_none=True)


def encode_limits(limits: Limits) -> bytes:
    """Return those limits that a process sets itself, as it finds them in its channel; empty if there are none."""
    if limits.memory is None and limits.files is None:
        return b""
    return msgspec.msgpack.encode((limits.memory, limits.files))


def decode_limits(data: bytes) -> tuple[int | None, int | None]:
    """Return the limits of memory and files."""
    return msgspec.msgpack.decode(data, type=tuple[int | None, int | None])


class Grace(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a process is ended: notice, SIGTERM to its group after `notice` seconds, SIGKILL after `term` more.

    SIGKILL goes to everything below the process, whatever its session. Zero leaves a step no time.
    """

    notice: float = 5.0
    term: float = 5.0

    def __post_init__(self) -> None:
        _check_seconds("notice", self.notice)
        _check_seconds("term", self.term)


def _check_seconds(field: str, value: object, *, may_be_none: bool = False) -> None:
    if value is None and may_be_none:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf"):  # type: ignore[operator]  # a number
        raise invalid(field, "a finite number of seconds of at least 0", value)
