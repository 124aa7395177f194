"""Facts about a batch, read from a few columns of its files without Spark, whose queries would take longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.job import FINAL
from penstock.spark.lake._lookup import distinct
from penstock.spark.transforms.rows import LOST, REPORTS

__all__ = ["SMALL_BATCH", "Batch", "Named", "read_batch"]

#: Journal rows up to which a batch is small.
SMALL_BATCH: Final = 200_000
_ROWS_AT_ONCE: Final = 100_000
_HOUR: Final = 3_600_000_000
_FACTS: Final = ("source", "recorded_at", "from_status", "verb", "after", "after_any")
_IDS: Final = ("job_id", "n")


class Named(NamedTuple):
    """`source, job_id` of the jobs in a batch.

    Attributes:
        jobs: those that have rows in it.
        waiting: new jobs that have dependencies.
        awaited: the dependencies.
    """

    jobs: pa.Table
    waiting: pa.Table
    awaited: pa.Table


class Batch(NamedTuple):
    """Facts about a batch, collected once, so that steps without any rows can be skipped.

    Attributes:
        counts: rows by source.
        first_hour: by source, the beginning of its first hour, in microseconds.
        amendments: rows that report the end of a lost attempt.
        from_final: rows that start from a final status.
        dependent: rows of jobs with dependencies.
        named: the jobs of a small batch; None for a large one.
    """

    counts: dict[str, int]
    first_hour: dict[str, int]
    amendments: int
    from_final: int
    dependent: int
    named: Named | None

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def is_small(self) -> bool:
        return self.named is not None

    @property
    def about(self) -> int:
        """The estimated number of its jobs."""
        return self.rows // 3 + 1


def read_batch(paths: Iterable[Path]) -> Batch:
    """Read the facts from files of journal rows, in pieces."""
    files = [pq.ParquetFile(path) for path in paths]
    is_small = sum(file.metadata.num_rows for file in files) <= SMALL_BATCH
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    found: Counter[str] = Counter()
    jobs: list[pa.Table] = []
    waiting: list[pa.Table] = []
    awaited: list[pa.Table] = []
    for file in files:
        for piece in file.iter_batches(_ROWS_AT_ONCE, columns=[*_FACTS, *(_IDS if is_small else ())]):
            for source, rows, earliest in _by_source(piece):
                counts[source] += rows
                first[source] = min(first.get(source, earliest), earliest)
            known = pc.is_in(piece["from_status"], pa.array(sorted(map(str, LOST))))
            report = pc.is_in(piece["verb"], pa.array(sorted(map(str, REPORTS))))
            depends = pc.or_(_has_any(piece["after"]), _has_any(piece["after_any"]))
            found["amendments"] += _true(pc.and_(known, report))
            found["from_final"] += _true(pc.is_in(piece["from_status"], pa.array(sorted(map(str, FINAL)))))
            found["dependent"] += _true(depends)
            if is_small:
                jobs.append(distinct([pa.Table.from_batches([piece])]))
                come = piece.filter(pc.and_(depends, pc.fill_null(pc.equal(piece["n"], 1), fill_value=False)))
                waiting.append(pa.Table.from_batches([come]))
                awaited += (_awaited(come, name) for name in ("after", "after_any"))
    return Batch(
        dict(counts),
        {source: moment // _HOUR * _HOUR for source, moment in first.items()},
        found["amendments"],
        found["from_final"],
        found["dependent"],
        Named(distinct(jobs), distinct(waiting), distinct(awaited)) if is_small else None,
    )


def _by_source(piece: pa.RecordBatch) -> Iterable[tuple[str, int, int]]:
    rows = pa.table({"source": piece["source"], "at": piece["recorded_at"].cast(pa.timestamp("us", "UTC"))})
    grouped = rows.group_by("source").aggregate([("source", "count"), ("at", "min")])
    moments = grouped["at_min"].cast(pa.int64())
    return zip(
        grouped["source"].to_pylist(), grouped["source_count"].to_pylist(), moments.to_pylist(), strict=True
    )


def _has_any(lists: pa.Array) -> pa.Array:
    return pc.fill_null(pc.greater(pc.list_value_length(lists), 0), fill_value=False)


def _true(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _awaited(piece: pa.RecordBatch, name: str) -> pa.Table:
    sources = piece["source"].take(pc.list_parent_indices(piece[name]))
    return pa.table([sources, pc.list_flatten(piece[name])], names=["source", "job_id"])
