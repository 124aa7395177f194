"""What a file store has to say about itself."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

import apsw

from penstock.backends.contract.overview import Finding, Level
from penstock.backends.sqlite.connection import NETWORK_FILE_SYSTEMS, OLDEST_SQLITE, file_system

__all__ = ["examine_file", "examine_sqlite"]

_SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_FLEETING: Final = frozenset({"tmpfs", "ramfs"})
MIB: Final = 1_048_576
LONG_LOG: Final = 64 * MIB
LITTLE_ROOM: Final = 1024 * MIB
NO_ROOM: Final = 100 * MIB


def examine_sqlite(connection: apsw.Connection) -> list[Finding]:
    """Return what concerns the library and its settings."""
    version = apsw.sqlite_lib_version()
    is_sound = apsw.SQLITE_VERSION_NUMBER >= OLDEST_SQLITE
    found = [
        Finding(
            check="SQLite",
            level=Level.OK if is_sound else Level.PROBLEM,
            message=f"version {version}" + ("" if is_sound else " can corrupt files"),
            advice="" if is_sound else "install apsw 3.51.3 or later",
        )
    ]
    setting = int(connection.pragma("synchronous"))
    name = _SYNCHRONOUS.get(setting, str(setting))
    if setting >= 2:
        found.append(
            Finding.ok("durability", f"synchronous={name}: what is acknowledged survives a power cut")
        )
    else:
        found.append(
            Finding.warning(
                "durability",
                f"synchronous={name}: a power cut may take the last acknowledged changes",
                "leave durability=normal out of the url, unless that is a price you want to pay",
            )
        )
    return found


def examine_file(path: Path) -> list[Finding]:
    """Return what concerns the file and where it lies."""
    return [_permissions(path), _place(path.parent), _room(path.parent), _log(Path(f"{path}-wal"))]


def _permissions(path: Path) -> Finding:
    check = "permissions"
    if os.name == "nt":
        return Finding.ok(check, "not checked on this system")
    mode, folder = stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)
    if mode & 0o077:
        return Finding.warning(
            check,
            f"{path} has mode {mode:o}: other users of this machine get at the jobs",
            f"chmod 600 {path}* unless they are meant to",
        )
    if folder & 0o002 and not folder & stat.S_ISVTX:
        return Finding.warning(
            check,
            f"any user may replace files in {path.parent} (mode {folder:o})",
            f"chmod o-w {path.parent}, or move the store",
        )
    return Finding.ok(check, f"mode {mode:o}")


def _place(folder: Path) -> Finding:
    check, kind = "file system", file_system(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding.problem(
            check,
            f"{folder} is on a network file system ({kind}), where SQLite loses data",
            "move the store to a local disk, or use PostgreSQL",
        )
    if kind in _FLEETING:
        return Finding.warning(
            check,
            f"{folder} is in memory ({kind}) and gone when the machine stops",
            "move the store to a disk, unless that is what you want",
        )
    return Finding.ok(check, kind or "not known on this system")


def _room(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    message = f"{free // MIB} MiB free in {folder}"
    if free < NO_ROOM:
        return Finding.problem("disk", message, "free some: a full disk stops every change")
    if free < LITTLE_ROOM:
        return Finding.warning("disk", message, "free some before it runs out")
    return Finding.ok("disk", message)


def _log(path: Path) -> Finding:
    size = path.stat().st_size if path.exists() else 0
    message = f"the write-ahead log has {size // MIB} MiB"
    if size > 2 * LONG_LOG:
        return Finding.warning(
            "log",
            message,
            "a reader keeps it from being emptied: end long queries and forgotten shells on the file",
        )
    return Finding.ok("log", message)
