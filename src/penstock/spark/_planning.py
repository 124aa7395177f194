"""What batch and stream reads have in common: asking stores how far they reach, and dividing that among tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.backends.base import Backend
from penstock.clock import to_micros
from penstock.errors import InvalidArgumentError
from penstock.spark._places import Place
from penstock.spark._scan import Scan

__all__ = ["Range", "Survey", "by_source", "read_range", "split"]

#: Fewer rows are not worth a task.
_ROWS_PER_TASK: Final = 100_000


@dataclass(frozen=True)
class Range(InputPartition):
    """The rows of one store whose numbers lie from `first` to `last`."""

    scan: Scan
    first: int
    last: int


@dataclass(frozen=True)
class Survey:
    """What a store said when a read was planned."""

    place: Place
    source: str
    first: int
    last: int
    now: int

    @classmethod
    def of(cls, place: Place, backend: Backend, *, is_journal: bool) -> Survey:
        # On PostgreSQL the first of these numbers what was committed: only numbered rows can be read.
        first, last = backend.journal_span() if is_journal else backend.jobs_span()
        return cls(place, backend.store_id(), first, last, to_micros(backend.now()))


def by_source(surveys: Iterable[Survey]) -> dict[str, Survey]:
    """Return surveys by their store's id.

    Raises:
        InvalidArgumentError: two places are the same store.
    """
    found: dict[str, Survey] = {}
    for survey in surveys:
        other = found.setdefault(survey.source, survey)
        if other is not survey:
            raise InvalidArgumentError(
                f"{survey.place.shown} and {other.place.shown} are the same store ({survey.source}); name it once",
                field="url",
            )
    return found


def split(scan: Scan, first: int, last: int, most: int) -> list[Range]:
    """Divide a range of numbers among at most so many tasks, none of them too small to be worth it."""
    rows = last - first + 1
    if rows < 1:
        return []
    tasks = max(1, min(most, -(-rows // _ROWS_PER_TASK)))
    bounds = [first + rows * number // tasks for number in range(tasks + 1)]
    return [Range(scan, begin, end - 1) for begin, end in itertools.pairwise(bounds)]


def read_range(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read a planned range; what Spark plans for nothing at all has no rows."""
    if not isinstance(partition, Range):
        return iter(())
    return partition.scan.batches(partition.first, partition.last, to_arrow_schema(schema, timezone="UTC"))
