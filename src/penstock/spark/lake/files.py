"""Writing files and folders of a lake: atomically, and with the mode of the store's file."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from penstock.errors import BackendError
from penstock.spark.stores import PRIVATE

__all__ = ["flush", "make_folder", "opened", "write_as", "write_whole"]


def make_folder(folder: Path, root: Path, mode: int) -> None:
    """Make a folder, and those above it that are missing.

    Args:
        folder: which.
        root: this folder and those below it get the mode; those above it get that of the umask.
        mode: of files; the folders are also executable for users who may read.
    """
    missing = [each for each in (*reversed(folder.parents), folder) if not each.is_dir()]
    for each in missing:
        if each != root and root not in each.parents:
            each.mkdir(exist_ok=True)
            continue
        with suppress(FileExistsError):
            each.mkdir(0o700)
            each.chmod(mode | (mode & 0o444) >> 2)


def opened(path: Path, how: str, mode: int) -> IO[Any]:
    """Open a file for writing; a new one has that mode, whatever the umask is."""

    def open_file(name: str, flags: int) -> int:
        try:
            descriptor = os.open(name, flags | os.O_EXCL, PRIVATE)
        except FileExistsError:
            return os.open(name, flags)
        os.fchmod(descriptor, mode)
        return descriptor

    return open(path, how, encoding=None if "b" in how else "utf-8", opener=open_file)


def write_as(mode: int, path: Path, text: str) -> None:
    """Write a text; a new file has that mode."""
    with opened(path, "w", mode) as file:
        file.write(text)


def write_whole(path: Path, data: bytes, mode: int, *, exclusive: bool = False) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    with opened(temporary, "wb", mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        if exclusive:
            os.link(temporary, path)
        else:
            temporary.replace(path)
    except FileExistsError:
        raise BackendError(
            f"another pipeline has written {path}; run this one again", retryable=True
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
