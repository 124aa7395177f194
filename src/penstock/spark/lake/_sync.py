"""`sync`: copy the journal into the lake and update its tables, incrementally and exactly once."""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Final, NamedTuple

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import BackendError, invalid
from penstock.spark._planning import Survey, by_source
from penstock.spark._report import Report
from penstock.spark._session import register
from penstock.spark.lake._tables import Sink, derive, stage_events
from penstock.spark.lake._work import Work
from penstock.spark.lake.manifest import VERSION, LakeFolder, Manifest
from penstock.spark.stores import SparkStore, store_at
from penstock.spark.tables import EVENTS, LAKE_TABLES

__all__ = ["SyncProgress", "SyncReport", "sync"]

logger = logging.getLogger("penstock")

_EVENTS_PER_BATCH: Final = 5_000_000


class SyncReport(Report, frozen=True):
    """What a sync did.

    Attributes:
        events: journal rows that were added to the lake.
        batches: batches that were committed.
        seconds: how long it took.
    """

    events: int
    batches: int
    seconds: float


class SyncProgress(msgspec.Struct, frozen=True):
    """The progress of a sync.

    Attributes:
        step: the table that is being updated.
        done: journal rows of this sync that are in the lake.
        total: journal rows that were behind when the sync began.
    """

    step: str
    done: int
    total: int


Progress = Callable[[SyncProgress], None]


class _JournalRange(NamedTuple):
    """Journal rows of one store: those above `after`, up to `upto`."""

    survey: Survey
    after: int
    upto: int


def sync(
    spark: SparkSession,
    url: str | Sequence[str],
    lake: str | os.PathLike[str],
    *,
    events_per_batch: int = _EVENTS_PER_BATCH,
    rebuild: bool = False,
    continuous: bool = False,
    interval: float = 30.0,
    stop: threading.Event | None = None,
    sink: Sink | None = None,
    progress: Progress | None = None,
) -> SyncReport:
    """Add the new rows of the journals of stores to a lake, and update its tables.

    At every moment the lake has each journal up to some row, and tables that are consistent with it; the next sync
    continues there. The lake is a registered consumer of each store, so that no row is archived before it is in the lake.

    Args:
        spark: a session; driver and executors must see the folder.
        url: a store, or several.
        lake: the folder; it is made if it does not exist.
        events_per_batch: the maximum number of journal rows per batch.
        rebuild: first rebuild every table except `events`.
        continuous: run until `stop` is set, polling for new rows every `interval` seconds. A store that cannot be reached
            is polled again; the report then lacks the rows of the interrupted round.
        sink: called with the rows that a batch adds or changes, before its commit: `sink(table, rows, number)`. A batch
            that is repeated after a crash has the same number, but may have more rows.
        progress: called before each step.

    Raises:
        InvalidArgumentError: not a url, not a lake, or two urls of one store.
        BackendError: a store cannot be read, or the lake is locked by another pipeline, damaged, or written by a newer
            version. Batches that were committed before stay.
    """
    started = time.perf_counter()
    stores = _stores(url)
    _check_positive("events_per_batch", events_per_batch)
    _check_positive("interval", interval)
    register(spark)
    stopping = stop or threading.Event()
    events = batches = 0
    _surveys(stores)  # before the folder is created: the url may be wrong
    # A user who may read every one of the stores may read the lake.
    folder = LakeFolder(lake, reduce(operator.and_, (store.file_mode() for store in stores)))
    folder.create()
    with folder.locked():
        current = folder.current()
        rebuilds = rebuild or (current.number > 0 and current.version < VERSION)
        folder.repair(rebuilds=rebuilds)
        runner = _Runner(spark, folder, events_per_batch, sink, progress)
        if rebuilds:
            runner.rebuild()
        while True:
            try:
                moved = runner.run(_surveys(stores), stopping)
                events += moved.events
                batches += moved.batches
            except BackendError as error:
                if not continuous or not error.retryable:
                    raise
                logger.warning("the pipeline will try again: %s", error)
            if not continuous or stopping.wait(interval):
                return SyncReport(events, batches, time.perf_counter() - started)


