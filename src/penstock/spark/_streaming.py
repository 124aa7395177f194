"""The journal as a stream: offsets are `{store id: seq}`, the last row read of each store.

`seq` is assigned after the commit, so no new row ever appears at or below an offset, and no row is missed. Rows never change:
a batch that is read again after a crash has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.backends import Backend
from penstock.errors import BackendError, InvalidArgumentError, PenstockError
from penstock.spark._options import ReadOptions, StreamOptions
from penstock.spark._planning import Survey, by_source, read_range, split
from penstock.spark._scan import Scan
from penstock.spark.schemas import JOURNAL, columns_of
from penstock.spark.stores import FileIdentity, SparkStore

__all__ = ["RefusedReader", "StreamReader"]

Offset = dict[str, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches. One object plans in the driver for the whole query; its copies in tasks read."""

    def __init__(self, options: ReadOptions, stream: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._stream = stream
        self._schema = schema
        self._columns = tuple(columns_of(JOURNAL, schema.fields))
        self._target: Offset | None = None
        self._backends: dict[SparkStore, tuple[FileIdentity, Backend]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backends": {}}

    # -- offsets ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, here and below
        begin = self._stream.starting_offset
        surveys = self._surveys()
        for each in surveys.values():
            if begin is not None and begin > each.last:
                raise InvalidArgumentError(
                    f"startingOffset is {begin}, but the journal of {each.store.location} ends at {each.last};"
                    " to begin after its last row, say latest",
                    field="startingOffset",
                    value=begin,
                )
        return {source: each.last if begin is None else begin for source, each in surveys.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._stream.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        surveys = self._surveys()
        _check_known(start, surveys)
        available = {source: self._available(each, start.get(source, 0)) for source, each in surveys.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(map(len, available.values()))
        taken = _shared({source: len(rows) for source, rows in available.items()}, most)
        return {
            source: rows[taken[source] - 1] if taken[source] else start.get(source, 0)
            for source, rows in available.items()
        }

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {source: each.last for source, each in self._surveys().items()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.reportLatestOffset()

    def _available(self, survey: Survey, after: int) -> range:
        """Return the `seq` of the rows that can be read now, without archived rows at the beginning."""
        _check_reaches(survey, after)
        last = (
            survey.last if self._target is None else min(survey.last, self._target.get(survey.source, after))
        )
        return range(max(after + 1, survey.first), last + 1)

    # -- batches ------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        options = self._options
        surveys = self._surveys()
        # A batch that was planned before a restart comes here first, and would be recorded as read without these checks.
        _check_known({**start, **end}, surveys)
        for source, last in end.items():
            _check_reaches(surveys[source], last)
        ranges: list[InputPartition] = []
        for source, survey in surveys.items():
            scan = Scan(survey.store, source, JOURNAL, self._columns, "", options.batch_rows)
            ranges += split(scan, start.get(source, 0) + 1, end.get(source, 0), options.partitions)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._schema)

    def stop(self) -> None:
        backends, self._backends = self._backends, {}
        for _, backend in backends.values():
            backend.close()

    # -- stores -------------------------------------------------------------------------------------------------

    def _surveys(self) -> dict[str, Survey]:
        """Return the range of each store's journal, in the order of store ids.

        Spark compares offsets as texts, so their order must not depend on the order of the urls.
        """
        surveys = [Survey.of(store, self._opened(store), is_journal=True) for store in self._options.stores]
        return dict(sorted(by_source(surveys).items()))

    def _opened(self, store: SparkStore) -> Backend:
        """Return the open backend of a store; it stays open between batches, unless another file takes its place."""
        identity = store.file_identity()
        known, backend = self._backends.get(store, (None, None))
        if backend is not None and known == identity:
            return backend
        if backend is not None:
            del self._backends[store]
            backend.close()
        backend = store.open_existing()
        self._backends[store] = (identity, backend)
        return backend


class RefusedReader(DataSourceStreamReader):
    """Raises why a stream was refused as soon as it is used.

    If `streamReader` raised instead, Spark would end with an error of its own.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def initialOffset(self) -> Offset:  # noqa: N802
        raise self._error

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002, N802
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:  # noqa: ARG002
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._error


def _check_known(start: Mapping[str, int], surveys: Mapping[str, Survey]) -> None:
    missing = sorted(start.keys() - surveys.keys())
    if missing:
        raise InvalidArgumentError(
            f"the checkpoint has read the stores {', '.join(missing)}, which are not among the urls now: "
            "name all of them, or begin with a new checkpoint",
            field="url",
        )


def _check_reaches(survey: Survey, seq: int) -> None:
    if seq > survey.last:
        raise BackendError(
            f"the stream has read up to {seq} of {survey.store.location}, but its journal ends at {survey.last}: "
            "an older copy has taken its place; begin with a new checkpoint"
        )


def _shared(available: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide a number of rows among stores as evenly as their rows allow."""
    taken: dict[str, int] = {}
    for left, source in zip(
        range(len(available), 0, -1), sorted(available, key=available.__getitem__), strict=True
    ):
        taken[source] = min(available[source], most // left)
        most -= taken[source]
    return taken
