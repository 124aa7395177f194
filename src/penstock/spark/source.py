"""The data source `penstock`: the journal and the jobs of stores as DataFrames.

    spark.read.format("penstock").option("url", "sqlite:///jobs.db").load()
    spark.read.format("penstock").option("url", url).option("table", "jobs").load()
    spark.read.format("penstock").load(["sqlite:///a.db", "sqlite:///b.db"])

Options (names without regard to case):
    url         a store, or several, as a list or with commas between them; `load(url)` and `load([url, …])` say the same
    table       journal (default) or jobs
    partitions  tasks for each store at most; the driver's number of cores
    batchRows   rows of an Arrow batch at most; 8192
    pushdown    whether filters are decided by the store; true after `register`, else false

and for `spark.readStream` (the journal only):
    startingOffset     earliest (default), latest, or the seq after which to begin, if there is no checkpoint
    maxRowsPerTrigger  rows of a micro-batch at most; all there are

Spark does not tell a Python source which columns a query needs: name them with `.schema("seq bigint, status string")`, and
no others are read. A read of the journal sees everything that was committed before it was planned. The same range read
again gives the same rows, because a journal row never changes. Each task of a read of `jobs` sees the jobs as they are
when it reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark._options import ReadOptions, read_options, stream_options, table_of
from penstock.spark.schemas import JOURNAL, columns_of, struct_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark._filters import Pushed

__all__ = ["PenstockSource", "PushingSource"]


class PenstockSource(DataSource):
    """The format; see the module."""

    _pushes_by_default = False

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return struct_of(table_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options()
        return (PushingReader if options.pushdown else Reader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from penstock.spark._streaming import RefusedReader, StreamReader  # noqa: PLC0415 - brings pyarrow along

        try:
            options = read_options(self.options, pushdown=False, is_stream=True)
            return StreamReader(options, stream_options(self.options), schema)
        except PenstockError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import Writer, sink_options  # noqa: PLC0415 - readers do not need it

        return Writer(sink_options(self.options, is_stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark.sink import StreamWriter, sink_options  # noqa: PLC0415 - the same

        return StreamWriter(sink_options(self.options, is_stream=True), schema, overwrite=overwrite)

    def _options(self) -> ReadOptions:
        return read_options(self.options, pushdown=self._pushes_by_default)


class PushingSource(PenstockSource):
    """The format on a session that lets filters be pushed. On others, a reader that takes filters is an error."""

    _pushes_by_default = True


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
        from penstock.spark._planning import Survey, by_source, split  # noqa: PLC0415 - brings pyarrow along
        from penstock.spark._scan import Scan  # noqa: PLC0415 - the same

        options = self._options
        surveys = []
        for place in options.places:
            with place.open_existing() as backend:
                surveys.append(Survey.of(place, backend, is_journal=options.table is JOURNAL))
        ranges: list[InputPartition] = []
        for source, survey in by_source(surveys).items():
            if wanted.sources is not None and source not in wanted.sources:
                continue
            where = wanted.where(survey.place)
            scan = Scan(
                survey.place, source, options.table, self._columns, where, options.batch_rows, survey.now
            )
            first, last = max(survey.first, wanted.first), min(survey.last, wanted.last)
            ranges += split(scan, first, last, options.partitions)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark._planning import read_range  # noqa: PLC0415 - brings pyarrow along

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
