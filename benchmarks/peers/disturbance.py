"""Whether other processes disturbed a run: their share of the machine's processor time while it lasted.

`/proc/stat` says how long all processors were busy; what the processes of this command used is subtracted. They are all its
descendants: it adopts those whose parent has ended, such as the PostgreSQL server. Time that the hypervisor gave to other
machines counts as that of others. Time of kernel threads does not: the flushes that are measured run there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

#: A run is repeated if others had more than this share of the machine.
LIMIT: Final = 0.10
REPEATS: Final = 2
#: Of the first line of /proc/stat: user, nice, system and steal; not idle, waiting for disks, or interrupts.
_BUSY_FIELDS: Final = (0, 1, 2, 7)
_KERNEL_THREADS: Final = 2
_ADOPT_ORPHANS: Final = 36  # PR_SET_CHILD_SUBREAPER


class Usage(NamedTuple):
    """Processor time in seconds up to a moment: all processors together, all that were busy, and our part of it."""

    total: float
    busy: float
    own: float


@dataclass(frozen=True)
class Judged(Generic[T]):
    """What a run returned.

    Attributes:
        share: the part of the machine's processor time that others had; None where it cannot be known.
        repeats: how many runs before it were disturbed and dropped.
    """

    answer: T
    share: float | None
    repeats: int
    is_disturbed: bool


def share_of_others(before: Usage, after: Usage) -> float:
    """Return the part of the processor time between two moments that other processes used, 0 to 1."""
    total = after.total - before.total
    if total <= 0:
        return 0.0
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(max(others / total, 0.0), 1.0)


def run_undisturbed(
    run: Callable[[], T],
    read: Callable[[], Usage | None],
    limit: float = LIMIT,
    repeats: int = REPEATS,
    is_final: Callable[[T], bool] = lambda _: False,
) -> Judged[T]:
    """Run until others had at most `limit` of the machine, at most `1 + repeats` times; else return the least disturbed run.

    Args:
        is_final: says of an answer that another run would not change it, such as a failure.
    """
    answers: list[tuple[float, T]] = []
    for done in range(1 + repeats):
        before = read()
        answer = run()
        after = read()
        if before is None or after is None:
            return Judged(answer, None, done, is_disturbed=False)
        share = share_of_others(before, after)
        if share <= limit or is_final(answer):
            return Judged(answer, share, done, is_disturbed=share > limit)
        answers.append((share, answer))
    share, answer = min(answers, key=lambda each: each[0])
    return Judged(answer, share, repeats, is_disturbed=True)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended (Linux)."""
    with suppress(OSError, AttributeError):  # another system, which has no /proc either
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Wait for adopted processes that have ended: only then is their time known to be ours."""
    for pid, stat in _processes().items():
        if stat.parent == os.getpid() and stat.is_zombie:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def read_usage() -> Usage | None:
    """Return the processor time so far; None on a system without /proc."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [int(field) / ticks for field in first.split()[1:9]]
    return Usage(sum(fields), sum(fields[index] for index in _BUSY_FIELDS), _own_ticks(_processes()) / ticks)


class ProcessStat(NamedTuple):
    """Of one process: its parent, the clock ticks of itself and of children that it has waited for."""

    parent: int
    ticks: int
    is_zombie: bool = False


def parse_stat(text: str) -> ProcessStat:
    """Read a line of /proc/<pid>/stat; the name in brackets may contain anything."""
    fields = text.rpartition(")")[2].split()
    return ProcessStat(int(fields[1]), sum(map(int, fields[11:15])), is_zombie=fields[0] == "Z")


def own_ticks(processes: Mapping[int, ProcessStat], root: int) -> int:
    """Return the ticks of a process and all its descendants, and of kernel threads."""
    children: dict[int, list[int]] = {}
    for pid, stat in processes.items():
        children.setdefault(stat.parent, []).append(pid)
    total, waiting = 0, [root, _KERNEL_THREADS]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        if pid in processes:
            total += processes[pid].ticks
    return total


def _own_ticks(processes: Mapping[int, ProcessStat]) -> int:
    return own_ticks(processes, os.getpid())


def _processes() -> dict[int, ProcessStat]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = parse_stat((entry / "stat").read_text())
            except (OSError, IndexError):  # it has just ended
                continue
    return found
