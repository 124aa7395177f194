"""The data source `penstock`: the journal and the jobs of stores as DataFrames.

    spark.read.format("penstock").option("url", "sqlite:///jobs.db").load()
    spark.read.format("penstock").option("url", url).option("table", "jobs").load()
    spark.read.format("penstock").load(["sqlite:///a.db", "sqlite:///b.db"])

Options (names without regard to case):
    url         a store, or a JSON array of stores; `load(url)` and `load([url, …])` say the same
    table       journal (default) or jobs
    storeSchema the schema of a PostgreSQL store; penstock
    partitions  tasks for each store at most; the driver's number of cores
    batchRows   rows of an Arrow batch at most; 8192
    pushdown    whether filters are decided by the store; true after `register`, else false

Spark does not tell a Python source which columns a query needs: name them with `.schema("seq bigint, status string")`, and
no others are read. A read of the journal sees everything that was committed before it was planned. The same range read
again gives the same rows, because a journal row never changes. Each task of a read of `jobs` sees the jobs as they are
when it reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.clock import to_micros
from penstock.errors import InvalidArgumentError
from penstock.spark._options import ReadOptions, read_options
from penstock.spark._places import Place
from penstock.spark.schemas import JOURNAL, columns_of, struct_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark._filters import Pushed
    from penstock.spark._scan import Scan

__all__ = ["PenstockSource", "PushingSource"]

#: Fewer rows are not worth a task.
_ROWS_PER_TASK: Final = 100_000


class PenstockSource(DataSource):
    """The format; see the module."""

    _pushes_by_default = False

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return struct_of(self._options().table)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options()
        return (PushingReader if options.pushdown else Reader)(options, schema)

    def _options(self) -> ReadOptions:
        return read_options(self.options, pushdown=self._pushes_by_default)


class PushingSource(PenstockSource):
    """The format on a session that lets filters be pushed. On others, a reader that takes filters is an error."""

    _pushes_by_default = True


@dataclass(frozen=True)
class Range(InputPartition):
    """The rows of one store whose numbers lie from `first` to `last`."""

    scan: Scan
    first: int
    last: int


class Reader(DataSourceReader):
    """Plans and reads a table of one or several stores."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = tuple(columns_of(options.table, schema.fields))

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark._filters import Pushed  # noqa: PLC0415 - executors do not need it

        return self._planned(Pushed())

    def _planned(self, wanted: Pushed) -> list[InputPartition]:
        ranges: list[InputPartition] = []
        for survey in surveyed(self._options.places, self._options.table is JOURNAL):
            if wanted.sources is not None and survey.source not in wanted.sources:
                continue
            scan = self._scan(survey, wanted.where(survey.place))
            first, last = max(survey.first, wanted.first), min(survey.last, wanted.last)
            ranges += split(scan, first, last, self._options.partitions)
        return ranges

    def _scan(self, survey: Survey, where: str) -> Scan:
        from penstock.spark._scan import Scan  # noqa: PLC0415 - brings pyarrow along

        options = self._options
        return Scan(
            survey.place, survey.source, options.table, self._columns, where, options.batch_rows, survey.now
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._schema)


class PushingReader(Reader):
    """A reader that hands filters to the store. Spark applies them again, so they need not be exact."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._filters = list(filters)
        return self._filters

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark._filters import pushed  # noqa: PLC0415 - executors do not need it

        return self._planned(pushed(self._filters, self._options.table))


@dataclass(frozen=True)
class Survey:
    """What a store said when a read was planned."""

    place: Place
    source: str
    first: int
    last: int
    now: int


def surveyed(places: Iterable[Place], is_journal: bool) -> list[Survey]:
    """Ask each store who it is and how far its table reaches.

    Raises:
        BackendError: there is no store at a place, or it cannot be reached.
        InvalidArgumentError: two places are the same store.
    """
    found: dict[str, Survey] = {}
    for place in places:
        with place.open_existing() as backend:
            source = backend.store_id()
            # On PostgreSQL this numbers what was committed: only numbered rows can be read.
            first, last = backend.journal_span() if is_journal else backend.jobs_span()
            now = to_micros(backend.now())
        if source in found:
            raise InvalidArgumentError(
                f"{place.shown} and {found[source].place.shown} are the same store ({source}); name it once",
                field="url",
            )
        found[source] = Survey(place, source, first, last, now)
    return list(found.values())


def split(scan: Scan, first: int, last: int, most: int) -> list[Range]:
    """Divide a range of numbers among at most so many tasks, none of them too small to be worth it."""
    rows = last - first + 1
    if rows < 1:
        return []
    tasks = max(1, min(most, -(-rows // _ROWS_PER_TASK)))
    bounds = [first + rows * number // tasks for number in range(tasks + 1)]
    return [Range(scan, begin, end - 1) for begin, end in itertools.pairwise(bounds)]


def read_range(partition: InputPartition, schema: StructType) -> Iterator[Any]:
    """Read a planned range; what Spark plans for nothing at all has no rows."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - brings pandas along

    if not isinstance(partition, Range):
        return iter(())
    return partition.scan.batches(partition.first, partition.last, to_arrow_schema(schema, timezone="UTC"))
