"""The identity of this process, and which owners are lost.

An owner is lost when its last heartbeat is older than `liveness`. During an outage of the store no owner can send one, so
after an outage all owners get one more liveness period. Each pass of upkeep is recorded in the store: a gap between two
passes was an outage, or a time in which no process maintained the store.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from penstock.backends.engine.store import Owner, UpkeepPass

__all__ = ["gone_owners", "host_name", "is_this_process", "next_pass", "this_process"]

#: A longer gap between two passes than liveness / this is an outage. Beats come at a third of the liveness: one that
#: failed in a shorter outage is repeated in time.
_GAPS_PER_LIVENESS: Final = 2
#: A store that is maintained rarely is not taken for one that was away each time: a gap of up to so many times the gap
#: before, if that was long as well, is its usual one.
_USUAL_GAPS: Final = 2


def this_process() -> tuple[str, int, str]:
    """Return host, pid and start time. The start time tells a process from a later one with the same pid."""
    pid = os.getpid()
    return _host(), pid, _started(pid)


def gone_owners(
    owners: Iterable[Owner], now: int, liveness: int, *, counts_silence: bool = True
) -> list[str]:
    """Return the owners that are lost: silent for longer than `liveness` (if that counts), or dead on this host."""
    return [
        owner.id
        for owner in owners
        if not is_this_process(owner)
        and ((counts_silence and owner.beat_at + liveness <= now) or _is_dead_here(owner))
    ]


def next_pass(last: UpkeepPass, now: int, liveness: int, *, begins: bool) -> UpkeepPass:
    """Return the record of a pass at `now`; the silence of owners counts if its `judges_from` is reached.

    Args:
        begins: whether a pass begins; else one goes on.
    """
    gap = 0 if last.passed_at is None else max(0, now - last.passed_at)
    # If the clock was set back, an end of the wait that was computed before lies too far ahead.
    judges_from = min(last.judges_from, now + liveness)
    most = liveness // _GAPS_PER_LIVENESS
    is_usual = last.gap > most and gap <= _USUAL_GAPS * last.gap
    if gap > most and not is_usual:
        judges_from = now + liveness
    return UpkeepPass(now, gap if begins else last.gap, judges_from)


def is_this_process(owner: Owner) -> bool:
    """Whether an owner is this very process, which never judges itself."""
    return (owner.host, owner.pid, owner.started) == this_process()


def _is_dead_here(owner: Owner) -> bool:
    """Whether an owner ran on this host and its process is gone: certain, however fresh its beat."""
    return owner.host == _host() and owner.started != "" and _started(owner.pid) != owner.started


def host_name(host: str) -> str:
    """Return the part of a host that people know it by."""
    return host.partition("/")[0]


@lru_cache(maxsize=1)
def _host() -> str:
    """Name this machine and its present run, so that neither a clone nor a reboot is taken for it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{socket.gethostname()}/{boot.read_text().strip()}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if there is none or the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
