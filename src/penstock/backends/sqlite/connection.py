"""Opening the file: private, durable, on a disk that keeps its locks."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import apsw

from penstock.errors import BackendError, InvalidArgumentError

__all__ = [
    "APPLICATION_ID",
    "NETWORK_FILE_SYSTEMS",
    "OLDEST_SQLITE",
    "check_ours",
    "fetch",
    "file_system",
    "open_connection",
    "prepare_file",
]

APPLICATION_ID: Final = 0x70656E73  # "pens"

# Before this version two processes that checkpoint at once can corrupt the file (the WAL-reset bug).
OLDEST_SQLITE: Final = 3_051_003
_BUSY_PAUSE: Final = 0.005
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "9p", "fuse.sshfs"}
)


def prepare_file(path: str, *, create: bool = True) -> None:
    """Create the file readable by its owner alone, if it does not exist, and refuse places SQLite cannot live in.

    Raises:
        InvalidArgumentError: there is no store, and none is to be made.
        BackendError: none can live there.
    """
    if apsw.SQLITE_VERSION_NUMBER < OLDEST_SQLITE:
        raise BackendError(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt files; install apsw 3.51.3 or later"
        )
    folder = Path(path).parent
    try:
        if not create:
            _check_there(Path(path))
        if not folder.is_dir():
            raise BackendError(f"the folder {folder} does not exist; create it, or correct the url")
        if Path(path).is_dir():
            raise BackendError(f"{path} is a folder; the url must name a file")
        if Path(path).exists() and not Path(path).is_file():
            raise BackendError(f"{path} is not a regular file; the url must name one")
        kind = file_system(folder)
        if kind in NETWORK_FILE_SYSTEMS:
            raise BackendError(
                f"{folder} is on a network file system ({kind}), where SQLite loses data; "
                "use a local disk, or PostgreSQL to share a queue between machines"
            )
        _create(path)
    except OSError as error:
        raise BackendError(f"{path} cannot be created or read: {error.strerror}") from error


def _check_there(path: Path) -> None:
    """Refuse a path without a store. A file with nothing in it is none yet."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        raise InvalidArgumentError(
            f"there is no store at {path}: check the url; the first job that is submitted makes it",
            field="url",
            value=str(path),
        )


def _create(path: str) -> None:
    # One thread at a time: closing a descriptor drops the locks that SQLite meanwhile took on the file for another.
    with _creating, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def open_connection(path: str, *, durability: str, timeout: float) -> apsw.Connection:
    """Open a connection that commits durably (or as `durability` says) and waits for locks up to `timeout`."""
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            return _open(path, durability, timeout)
        except apsw.BusyError:
            # While others open or close the file, some of what follows is refused without waiting.
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(_BUSY_PAUSE)


def _open(path: str, durability: str, timeout: float) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE
    if path == ":memory:":
        flags |= apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(path, flags=flags)
    try:
        connection.set_busy_timeout(int(timeout * 1000))
        if path != ":memory:":
            _use_wal(connection, path)
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


def _use_wal(connection: apsw.Connection, path: str) -> None:
    """Switch to write-ahead logging, which is written into the file: so only if the file is ours, or empty."""
    if connection.pragma("journal_mode") == "wal":
        return
    check_ours(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")


def check_ours(connection: apsw.Connection, path: str) -> bool:
    """Return whether the file holds a store, False if it is empty; refuse what others made."""
    if not fetch(connection.cursor(), "SELECT count(*) FROM sqlite_schema")[0][0]:
        return False
    if connection.pragma("application_id") != APPLICATION_ID:
        raise BackendError(f"{path} is an SQLite file, but not a Penstock store; choose another path")
    return True


def fetch(cursor: apsw.Cursor, sql: str, parameters: Any = ()) -> list[Any]:
    """Run a query and return all its rows, untyped."""
    return cursor.execute(sql, parameters).fetchall()


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system a folder is on; empty if the system does not say."""
    try:
        lines = os.fsdecode(mounts.read_bytes()).splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    where = f"{folder.resolve()}/"
    for line in lines:
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4])
        if where.startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


_creating = threading.Lock()
