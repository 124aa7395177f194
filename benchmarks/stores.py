"""The stores that are measured: each gives fresh pairs of ours and raw, on files or schemas of their own."""

from __future__ import annotations

import itertools
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
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


def open_url(url: str) -> Backend:
    """Open the product's store; what follows a # is the schema of a PostgreSQL store."""
    place, _, schema = url.partition("#")
    return open_backend(place, schema=schema) if schema else open_backend(place)


class Target(ABC):
    """A kind of store."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.cache: dict[str, str] = {}  # stores that several workloads of a run share

    @abstractmethod
    def create(self, purpose: str) -> str:
        """Create an empty store and return where it is."""

    @abstractmethod
    def url(self, location: str) -> str:
        """Return what `open_url` takes, also in another process."""

    def open(self, location: str) -> Backend:
        return open_url(self.url(location))

    @abstractmethod
    def open_raw(self, location: str) -> RawStore: ...

    @abstractmethod
    def checkpoint(self, location: str) -> None: ...

    def settle(self, location: str) -> None:
        """Do what the store would do by itself within minutes of a large load."""
        self.checkpoint(location)

    @abstractmethod
    def drop(self, location: str) -> None: ...

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return versions and settings, for the header."""

    def close(self) -> None:  # noqa: B027  # a file needs nothing
        """Stop what was started for the measurements."""

    @contextmanager
    @abstractmethod
    def scratch(self) -> Iterator[tuple[Path, str]]:
        """Give an empty folder and, where there is a server, the url of an empty database."""

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

    def url(self, location: str) -> str:
        return f"sqlite:///{location}?durability={self.durability}"

    def open_raw(self, location: str) -> RawSqlite:
        return RawSqlite(location, synchronous=self.durability.upper())

    def checkpoint(self, location: str) -> None:
        connection = apsw.Connection(location)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()

    def drop(self, location: str) -> None:
        path = Path(location)
        for each in path.parent.glob(f"{path.name}*"):
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()

    @contextmanager
    def scratch(self) -> Iterator[tuple[Path, str]]:
        with TemporaryDirectory(dir=self._folder) as folder:
            yield Path(folder), ""

    def facts(self) -> dict[str, str]:
        return {
            self.name: f"SQLite {apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}, WAL, "
            f"synchronous={self.durability.upper()}"
        }


class SqliteNormalTarget(SqliteTarget):
    name = "sqlite-normal"
    durability = "normal"
