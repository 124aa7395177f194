"""Where a store is, and how its tables are read as Arrow batches.

Reading goes past the contract on purpose: rows that became Python objects on their way cost three times as much. What is
known here of the stores' tables is their columns, which only migrations change.

One SQLite library per process and file: closing a file drops the locks that another library of the same process holds on
it. Penstock's own (apsw) writes; the driver used here brings another one. So its connections are read-only, are opened by a
task alone, and never while a store of ours is open in that task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from penstock.backends.base import Backend
from penstock.connection import open_backend, postgres_location, sqlite_file
from penstock.errors import BackendError, InvalidArgumentError, shown

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Identity", "Place"]

_PG_BATCH_BYTES: Final = 1 << 20
_SCHEMA: Final = "penstock"

#: Device and number of a file; None of what is no file.
Identity = tuple[int, int] | None


class Place(NamedTuple):
    """A store that Spark may read from or write to; made by `Place.of`. Pickles, password included; prints without.

    Attributes:
        url: where it is, as the drivers take it; a file's path is absolute, since executors work in folders of their own.
        kind: "sqlite" or "postgresql".
        schema: of a PostgreSQL store, which the url names: `?schema=`.
        file: of a SQLite store.
        pgbouncer: whether the url leads to a pooler in transaction mode.
    """

    url: str
    kind: str
    schema: str
    file: str
    pgbouncer: bool = False

    @classmethod
    def of(cls, url: str) -> Place:
        """Return the place that a url names.

        Raises:
            InvalidArgumentError: not a url of a store, or one that lives in a process.
        """
        if not isinstance(url, str):
            raise InvalidArgumentError(
                f"url must be the url of a store, got {shown(url)}", field="url", value=url
            )
        scheme = url.partition(":")[0].lower()
        if scheme in ("postgresql", "postgres"):
            location, options = postgres_location(url)
            schema = options.get("schema", _SCHEMA)
            return cls(location, "postgresql", schema, "", options.get("pgbouncer", False))
        if scheme == "sqlite":
            file = str(Path(sqlite_file(url)).absolute())
            query = urlsplit(url).query
            return cls(f"sqlite:///{quote(file)}{'?' if query else ''}{query}", "sqlite", "", file)
        if scheme == "memory":
            raise InvalidArgumentError(
                "a store in memory: belongs to one process; Spark needs sqlite:/// or postgresql://",
                field="url",
                value=url,
            )
        raise InvalidArgumentError(
            f"url must begin with sqlite:/// or postgresql://, got {shown(scheme)}", field="url", value=scheme
        )

    def __repr__(self) -> str:
        return f"<Place {self.shown}>"

    @property
    def shown(self) -> str:
        """The place without user and password."""
        if self.kind == "sqlite":
            return self.file
        parts = urlsplit(self.url)
        return f"{parts.hostname or 'localhost'}{parts.path} schema={self.schema}"

    @property
    def address(self) -> str:
        """The url that names this place by itself: `Place.of(place.address) == place`."""
        if self.kind == "sqlite":
            return self.url
        mark = "&" if "?" in self.url else "?"
        pooled = "&pgbouncer=true" if self.pgbouncer else ""
        return f"{self.url}{mark}schema={quote(self.schema, safe='')}{pooled}"

    def open_backend(self) -> Backend:
        """Open the store as others do; it is made if it does not exist."""
        if self.kind == "sqlite":
            return open_backend(self.url)
        return open_backend(self.url, schema=self.schema, pgbouncer=self.pgbouncer)

    def open_existing(self) -> Backend:
        """Open the store.

        Raises:
            BackendError: there is none.
        """
        if self.kind == "sqlite":
            self.check_file()
        elif not self._has_tables():
            raise BackendError(f"there is no Penstock store at {self.shown}; check the url")
        return self.open_backend()

    def check_file(self) -> None:
        """Make sure that the file is here: an executor on another machine does not see it."""
        if not Path(self.file).is_file():
            raise BackendError(
                f"there is no file {self.file} here; check the url, and that every executor sees the file"
                " (to share a queue between machines, use PostgreSQL)"
            )

    def identity(self) -> Identity:
        """Return which file it is that now has this name.

        Raises:
            BackendError: there is none.
        """
        if self.kind != "sqlite":
            return None
        self.check_file()
        about = Path(self.file).stat()
        return about.st_dev, about.st_ino

    def _has_tables(self) -> bool:
        query = "SELECT to_regclass(" + self.quoted(f'"{self.schema}".control') + ") IS NOT NULL AS known"
        with self.reading() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return bool(cursor.fetch_arrow_table().column(0)[0].as_py())

    # -- reading ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        """Open a read-only connection of the Arrow driver; its errors become ours.

        Raises:
            BackendError: the store cannot be opened or read.
        """
        from adbc_driver_manager import Error  # noqa: PLC0415 - only tasks that read need it

        try:
            with self._connect() as connection:
                yield connection
        except (Error, OSError) as error:  # the second comes from a stream that breaks off
            message = self.redacted(" ".join(str(error).split()))
            raise BackendError(f"{self.shown} could not be read: {message}", retryable=True) from None

    def _connect(self) -> Any:
        # Each statement is a transaction of its own: none stays open between two.
        if self.kind == "sqlite":
            from adbc_driver_sqlite import dbapi  # noqa: PLC0415

            self.check_file()
            return dbapi.connect(f"file:{quote(self.file)}?mode=ro", autocommit=True)
        from adbc_driver_postgresql import dbapi as postgresql  # noqa: PLC0415

        return postgresql.connect(self.url, autocommit=True)

    def batches(self, connection: Any, query: str, *, rows: int, first: str = "") -> Iterator[pa.RecordBatch]:
        """Run a query and yield its batches.

        Args:
            connection: of `reading`.
            query: with its values in it.
            rows: in a batch of SQLite; PostgreSQL's have a size in bytes.
            first: a SELECT of one row that has every column's type. SQLite has no types but those of values, and the
                driver takes them from the first rows it sees, in which a column may be empty. The row is left out.
        """
        with connection.cursor() as cursor:
            if self.kind == "sqlite":
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
                cursor.execute(f"{first} UNION ALL {query}")
            else:
                hint = {"adbc.postgresql.batch_size_hint_bytes": str(_PG_BATCH_BYTES)}
                cursor.adbc_statement.set_options(**hint)
                cursor.execute(query)
            typed = self.kind == "sqlite"
            for batch in cursor.fetch_record_batch():
                yield batch.slice(1) if typed else batch
                typed = False

    # -- SQL ----------------------------------------------------------------------------------------------------

    def table(self, name: str) -> str:
        """Return a table's name as SQL."""
        return name if self.kind == "sqlite" else f'"{self.schema}".{name}'

    def quoted(self, text: str) -> str:
        """Return text as SQL, whatever it holds."""
        doubled = text.replace("'", "''")
        if self.kind == "sqlite" or "\\" not in text:
            return f"'{doubled}'"
        return "E'" + doubled.replace("\\", "\\\\") + "'"

    def redacted(self, text: str) -> str:
        """Return a driver's message without what the url holds."""
        password = urlsplit(self.url).password if self.kind == "postgresql" else None
        for secret in (self.url, password):
            if secret:
                text = text.replace(secret, "…")
        return text
