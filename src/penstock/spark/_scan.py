"""One task of a read: a range of `seq` in one table of a store, as Arrow batches with the requested schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.spark._convert import converted
from penstock.spark.schemas import BLOBS, NUMBERS, Column, Table
from penstock.spark.stores import SparkStore

__all__ = ["NEWEST", "Scan"]

#: As the end of a range: the `seq` that the newest row has when the range is read.
NEWEST: Final = 2**63 - 1
#: Rows per statement. While a statement runs, SQLite cannot reset its WAL and PostgreSQL cannot vacuum dead rows.
_STATEMENT_ROWS: Final = 250_000
#: Rows per batch with blobs, each of which may have a mebibyte.
_BLOB_BATCH_ROWS: Final = 256


class Scan(NamedTuple):
    """What to read of a store, except for the range of rows.

    Attributes:
        store: the store.
        source: its id.
        table: which table.
        columns: which columns, in order.
        where: a condition in SQL, or "".
        batch_rows: the maximum number of rows per batch.
    """

    store: SparkStore
    source: str
    table: Table
    columns: tuple[Column, ...]
    where: str
    batch_rows: int

    def batches(self, first: int, last: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose `seq` is from `first` to `last`."""
        parts = list(dict.fromkeys(part for column in self.columns for part in column.parts)) or ["seq"]
        has_blobs = not {*parts}.isdisjoint(BLOBS)
        rows = min(self.batch_rows, _BLOB_BATCH_ROWS) if has_blobs else self.batch_rows
        typed_row = f"SELECT {', '.join(f'{_typed(part)} AS c{index}' for index, part in enumerate(parts))}"
        with self.store.reading() as connection:
            last = self._newest(connection) if last == NEWEST else last
            for begin in range(first, last + 1, _STATEMENT_ROWS):
                end = min(begin + _STATEMENT_ROWS - 1, last)
                query = self._query(parts, begin, end)
                for batch in self.store.batches(connection, query, rows=rows, typed_row=typed_row):
                    if batch.num_rows:
                        yield self._shaped(batch, parts, schema)

    def _newest(self, connection: Any) -> int:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT coalesce(max(seq), 0) FROM {self.store.table(self.table.stored)}")
            return int(cursor.fetchone()[0])

    def _query(self, parts: Sequence[str], begin: int, end: int) -> str:
        table = self.table.stored
        chosen = ", ".join(f"{self._stored(part)} AS c{index}" for index, part in enumerate(parts))
        joins = "".join(
            f" LEFT JOIN {self.store.table(blob)} AS {blob} ON {blob}.seq = {table}.seq"
            for blob in BLOBS
            if blob in parts
        )
        also = f" AND ({self.where})" if self.where else ""
        return (
            f"SELECT {chosen} FROM {self.store.table(table)} AS {table}{joins}"
            f" WHERE {table}.seq BETWEEN {begin} AND {end}{also}"
        )

    def _stored(self, part: str) -> str:
        if part in BLOBS:
            return f"{part}.data"
        table = self.table.stored
        if part == "{scheduled_at}":  # in the future, the job is not ready yet
            return f"CASE WHEN {table}.ready_at <= {self.store.now()} THEN {table}.ready_at END"
        return f'{table}."{part}"'

    def _shaped(self, batch: pa.RecordBatch, parts: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
        by_part = dict(zip(parts, batch.columns, strict=True))
        arrays = [
            converted(
                column, [by_part[part] for part in column.parts], field.type, batch.num_rows, self.source
            )
            for column, field in zip(self.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(part: str) -> str:
    if part in BLOBS:
        return "x''"
    return "0" if part in NUMBERS else "''"
