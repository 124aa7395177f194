"""The stores that are measured: each gives fresh pairs of ours and raw, on files or schemas of their own."""

from __future__ import annotations

import itertools
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import apsw

from benchmarks.raw import RawStore
from benchmarks.raw_sqlite import RawSqlite
from penstock import Backend, open_backend


@dataclass(frozen=True)
class Pair:
    """The product and the raw probe, on two empty stores that are otherwise alike."""

    backend: Backend
    raw: RawStore
    target: Target
    location: str

    def checkpoint(self) -> None:
        self.target.checkpoint(self.location)
        self.raw.checkpoint()


class Target(ABC):
    """A kind of store."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    @abstractmethod
    def create(self, purpose: str) -> str:
        """Create an empty store and return where it is."""

    @abstractmethod
    def open(self, location: str) -> Backend: ...

    @abstractmethod
    def open_raw(self, location: str) -> RawStore: ...

    @abstractmethod
    def checkpoint(self, location: str) -> None: ...

    @abstractmethod
    def drop(self, location: str) -> None: ...

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return versions and settings, for the header."""

    def close(self) -> None:
        """Stop what was started for the measurements."""

    @contextmanager
    def pair(self) -> Iterator[Pair]:
        """Give a fresh pair and remove it afterwards."""
        ours, raws = self.create("ours"), self.create("raw")
        backend, raw = self.open(ours), self.open_raw(raws)
        try:
            yield Pair(backend, raw, self, ours)
        finally:
            backend.close()
            raw.close()
            self.drop(ours)
            self.drop(raws)


class SqliteTarget(Target):
    name = "sqlite"
    durability: ClassVar[str] = "full"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def create(self, purpose: str) -> str:
        location = str(self._folder / f"{self.name}-{purpose}-{next(self._numbers)}.db")
        self.open(location).close()
        return location

    def open(self, location: str) -> Backend:
        return open_backend(f"sqlite:///{location}", durability=self.durability)

    def open_raw(self, location: str) -> RawSqlite:
        return RawSqlite(location, synchronous=self.durability.upper())

    def checkpoint(self, location: str) -> None:
        connection = apsw.Connection(location)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()

    def drop(self, location: str) -> None:
        path = Path(location)
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()

    def copy(self, location: str) -> str:
        """Return a copy of a store that nobody has open."""
        copied = location.replace(".db", f"-copy-{next(self._numbers)}.db")
        shutil.copyfile(location, copied)
        return copied

    def facts(self) -> dict[str, str]:
        return {
            self.name: f"SQLite {apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}, WAL, "
            f"synchronous={self.durability.upper()}"
        }


class SqliteNormalTarget(SqliteTarget):
    name = "sqlite-normal"
    durability = "normal"
