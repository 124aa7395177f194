"""A disk with faults that a test arms: an apsw VFS over the system's, under every connection opened meanwhile.

`disk.arm("write", at=3)` makes the third write from now on fail; it stays so until `disk.heal()`, or fails once with
`once=True`. Only the log of a store is counted: in WAL mode a commit writes there and nowhere else. Checkpoints are left
alone, because an exception inside one would leave apsw's COMMIT although SQLite has committed; a really full disk
(`tiny_disk`) is the test for those.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

#: The system's own.
USUAL = apsw.vfs_names()[0]
FAULTS = {
    "full": ("write", apsw.FullError, apsw.SQLITE_FULL),
    "write": ("write", apsw.IOError, apsw.SQLITE_IOERR_WRITE),
    "sync": ("sync", apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
    "read": ("read", apsw.IOError, apsw.SQLITE_IOERR_READ),
}


class FaultyDisk(apsw.VFS):
    """The default VFS while it is registered; see `faulty_disk`."""

    def __init__(self) -> None:
        self.heal()
        super().__init__("faulty", USUAL, makedefault=True)

    def arm(self, fault: str, at: int = 1, *, once: bool = False, each: bool = False) -> None:
        """Let the `at`-th write, flush or read from now on fail.

        Args:
            fault: which kind, see `FAULTS`.
            at: which one.
            once: the later ones succeed; without it, none does.
            each: every `at`-th one fails, and those between succeed.
        """
        self._operation, self._error, self._code = FAULTS[fault]
        self._at, self._once, self._each = at, once, each
        self.seen = self.failed = 0

    def heal(self) -> None:
        """Work again."""
        self._operation, self._at, self._once, self._each = "", 0, False, False
        self.seen = self.failed = 0

    def xOpen(self, name: Any, flags: list[int]) -> "FaultyFile":  # noqa: N802  # apsw's
        return FaultyFile(self, name, flags)

    def meet(self, operation: str) -> None:
        """Fail if it is time to."""
        if operation != self._operation:
            return
        self.seen += 1
        is_later = self.seen > self._at and not self._once
        if self.seen % self._at == 0 if self._each else self.seen == self._at or is_later:
            self.failed += 1
            error = self._error(f"injected: {operation} {self.seen}")
            error.result, error.extendedresult = self._code & 0xFF, self._code
            raise error


class FaultyFile(apsw.VFSFile):
    """One file on that disk."""

    def __init__(self, disk: FaultyDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._is_log = str(path).endswith("-wal")
        self._is_commit = False  # whether it was written to since it was flushed
        super().__init__(USUAL, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._is_log:
            self._disk.meet("write")
            self._is_commit = True
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._is_commit:  # else a checkpoint makes sure of what was flushed already
            self._disk.meet("sync")
            self._is_commit = False
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.meet("read")
        return super().xRead(amount, offset)


@contextlib.contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    """Put a faulty disk under the connections that are opened inside the block; close them inside it too."""
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        disk.unregister()
        apsw.set_default_vfs(USUAL)


Contents = dict[str, list[tuple[Any, ...]]]
#: Rows that say how the store was used, and nothing about what is in it.
_APART = {"setting": "name <> 'refused_commits'"}


def contents(path: object) -> Contents:
    """Return all rows of a store, as a connection of its own on the usual disk reads them."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=USUAL)
    with contextlib.closing(connection):
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
            )
        ]
        with connection:
            return {
                table: connection.execute(f"SELECT * FROM {table} WHERE {_APART.get(table, '1')}").fetchall()
                for table in tables
            }


def contents_after_a_crash(path: Path) -> Contents:
    """Return all rows as the next process finds them if every process that has the store open is killed now."""
    wreck = path.with_name("wreck")
    wreck.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        source = Path(f"{path}{suffix}")
        if source.exists():
            shutil.copy(source, wreck / f"{path.name}{suffix}")
    with contextlib.suppress(FileNotFoundError):
        (wreck / f"{path.name}-shm").unlink()
    try:
        return contents(wreck / path.name)
    finally:
        shutil.rmtree(wreck)
