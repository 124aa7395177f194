"""The data source `penstock`: the journal and the jobs of stores as DataFrames.

    spark.read.format("penstock").option("url", "sqlite:///jobs.db").load()
    spark.read.format("penstock").option("url", url).option("table", "jobs").load()
    spark.read.format("penstock").load(["sqlite:///a.db", "sqlite:///b.db"])

Options (names are case-insensitive):
    url         a store, or several, as a list or with commas between them; `load(url)` and `load([url, …])` are the same
    table       journal (default) or jobs
    partitions  maximum tasks per store; default: the driver's number of cores
    batchRows   maximum rows per Arrow batch; default: 8192

for `spark.read` only, to read a part of a table:
    minSeq, maxSeq  the first and the last `seq` (journal)
    since, until    moments with a time zone: `recorded_at` of a journal row, or `created_at` of a job, is not before
                    `since` and is before `until`
    statuses        rows with one of these statuses; a list, or with commas between them
    types           rows of jobs of these types; the same

for `spark.readStream` only (the journal):
    startingOffset     where to begin without a checkpoint: earliest (default), latest, or the seq after which to begin
    maxRowsPerTrigger  maximum rows per micro-batch; default: no limit

Spark does not pass the columns that a query needs to a Python source: `.schema("seq bigint, status string")` names the ones
to read. Filters of Spark are not pushed into the store, because Spark 4.3 would return wrong rows (see `_selection`).

A read of the journal has every row that was committed before it was planned, which is when its DataFrame is first used;
the same DataFrame always has the same rows, because journal rows never change. A read of `jobs` has the jobs as they are when
each task reads them, however old the DataFrame is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark._options import ReadOptions, read_options, stream_options, table_of
from penstock.spark.schemas import JOURNAL, columns_of, struct_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PenstockSource"]


class PenstockSource(DataSource):
    """The format `penstock`; see the module."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return struct_of(table_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from penstock.spark._streaming import RefusedReader, StreamReader  # noqa: PLC0415 - imports pyarrow

        try:
            options = read_options(self.options, is_stream=True)
            return StreamReader(options, stream_options(self.options), schema)
        except PenstockError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import Writer, sink_options  # noqa: PLC0415 - readers do not need it

        return Writer(sink_options(self.options, is_stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark.sink import StreamWriter, sink_options  # noqa: PLC0415 - the same

        return StreamWriter(sink_options(self.options, is_stream=True), schema, overwrite=overwrite)


class Reader(DataSourceReader):
    """Plans and reads a table of one or several stores."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = tuple(columns_of(options.table, schema.fields))

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark._planning import Survey, by_source, planned  # noqa: PLC0415 - imports pyarrow
        from penstock.spark._scan import Scan  # noqa: PLC0415 - the same

        options = self._options
        table, selection = options.table, options.selection
        surveys = []
        for store in options.stores:
            with store.open_existing() as backend:
                surveys.append(Survey.of(store, backend, is_journal=table is JOURNAL))
        ranges: list[InputPartition] = []
        for source, survey in by_source(surveys).items():
            where = selection.where(survey.store, table)
            scan = Scan(survey.store, source, table, self._columns, where, options.batch_rows)
            ranges += planned(scan, *selection.bounds(survey.first, survey.last), options.partitions)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark._planning import read_range  # noqa: PLC0415 - imports pyarrow

        return read_range(partition, self._schema)
