"""One task's part of a read: a range of numbers of one store's table, as Arrow batches of exactly the schema asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.spark._convert import converted
from penstock.spark._places import Place
from penstock.spark.schemas import BLOBS, NUMBERS, Column, Table

__all__ = ["Scan"]

#: Rows that one statement reads. While it runs, SQLite's log cannot be cut and PostgreSQL keeps dead rows.
_STATEMENT_ROWS: Final = 250_000
#: A blob may have a mebibyte; a batch of them must not have sixteen thousand.
_BLOB_BATCH_ROWS: Final = 256


class Scan(NamedTuple):
    """What to read of a store, wherever in its table.

    Attributes:
        place: the store.
        source: its id.
        table: which table.
        columns: which columns, in order.
        where: a condition in SQL, or "".
        batch_rows: rows in a batch at most.
        now: the store's time, in microseconds, when the read was planned.
    """

    place: Place
    source: str
    table: Table
    columns: tuple[Column, ...]
    where: str
    batch_rows: int
    now: int

    def batches(self, first: int, last: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose number lies from `first` to `last`."""
        parts = list(dict.fromkeys(part for column in self.columns for part in column.parts)) or ["seq"]
        has_blobs = not {*parts}.isdisjoint(BLOBS)
        rows = min(self.batch_rows, _BLOB_BATCH_ROWS) if has_blobs else self.batch_rows
        typed_row = f"SELECT {', '.join(f'{_typed(part)} AS c{index}' for index, part in enumerate(parts))}"
        with self.place.reading() as connection:
            for begin in range(first, last + 1, _STATEMENT_ROWS):
                end = min(begin + _STATEMENT_ROWS - 1, last)
                query = self._query(parts, begin, end)
                for batch in self.place.batches(connection, query, rows=rows, first=typed_row):
                    if batch.num_rows:
                        yield self._shaped(batch, parts, schema)

    def _query(self, parts: Sequence[str], begin: int, end: int) -> str:
        table = self.table.stored
        chosen = ", ".join(f"{self._stored(part)} AS c{index}" for index, part in enumerate(parts))
        joins = "".join(
            f" LEFT JOIN {self.place.table(blob)} AS {blob} ON {blob}.seq = {table}.seq"
            for blob in BLOBS
            if blob in parts
        )
        also = f" AND ({self.where})" if self.where else ""
        return (
            f"SELECT {chosen} FROM {self.place.table(table)} AS {table}{joins}"
            f" WHERE {table}.seq BETWEEN {begin} AND {end}{also}"
        )

    def _stored(self, part: str) -> str:
        if part in BLOBS:
            return f"{part}.data"
        table = self.table.stored
        if part == "{scheduled_at}":  # it may lie ahead: then the job is not ready yet
            return f"CASE WHEN {table}.ready_at <= {self.now} THEN {table}.ready_at END"
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
