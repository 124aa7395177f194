"""The messages between a supervisor and its warden: one per packet, with descriptors beside it."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from penstock.isolation.limits import Grace, Limits

__all__ = [
    "MAX_PACKET",
    "MAX_PER_PACKET",
    "Broken",
    "Close",
    "End",
    "Ended",
    "FromWarden",
    "Launch",
    "Locate",
    "Located",
    "NotStarted",
    "Order",
    "Overdue",
    "Ready",
    "Signal",
    "ToWarden",
]

MAX_PACKET: Final = 65536
#: Jobs in one packet: the kernel passes at most 253 descriptors with one, and a job has two.
MAX_PER_PACKET: Final = 100


class _Packet(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message on a control socket."""


class Order(msgspec.Struct, frozen=True, array_like=True):
    """One job to start: its `Limits` and `Grace`, field by field, since decoding those would check them again."""

    number: int
    memory: int | None
    processes: int | None
    files: int | None
    seconds: float | None
    notice: float
    term: float

    @classmethod
    def none(cls, number: int) -> Order:
        """The order of a process that has no job yet."""
        return cls(number, None, None, None, None, 0.0, 0.0)

    @classmethod
    def of(cls, number: int, limits: Limits, grace: Grace) -> Order:
        return cls(
            number, limits.memory, limits.processes, limits.files, limits.seconds, grace.notice, grace.term
        )


class Launch(_Packet, frozen=True, tag=1):
    """Start processes, and assign jobs to some of those that exist then.

    Attributes:
        fresh: the numbers of the processes to start; with the packet come channel and output of each, in this order.
        orders: the jobs that processes, fresh ones or others, find in their channels.
    """

    fresh: list[int]
    orders: list[Order]


class Signal(_Packet, frozen=True, tag=2):
    """Send a signal to a job's process group."""

    number: int
    signal: int


class End(_Packet, frozen=True, tag=3):
    """End a job: SIGTERM after `notice` seconds, SIGKILL after `term` more. The notice was given."""

    number: int
    notice: float
    term: float


class Close(_Packet, frozen=True, tag=4):
    """Kill all jobs and exit."""


class Locate(_Packet, frozen=True, tag=11):
    """Ask for the pid of a running job. It is seldom needed, so it is not sent for every job."""

    number: int


class Ready(_Packet, frozen=True, tag=5):
    """The template has imported its setup."""

    hazards: list[str]


class Broken(_Packet, frozen=True, tag=6):
    """The template cannot import its setup."""

    text: str


class Located(_Packet, frozen=True, tag=7):
    """The pid of a job's process."""

    number: int
    pid: int


class NotStarted(_Packet, frozen=True, tag=8):
    """A job could not be started."""

    number: int
    text: str


class Overdue(_Packet, frozen=True, tag=9):
    """A job has used up its time and is being ended; the supervisor, which has its channel, sends it a notice."""

    number: int


class Ended(_Packet, frozen=True, tag=10):
    """A job's process was waited for, and nothing of it is left."""

    number: int
    pid: int
    status: int
    reason: str
    is_clean: bool
    left: int
    max_rss: int


ToWarden: TypeAlias = Launch | Signal | End | Close | Locate
FromWarden: TypeAlias = Ready | Broken | Located | NotStarted | Overdue | Ended