class _Runner:
    """Adds batches to a locked lake."""

    def __init__(
        self,
        spark: SparkSession,
        folder: LakeFolder,
        limit: int,
        sink: Sink | None,
        progress: Progress | None,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._limit = limit
        self._sink = sink
        self._progress = progress or (lambda _: None)

    def run(self, surveys: Sequence[Survey], stop: threading.Event) -> SyncReport:
        manifest = self._folder.current()
        consumer = f"lake:{self._folder.id}"
        for survey in surveys:
            self._register(survey, manifest, consumer)
        targets = {survey.source: survey.last for survey in surveys}
        total = sum(max(0, last - manifest.offsets.get(source, 0)) for source, last in targets.items())
        done = batches = 0
        while not stop.is_set():
            ranges = self._next(surveys, manifest)
            if not ranges:
                break
            manifest, moved = self._move(ranges, done, total)
            done += moved
            batches += 1
            self._advance(ranges, consumer)
        if manifest.number == 0 and not stop.is_set():
            Work(self._spark, self._folder, manifest).commit({}, {})  # makes empty tables readable
        self._progress(SyncProgress("done", total, total))
        return SyncReport(done, batches, 0.0)

    def rebuild(self) -> None:
        """Rebuild all tables from the events in the lake."""
        before = self._folder.current()
        work = Work(self._spark, self._folder, before)
        for table in LAKE_TABLES.values():
            if table is not EVENTS:
                work.replace(table, before.files(table.name))
        rows = before.rows("events")
        with _store_errors():
            derive(
                work,
                work.paths_now(EVENTS),
                self._sink,
                lambda step: self._progress(SyncProgress(step, 0, rows)),
            )
        work.commit({}, {})

    def _next(self, surveys: Iterable[Survey], manifest: Manifest) -> list[_JournalRange]:
        """Return the next rows of each store; the limit is divided among the stores that have new rows."""
        behind = [each for each in surveys if each.last > manifest.offsets.get(each.source, 0)]
        share = max(1, self._limit // max(1, len(behind)))
        found = []
        for survey in behind:
            after = manifest.offsets.get(survey.source, 0)
            # Rows before the first one were archived.
            begin = max(after, survey.first - 1)
            found.append(_JournalRange(survey, after, min(survey.last, begin + share)))
        return found

    def _move(self, ranges: Sequence[_JournalRange], done: int, total: int) -> tuple[Manifest, int]:
        work = Work(self._spark, self._folder, self._folder.current())

        def step(name: str) -> None:
            self._progress(SyncProgress(name, done, total))

        step("events")
        with _store_errors():
            rows = reduce(DataFrame.unionByName, [self._read(each) for each in ranges])
            stage_events(work, rows)
            if self._sink is not None:
                self._sink("events", work.staged(EVENTS), work.number)
            counts = derive(work, work.staged_paths(EVENTS), self._sink, step)
        step("commit")
        offsets = {each.survey.source: each.upto for each in ranges}
        hidden = {}
        for each in ranges:
            source = each.survey.source
            missing = each.upto - each.after - counts.get(source, 0)
            if missing:
                hidden[source] = min(
                    work.before.hidden.get(source, 0) + missing, _archived(each.survey.store)
                )
        return work.commit(offsets, hidden), sum(counts.values())

    def _read(self, rows: _JournalRange) -> DataFrame:
        read = self._spark.read.format("penstock").option("url", rows.survey.store.url)
        return read.option("minSeq", rows.after + 1).option("maxSeq", rows.upto).load()

    def _register(self, survey: Survey, manifest: Manifest, consumer: str) -> None:
        offset = manifest.offsets.get(survey.source, 0)
        if survey.last < offset:
            raise BackendError(
                f"the journal of {survey.store.location} ends at {survey.last}, but the lake has it up to {offset}:"
                " the store was restored from an older copy; sync it into a new lake"
            )
        with survey.store.open_existing() as backend:
            backend.journal.register_consumer(consumer, seq=offset)
            backend.journal.advance_consumer(consumer, offset)

    def _advance(self, ranges: Iterable[_JournalRange], consumer: str) -> None:
        for each in ranges:
            with each.survey.store.open_existing() as backend:
                backend.journal.advance_consumer(consumer, each.upto)


class _store_errors:  # noqa: N801  # reads as a statement
    """Raises an error of a store that Spark wraps as the original BackendError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, PySparkException) and "BackendError" in str(error):
            lines = [line for line in str(error).splitlines() if "BackendError: " in line]
            text = lines[-1].partition("BackendError: ")[2].strip() if lines else "a store could not be read"
            raise BackendError(
                f"{text}; the lake is as it was after its last batch", retryable=True
            ) from error


def _surveys(stores: Iterable[SparkStore]) -> list[Survey]:
    """Return the id and the journal's range of each store."""
    found = []
    for store in stores:
        with store.open_existing() as backend:
            found.append(Survey.of(store, backend, is_journal=True))
    return list(by_source(found).values())


def _archived(store: SparkStore) -> int:
    """Return how many rows the store has archived; other missing rows were lost."""
    with store.open_existing() as backend:
        return backend.journal.get_archive().rows


def _stores(url: str | Sequence[str]) -> list[SparkStore]:
    urls = [url] if isinstance(url, str) or not isinstance(url, Sequence) else list(url)
    if not urls or not all(isinstance(each, str) for each in urls):
        raise invalid("url", "the url of a store, or several", url)
    return [store_at(each) for each in urls]


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not value > 0:
        raise invalid(name, "above 0", value)
