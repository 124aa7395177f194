"""What the lake has of the jobs of a small batch: taken from its files without Spark, a piece at a time.

A query that finds a few ids among many costs mostly what every query costs, and a batch would need one after the other.
So Spark gets to see only the rows that a small batch speaks of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["MOST_ROWS", "distinct", "files_with", "jobs_of", "rows_with", "take_out"]

#: Rows of a table up to which one process looks through it; more are left to Spark, which has more hands.
MOST_ROWS: Final = 20_000_000
_ROWS_AT_ONCE: Final = 100_000
_JOB: Final = pa.schema([("source", pa.string()), ("job_id", pa.string())])
_PLACE: Final = "place"


def distinct(tables: Sequence[pa.Table]) -> pa.Table:
    """Return `source, job_id` of all tables, each once."""
    both = pa.concat_tables([each.select(_JOB.names).cast(_JOB) for each in tables] or [_JOB.empty_table()])
    return both.group_by(_JOB.names).aggregate([]).select(_JOB.names)


def files_with(paths: Iterable[Path], ids: pa.Table) -> list[Path]:
    """Return the files that may have a row of one of the jobs; an id may be that of another source."""
    wanted = ids["job_id"].combine_chunks()
    return [path for path in paths if any(True for _ in _hits(path, ["job_id"], "job_id", wanted))]


def rows_with(
    paths: Iterable[Path], columns: Sequence[str], ids: pa.Table, *, listed: str | None = None
) -> list[tuple[Path, pa.Table]]:
    """Return the rows of some jobs, file by file, without the files that have none.

    Args:
        listed: a column with the ids of several jobs; a row is returned if one of them is wanted.
    """
    column = listed or "job_id"
    wanted = ids["job_id"].combine_chunks()
    found = []
    for path in paths:
        if next(iter(_hits(path, [column], column, wanted)), None) is None:
            continue
        pieces = []
        for piece, places, named in _hits(path, columns, column, wanted):
            pairs = pa.table([piece["source"].take(places), named], names=_JOB.names)
            pieces.append(pa.Table.from_batches([piece]).take(_with_keys(pairs, places, ids)))
        rows = pa.concat_tables(pieces)
        if rows.num_rows:
            found.append((path, rows))
    return found


def take_out(path: Path, keys: pa.Table, rest: Path) -> tuple[pa.Table, int]:
    """Return the rows of a file that have one of the keys, write the others into another, and return how many they are.

    Args:
        keys: in columns that the file has; the second of them tells most keys apart.
    """
    file = pq.ParquetFile(path)
    wanted = keys[keys.column_names[1]].combine_chunks()
    taken, left = [], 0
    with pq.ParquetWriter(rest, file.schema_arrow, compression="zstd") as writer:
        for piece in file.iter_batches(_ROWS_AT_ONCE):
            rows = pa.Table.from_batches([piece])
            hits = pc.indices_nonzero(pc.is_in(piece[keys.column_names[1]], wanted))
            own = _with_keys(rows.select(keys.column_names).take(hits), hits, keys)
            taken.append(rows.take(own))
            others = rows.filter(pc.invert(pc.is_in(pa.array(range(len(piece)), own.type), own)))
            left += others.num_rows
            writer.write_table(others)
    return pa.concat_tables(taken), left


def _with_keys(rows: pa.Table, places: pa.Array, keys: pa.Table) -> pa.Array:
    """Return the places of rows that have one of the keys, in order."""
    found = rows.append_column(_PLACE, places).join(keys, keys.column_names, join_type="left semi")[_PLACE]
    return pc.unique(found).sort()


def jobs_of(trees: pa.Table) -> pa.Table:
    """Return `source, job_id` of the jobs of trees."""
    rows = trees.combine_chunks()
    if not rows.num_rows:
        return _JOB.empty_table()
    lists = rows["job_ids"].combine_chunks()
    sources = rows["source"].take(pc.list_parent_indices(lists))
    return pa.table([sources, pc.list_flatten(lists)], names=_JOB.names)


def _hits(
    path: Path, columns: Sequence[str], column: str, wanted: pa.Array
) -> Iterator[tuple[pa.RecordBatch, pa.Array, pa.Array]]:
    """Return pieces of a file that have wanted ids, with the places of their rows and the ids there."""
    for piece in pq.ParquetFile(path).iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
        values = piece[column]
        places: pa.Array | None = None
        if pa.types.is_list(values.type):
            places, values = pc.list_parent_indices(values), pc.list_flatten(values)
        mask = pc.is_in(values, wanted)
        hits = pc.indices_nonzero(mask)
        if len(hits):
            yield piece, hits if places is None else places.take(hits), values.take(hits)
