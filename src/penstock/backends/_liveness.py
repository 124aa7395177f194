"""Who this process is, and which owners of this host are gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from penstock.backends._store import Owner

__all__ = ["gone_owners", "host_name", "is_this_process", "this_process"]


def this_process() -> tuple[str, int, str]:
    """Return host, pid and start time. The start time tells a process from a later one with the same pid."""
    pid = os.getpid()
    return _host(), pid, _started(pid)


def gone_owners(owners: Iterable[Owner], now: int, liveness: int) -> list[str]:
    """Return the owners that beat no more: silent for longer than `liveness`, or dead processes of this host."""
    host = _host()
    return [
        owner.id
        for owner in owners
        if not is_this_process(owner)
        and (
            owner.beat_at + liveness <= now
            or (owner.host == host and owner.started != "" and _started(owner.pid) != owner.started)
        )
    ]


def is_this_process(owner: Owner) -> bool:
    """Whether an owner is this very process, which never judges itself."""
    return (owner.host, owner.pid, owner.started) == this_process()


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
