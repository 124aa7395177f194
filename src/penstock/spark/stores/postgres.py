"""A schema of a PostgreSQL database as Spark reads and writes it."""

from __future__ import annotations

import contextlib
import logging
import math
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.backends.urls import DEFAULT_SCHEMA, postgres_location
from penstock.errors import BackendError
from penstock.spark.stores.base import PRIVATE, FileIdentity, SparkStore
from penstock.spark.stores.staging import Staging, is_stale

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PostgresSparkStore", "TableStaging"]

logger = logging.getLogger("penstock")

_BATCH_BYTES: Final = 1 << 20
#: For a task to connect; a server that never answers would hold it for ever.
_CONNECT_SECONDS: Final = 10


class PostgresSparkStore(SparkStore):
    """A store in a schema of a PostgreSQL database."""

    stages_in_files = False

    @property
    def address(self) -> str:
        """The url as PostgreSQL's own libraries take it, with a limit for connecting."""
        address, options = postgres_location(self.url)
        seconds = max(2, math.ceil(options.get("connect_timeout", _CONNECT_SECONDS)))
        joint = "&" if "?" in address else "?"
        return f"{address}{joint}connect_timeout={seconds}"

    @property
    def schema(self) -> str:
        """The schema of the store's tables."""
        return str(self.driver.options_in(self.url).get("schema", DEFAULT_SCHEMA))

    def check_exists(self) -> None:
        query = "SELECT to_regclass(" + self.quoted(self.table("control")) + ") IS NOT NULL AS known"
        with self.reading() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            exists = bool(cursor.fetch_arrow_table().column(0)[0].as_py())
        if not exists:
            raise BackendError(f"there is no Penstock store at {self.location}; check the url")

    def check_visible(self) -> None:
        """Check nothing: connecting to the server is the check."""

    def file_identity(self) -> FileIdentity:
        return None

    def file_mode(self) -> int:
        return PRIVATE

    def new_staging(self, store_id: str, folder: str | None) -> Staging:  # noqa: ARG002 - for files
        return TableStaging(self)

    def _connect(self) -> Any:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - only tasks that read need it

        return dbapi.connect(self.address, autocommit=True)

    def batches(
        self,
        connection: Any,
        query: str,
        *,
        rows: int,  # noqa: ARG002 - a batch has a size in bytes here
        typed_row: str = "",  # noqa: ARG002 - columns have types here
    ) -> Iterator[pa.RecordBatch]:
        with connection.cursor() as cursor:
            hint = {"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)}
            cursor.adbc_statement.set_options(**hint)
            cursor.execute(query)
            yield from cursor.fetch_record_batch()

    def table(self, name: str) -> str:
        return f'"{self.schema}".{name}'

    def now(self) -> str:
        return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

    def quoted(self, text: str) -> str:
        doubled = text.replace("'", "''")
        return f"'{doubled}'" if "\\" not in text else "E'" + doubled.replace("\\", "\\\\") + "'"


class TableStaging(Staging):
    """Stages in unlogged tables named after the write, dropped when it ends."""

    def __init__(self, store: PostgresSparkStore) -> None:
        super().__init__()
        self._store = store

    def check(self) -> None:
        """Check nothing: every task that reaches the database sees its tables."""

    def write(self, chunks: Iterable[bytes]) -> str:
        name = f"sink_{self.group}_{uuid.uuid4().hex[:16]}"
        table = self._store.table(name)
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
            for (data,) in cursor.execute(f"SELECT data FROM {self._store.table(name)} ORDER BY n"):
                yield bytes(data)

    def clear(self, group: str) -> None:
        try:
            with self._connected() as connection:
                found = connection.execute(
                    "SELECT relname FROM pg_catalog.pg_class"
                    " JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
                    r" WHERE nspname = %s AND relkind = 'r' AND relname LIKE 'sink\_%%'",
                    (self._store.schema,),
                ).fetchall()
                for (name,) in found:
                    if name.startswith(f"sink_{group}_") or is_stale(name.removeprefix("sink_")):
                        connection.execute(f"DROP TABLE IF EXISTS {self._store.table(name)}")
        except BackendError as error:  # the write itself has succeeded or failed before
            logger.warning("staged rows were left behind and will be removed by a later write: %s", error)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        import psycopg  # noqa: PLC0415 - an extra

        try:
            with psycopg.connect(self._store.address, client_encoding="UTF8") as connection:
                yield connection
        except psycopg.Error as error:
            raise BackendError(
                f"{self._store.location} failed while rows were staged: {self._store.redacted(error)}",
                retryable=True,
            ) from None
