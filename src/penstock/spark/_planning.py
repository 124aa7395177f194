"""Planning of batch and stream reads: reading the range of `seq` of each store, and dividing it into tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.backends import Backend
from penstock.errors import InvalidArgumentError
from penstock.spark._scan import NEWEST, Scan
from penstock.spark.schemas import JOURNAL
from penstock.spark.stores import SparkStore

__all__ = ["Range", "Survey", "by_source", "planned", "read_range", "split"]

#: The minimum number of rows that justifies a task.
_ROWS_PER_TASK: Final = 100_000


@dataclass(frozen=True)
class Range(InputPartition):
    """The rows of one store whose `seq` is from `first` to `last`."""

    scan: Scan
    first: int
    last: int


@dataclass(frozen=True)
class Survey:
    """The first and the last `seq` of a store when a read was planned."""

    store: SparkStore
    source: str
    first: int
    last: int

    @classmethod
    def of(cls, store: SparkStore, backend: Backend, *, is_journal: bool) -> Survey:
        # On PostgreSQL `journal_span` first assigns `seq` to committed rows: rows without one cannot be read.
        first, last = backend.journal.span() if is_journal else backend.reading.jobs_span()
        return cls(store, backend.journal.store_id(), first, last)


def by_source(surveys: Iterable[Survey]) -> dict[str, Survey]:
    """Return surveys by their store's id.

    Raises:
        InvalidArgumentError: two urls name the same store.
    """
    found: dict[str, Survey] = {}
    for survey in surveys:
        other = found.setdefault(survey.source, survey)
        if other is not survey:
            raise InvalidArgumentError(
                f"{survey.store.location} and {other.store.location} are the same store ({survey.source}); name it once",
                field="url",
            )
    return found


def planned(scan: Scan, first: int, last: int, most: int) -> list[Range]:
    """Return the ranges of a batch read.

    The last range of the table jobs has no end: Spark plans a DataFrame once, and it includes jobs that are added later.
    """
    ranges = split(scan, first, last, most)
    if scan.table is JOURNAL:
        return ranges
    begin = ranges.pop().first if ranges else max(first, 1)
    return [*ranges, Range(scan, begin, NEWEST)]


def split(scan: Scan, first: int, last: int, most: int) -> list[Range]:
    """Divide a range of `seq` into at most `most` ranges, none of them too small to justify a task."""
    rows = last - first + 1
    if rows < 1:
        return []
    tasks = max(1, min(most, -(-rows // _ROWS_PER_TASK)))
    bounds = [first + rows * number // tasks for number in range(tasks + 1)]
    return [Range(scan, begin, end - 1) for begin, end in itertools.pairwise(bounds)]


def read_range(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read a planned range; the partition that Spark makes for an empty plan has no rows."""
    if not isinstance(partition, Range):
        return iter(())
    return partition.scan.batches(partition.first, partition.last, to_arrow_schema(schema, timezone="UTC"))
