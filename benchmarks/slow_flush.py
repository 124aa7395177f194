"""A disk whose flushes take longer, for the product and the raw probe alike."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import apsw


@contextmanager
def slow_flushes(seconds: float) -> Iterator[None]:
    """Add a pause to every flush of files that SQLite opens meanwhile.

    All file calls then go through Python, which costs some microseconds each on both sides.
    """
    base = apsw.vfs_names()[0]

    class SlowFile(apsw.VFSFile):
        def __init__(self, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
            super().__init__(base, name, flags)

        def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
            time.sleep(seconds)
            super().xSync(flags)

    class SlowDisk(apsw.VFS):
        def __init__(self) -> None:
            super().__init__(f"penstock-slow-{len(apsw.vfs_names())}", base, makedefault=True)

        def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
            return SlowFile(name, flags)

    disk = SlowDisk()
    try:
        yield
    finally:
        disk.unregister()
