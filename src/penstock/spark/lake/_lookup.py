"""Finding the rows of a small batch's jobs in the files of the lake without Spark, in pieces.

A Spark query for a few ids costs mostly its fixed overhead, and a batch would need several in sequence. So Spark gets only
the rows of the batch's jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["MAX_ROWS", "distinct", "files_with", "jobs_of", "rows_with", "take_out"]

#: The maximum number of rows of a table to search in this process; larger tables are searched by Spark in parallel.
MAX_ROWS: Final = 20_000_000
_ROWS_AT_ONCE: Final = 100_000
_JOB: Final = pa.schema([("source", pa.string()), ("job_id", pa.string())])
_INDEX: Final = "index"


def distinct(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the distinct `source, job_id` of all tables."""
    both = pa.concat_tables([each.select(_JOB.names).cast(_JOB) for each in tables] or [_JOB.empty_table()])
    return both.group_by(_JOB.names).aggregate([]).select(_JOB.names)


def files_with(paths: Iterable[Path], ids: pa.Table) -> list[Path]:
    """Return the files that may have a row of one of the jobs; only the id is compared, not the source."""
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
        for piece, indices, named in _hits(path, columns, column, wanted):
            pairs = pa.table([piece["source"].take(indices), named], names=_JOB.names)
            pieces.append(pa.Table.from_batches([piece]).take(_with_keys(pairs, indices, ids)))
        rows = pa.concat_tables(pieces)
        if rows.num_rows:
            found.append((path, rows))
    return found


def take_out(path: Path, keys: pa.Table, rest: Path) -> tuple[pa.Table, int]:
    """Return the rows of a file that have one of the keys; write the others into `rest` and return their number.

    Args:
        keys: columns of the file; the second one is the most selective.
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


def _with_keys(rows: pa.Table, indices: pa.Array, keys: pa.Table) -> pa.Array:
    """Return the sorted indices of the rows that have one of the keys."""
    found = rows.append_column(_INDEX, indices).join(keys, keys.column_names, join_type="left semi")[_INDEX]
    return pc.unique(found).sort()


def jobs_of(trees: pa.Table) -> pa.Table:
    """Return `source, job_id` of the jobs in dependency trees."""
    rows = trees.combine_chunks()
    if not rows.num_rows:
        return _JOB.empty_table()
    lists = rows["job_ids"].combine_chunks()
    sources = rows["source"].take(pc.list_parent_indices(lists))
    return pa.table([sources, pc.list_flatten(lists)], names=_JOB.names)


def _hits(
    path: Path, columns: Sequence[str], column: str, wanted: pa.Array
) -> Iterator[tuple[pa.RecordBatch, pa.Array, pa.Array]]:
    """Yield pieces of a file that contain wanted ids, with the indices of their rows and the ids."""
    for piece in pq.ParquetFile(path).iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
        values = piece[column]
        indices: pa.Array | None = None
        if pa.types.is_list(values.type):
            indices, values = pc.list_parent_indices(values), pc.list_flatten(values)
        mask = pc.is_in(values, wanted)
        hits = pc.indices_nonzero(mask)
        if len(hits):
            yield piece, hits if indices is None else indices.take(hits), values.take(hits)
