"""Where tasks leave rows for the driver to publish: nothing of them is a job before that.

A task attempt has a stage of its own, and the message of the attempt that won names it. So what a failed, repeated or
speculative attempt left is never looked at; it goes with its write, or by its age.

    SQLite       a file in `stagingDir`, which driver and executors must both see
    PostgreSQL   an unlogged table in the store's schema, made and filled in one transaction
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import struct
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from penstock.errors import BackendError
from penstock.spark._places import Place

__all__ = ["Staging", "staging_of"]

logger = logging.getLogger("penstock")

#: What nobody published for so long will not be: its driver is dead.
STALE_SECONDS: Final = 24 * 3600
_LENGTH: Final = struct.Struct(">Q")


class Staging(ABC):
    """The stages of one write; it pickles, and goes with its write's tasks.

    Attributes:
        group: names the write, and when it began.
    """

    def __init__(self) -> None:
        self.group = f"{int(time.time())}_{uuid.uuid4().hex[:16]}"

    @abstractmethod
    def check(self) -> None:
        """Make sure, in a task, that what is left here will be found by the driver."""

    @abstractmethod
    def write(self, chunks: Iterable[bytes]) -> str:
        """Leave chunks on a new stage, whole or not at all, and return its name."""

    @abstractmethod
    def read(self, name: str) -> Iterator[bytes]:
        """Yield what was left on a stage."""

    @abstractmethod
    def clear(self, group: str) -> None:
        """Remove all stages of a write, and those of any write that are stale. What cannot be is left to others."""


def staging_of(place: Place, store_id: str, folder: str | None) -> Staging:
    """Return the staging of a new write, ready to be used by tasks.

    Raises:
        BackendError: the folder cannot be written to.
    """
    if place.kind == "sqlite":
        return FileStaging(Path(folder or f"{place.file}-staging").absolute(), store_id)
    return TableStaging(place)


class FileStaging(Staging):
    """Files in a folder of the write's own, readable by their owner alone: they hold payloads."""

    def __init__(self, folder: Path, store_id: str) -> None:
        super().__init__()
        self._folder = folder
        self._store_id = store_id
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._probe.write_text(store_id, encoding="utf-8")
        except OSError as error:
            raise BackendError(f"stagingDir {folder} cannot be written to: {error.strerror}") from error

    @property
    def _probe(self) -> Path:
        return self._folder / f"probe-{self._store_id}"

    def check(self) -> None:
        if not self._probe.is_file():
            raise BackendError(
                f"stagingDir {self._folder} is not the driver's here; name a folder that driver and executors share"
                ' with .option("stagingDir", …), or use PostgreSQL'
            )

    def write(self, chunks: Iterable[bytes]) -> str:
        folder = self._folder / self.group
        file = folder / f"{uuid.uuid4().hex}.rows"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stage:  # noqa: PTH123
                for chunk in chunks:
                    stage.write(_LENGTH.pack(len(chunk)))
                    stage.write(chunk)
        except OSError as error:
            raise BackendError(
                f"rows cannot be staged in {self._folder}: {error.strerror}", retryable=True
            ) from error
        return str(file)

    def read(self, name: str) -> Iterator[bytes]:
        try:
            with Path(name).open("rb") as stage:
                while head := stage.read(_LENGTH.size):
                    chunk = stage.read(*_LENGTH.unpack(head))
                    if len(chunk) < _LENGTH.unpack(head)[0]:
                        raise BackendError(f"staged rows are damaged: {name} ends too early")
                    yield chunk
        except OSError as error:
            raise BackendError(f"staged rows are gone: {name} cannot be read") from error
        except struct.error as error:
            raise BackendError(f"staged rows are damaged: {name} ends too early") from error

    def clear(self, group: str) -> None:
        shutil.rmtree(self._folder / group, ignore_errors=True)
        with contextlib.suppress(OSError):
            for folder in self._folder.iterdir():
                if _is_stale(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)


class TableStaging(Staging):
    """Tables named after the write, dropped when it is done."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def check(self) -> None:
        """Nothing to make sure of: whoever reaches the database sees its tables."""

    def write(self, chunks: Iterable[bytes]) -> str:
        name = f"sink_{self.group}_{uuid.uuid4().hex[:16]}"
        table = self._place.table(name)
        with self._connected() as connection:
            connection.execute(f"CREATE UNLOGGED TABLE {table} (n bigint PRIMARY KEY, data bytea NOT NULL)")
            with connection.cursor().copy(f"COPY {table} (n, data) FROM STDIN (FORMAT binary)") as copy:
                copy.set_types(["int8", "bytea"])
                for number, chunk in enumerate(chunks):
                    copy.write_row((number, chunk))
        return name

    def read(self, name: str) -> Iterator[bytes]:
        with self._connected() as connection, connection.cursor("stage", binary=True) as cursor:
            cursor.itersize = 8  # a chunk may have megabytes
            for (data,) in cursor.execute(f"SELECT data FROM {self._place.table(name)} ORDER BY n"):
                yield bytes(data)

    def clear(self, group: str) -> None:
        try:
            with self._connected() as connection:
                found = connection.execute(
                    "SELECT relname FROM pg_catalog.pg_class"
                    " JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
                    r" WHERE nspname = %s AND relkind = 'r' AND relname LIKE 'sink\_%%'",
                    (self._place.schema,),
                ).fetchall()
                for (name,) in found:
                    if name.startswith(f"sink_{group}_") or _is_stale(name.removeprefix("sink_")):
                        connection.execute(f"DROP TABLE IF EXISTS {self._place.table(name)}")
        except BackendError as error:  # the jobs are there, or not, whatever becomes of the stages
            logger.warning("staged rows were left behind and will be removed by a later write: %s", error)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        import psycopg  # noqa: PLC0415 - an extra of its own

        try:
            with psycopg.connect(self._place.url, client_encoding="UTF8") as connection:
                yield connection
        except psycopg.Error as error:
            message = self._place.redacted(" ".join(str(error).split()))
            raise BackendError(
                f"{self._place.shown} failed while rows were staged: {message}", retryable=True
            ) from None


def _is_stale(name: str) -> bool:
    began = re.match(r"(\d+)_[0-9a-f]{16}", name)
    return began is not None and int(began[1]) < time.time() - STALE_SECONDS
