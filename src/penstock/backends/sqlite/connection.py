"""Opening the file: private, durable, on a disk that keeps its locks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import apsw

from penstock.errors import BackendError

__all__ = ["OLDEST_SQLITE", "fetch", "open_connection", "prepare_file"]

# Before this version two processes that checkpoint at once can corrupt the file (the WAL-reset bug).
OLDEST_SQLITE: Final = 3_051_003
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "9p", "fuse.sshfs"}
)


def prepare_file(path: str) -> None:
    """Create the file readable by its owner alone, if it does not exist, and refuse places SQLite cannot live in."""
    if apsw.SQLITE_VERSION_NUMBER < OLDEST_SQLITE:
        raise BackendError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt files; install apsw 3.51.3 or later"
        )
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise BackendError(f"the folder {folder} does not exist; create it, or correct the url")
    if Path(path).is_dir():
        raise BackendError(f"{path} is a folder; the url must name a file")
    kind = _file_system(folder)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise BackendError(
            f"{folder} is on a network file system ({kind}), where SQLite loses data; "
            "use a local disk, or PostgreSQL to share a queue between machines"
        )
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise BackendError(f"{path} cannot be created: {error.strerror}") from error


def open_connection(path: str, *, durability: str, timeout: float) -> apsw.Connection:
    """Open a connection that commits durably (or as `durability` says) and waits for locks up to `timeout`."""
    flags = apsw.SQLITE_OPEN_READWRITE
    if path == ":memory:":
        flags |= apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(path, flags=flags)
    try:
        connection.set_busy_timeout(int(timeout * 1000))
        if path != ":memory:":
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        connection.execute("PRAGMA mmap_size = 0")  # with several writers a mapped file can be read torn
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA recursive_triggers = OFF")
        if sys.platform == "darwin":
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute("PRAGMA checkpoint_fullfsync = ON")
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def fetch(cursor: apsw.Cursor, sql: str, parameters: Any = ()) -> list[Any]:
    """Run a query and return all its rows; what they hold is known by whoever wrote the query."""
    return cursor.execute(sql, parameters).fetchall()


def _file_system(folder: Path) -> str:
    """Return the type of the file system a folder is on; empty if the system does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    where = f"{folder.resolve()}/"
    for line in mounts:
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        if where.startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
