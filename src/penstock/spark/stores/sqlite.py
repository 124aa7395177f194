"""A SQLite file as Spark reads and writes it.

One process must not open a file with two SQLite libraries: closing the file in one drops the locks of the other. Penstock
writes with apsw, and the Arrow driver brings its own library. So connections of the Arrow driver are read-only, are opened
in tasks only, and never while a backend on the file is open in the same task.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.backends.urls import sqlite_location
from penstock.errors import BackendError
from penstock.spark.stores.base import PRIVATE, FileIdentity, SparkStore
from penstock.spark.stores.staging import Staging, is_stale

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileStaging", "SqliteSparkStore"]

_LENGTH: Final = struct.Struct(">Q")


class SqliteSparkStore(SparkStore):
    """A store in a SQLite file."""

    stages_in_files = True

    @property
    def file(self) -> str:
        """The absolute path of the file."""
        return sqlite_location(self.url)[0]

    def check_exists(self) -> None:
        if not Path(self.file).is_file():
            raise BackendError(
                f"there is no file {self.file} here; check the url, and that every executor sees the file"
                " (to share a queue between machines, use PostgreSQL)"
            )

    def check_visible(self) -> None:
        self.check_exists()

    def file_identity(self) -> FileIdentity:
        self.check_exists()
        about = Path(self.file).stat()
        return about.st_dev, about.st_ino

    def file_mode(self) -> int:
        self.check_exists()
        return PRIVATE | Path(self.file).stat().st_mode & 0o666

    def new_staging(self, store_id: str, folder: str | None) -> Staging:
        return FileStaging(Path(folder or f"{self.file}-staging").absolute(), store_id)

    def _connect(self) -> Any:
        from adbc_driver_sqlite import dbapi  # noqa: PLC0415 - only tasks that read need it

        self.check_exists()
        return dbapi.connect(f"file:{quote(self.file)}?mode=ro", autocommit=True)

    def batches(
        self, connection: Any, query: str, *, rows: int, typed_row: str = ""
    ) -> Iterator[pa.RecordBatch]:
        # The driver takes a column's type from the first rows, in which all its values may be NULL. So the first row is
        # one with a value of the right type in every column; it is left out of the batches.
        with connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
            cursor.execute(f"{typed_row} UNION ALL {query}")
            for number, batch in enumerate(cursor.fetch_record_batch()):
                yield batch if number else batch.slice(1)

    def table(self, name: str) -> str:
        return name

    def now(self) -> str:
        return str(time.time_ns() // 1000)

    def quoted(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"


class FileStaging(Staging):
    """Stages in files below a folder of the write, readable by their owner only, since they hold payloads."""

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
            with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE), "wb") as stage:  # noqa: PTH123
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
                if is_stale(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)
