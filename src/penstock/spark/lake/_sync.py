"""From the journal into the lake, incrementally and exactly once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Final, NamedTuple

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import BackendError, InvalidArgumentError, shown
from penstock.spark._places import Place
from penstock.spark._planning import Survey, by_source
from penstock.spark._session import register
from penstock.spark.lake._manifest import VERSION, LakeFolder, Manifest
from penstock.spark.lake._tables import Sink, derive, stage_events
from penstock.spark.lake._work import Work
from penstock.spark.tables import EVENTS, LAKE_TABLES

__all__ = ["SyncProgress", "SyncReport", "sync"]

logger = logging.getLogger("penstock")

_EVENTS_PER_BATCH: Final = 5_000_000


class SyncReport(msgspec.Struct, frozen=True):
    """What a sync did.

    Attributes:
        events: journal rows it moved.
        batches: batches it committed.
        seconds: how long it took.
    """

    events: int
    batches: int
    seconds: float


class SyncProgress(msgspec.Struct, frozen=True):
    """Where a sync is.

    Attributes:
        step: the table it works on.
        done: journal rows that are in the lake.
        total: journal rows that it set out to move.
    """

    step: str
    done: int
    total: int


Progress = Callable[[SyncProgress], None]


class _Stretch(NamedTuple):
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
    """Move what the journals of stores have gained into a lake, and bring its tables up to date.

    Whatever happens, the lake holds the journal up to some row and tables that agree with it; another sync goes on from
    there. The lake is a registered consumer of each store, so that nothing is archived there that it has not got.

    Args:
        spark: a session; driver and executors must see the folder.
        url: a store, or several.
        lake: the folder; it is made if it does not exist.
        events_per_batch: journal rows that become part of the lake at once.
        rebuild: make every table but `events` again, first.
        continuous: go on until `stop` is set, looking for new rows every `interval` seconds. A store that is away for
            some time is waited for; the report then lacks what was moved in the round that it broke.
        sink: is told of the rows that a batch adds or changes, before it is committed: `sink(table, rows, number)`. A
            batch that is repeated after a crash has the same number, but may be longer.
        progress: is told what is done.

    Raises:
        InvalidArgumentError: not a url, not a lake, or two urls of one store.
        BackendError: a store cannot be read, the lake is another pipeline's at the moment, is damaged, or was written by
            a newer version. What was committed before stays.
    """
    started = time.perf_counter()
    places = _places(url)
    _check_positive("events_per_batch", events_per_batch)
    _check_positive("interval", interval)
    register(spark)
    folder = LakeFolder(lake)
    stopping = stop or threading.Event()
    events = batches = 0
    _surveys(places)  # a wrong url makes no folder
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
                moved = runner.run(_surveys(places), stopping)
                events += moved.events
                batches += moved.batches
            except BackendError as error:
                if not continuous or not error.retryable:
                    raise
                logger.warning("the pipeline goes on: %s", error)
            if not continuous or stopping.wait(interval):
                return SyncReport(events, batches, time.perf_counter() - started)


class _Runner:
    """Works through batches on a lake that it has locked."""

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
            stretches = self._next(surveys, manifest)
            if not stretches:
                break
            manifest, moved = self._move(stretches, done, total)
            done += moved
            batches += 1
            self._advance(stretches, consumer)
        if manifest.number == 0 and not stop.is_set():
            Work(self._spark, self._folder, manifest).commit({}, {})  # folders without rows can be read, too
        self._progress(SyncProgress("done", total, total))
        return SyncReport(done, batches, 0.0)

    def rebuild(self) -> None:
        """Make all tables again from the events in the lake."""
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

    def _next(self, surveys: Iterable[Survey], manifest: Manifest) -> list[_Stretch]:
        """Return the next rows of each store; the limit is shared by those that have some."""
        behind = [each for each in surveys if each.last > manifest.offsets.get(each.source, 0)]
        share = max(1, self._limit // max(1, len(behind)))
        found = []
        for survey in behind:
            after = manifest.offsets.get(survey.source, 0)
            # What lies before the first row was archived.
            begin = max(after, survey.first - 1)
            found.append(_Stretch(survey, after, min(survey.last, begin + share)))
        return found

    def _move(self, stretches: Sequence[_Stretch], done: int, total: int) -> tuple[Manifest, int]:
        work = Work(self._spark, self._folder, self._folder.current())

        def step(name: str) -> None:
            self._progress(SyncProgress(name, done, total))

        step("events")
        with _store_errors():
            rows = reduce(DataFrame.unionByName, [self._read(stretch) for stretch in stretches])
            stage_events(work, rows)
            if self._sink is not None:
                self._sink("events", work.staged(EVENTS), work.number)
            counts = derive(work, work.staged_paths(EVENTS), self._sink, step)
        step("commit")
        offsets = {each.survey.source: each.upto for each in stretches}
        hidden = {}
        for each in stretches:
            source = each.survey.source
            missing = each.upto - each.after - counts.get(source, 0)
            if missing:
                hidden[source] = min(
                    work.before.hidden.get(source, 0) + missing, _archived(each.survey.place)
                )
        return work.commit(offsets, hidden), sum(counts.values())

    def _read(self, stretch: _Stretch) -> DataFrame:
        place = stretch.survey.place
        journal = self._spark.read.format("penstock").option("url", place.address).load()
        return journal.where(f"seq > {stretch.after} AND seq <= {stretch.upto}")

    def _register(self, survey: Survey, manifest: Manifest, consumer: str) -> None:
        offset = manifest.offsets.get(survey.source, 0)
        if survey.last < offset:
            raise BackendError(
                f"the journal of {survey.place.shown} ends at {survey.last}, but the lake has it up to {offset}:"
                " the store was restored from an older copy; sync it into a new lake"
            )
        with survey.place.open_existing() as backend:
            backend.register_consumer(consumer, seq=offset)
            backend.advance_consumer(consumer, offset)

    def _advance(self, stretches: Iterable[_Stretch], consumer: str) -> None:
        for stretch in stretches:
            with stretch.survey.place.open_existing() as backend:
                backend.advance_consumer(consumer, stretch.upto)


class _store_errors:  # noqa: N801  # reads as a statement
    """Turns what Spark says about a store that went away into what we say."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, PySparkException) and "BackendError" in str(error):
            told = [line for line in str(error).splitlines() if "BackendError: " in line]
            text = told[-1].partition("BackendError: ")[2].strip() if told else "a store could not be read"
            raise BackendError(
                f"{text}; the lake is as it was after its last batch", retryable=True
            ) from error


def _surveys(places: Iterable[Place]) -> list[Survey]:
    """Ask each store who it is and how far its journal reaches."""
    found = []
    for place in places:
        with place.open_existing() as backend:
            found.append(Survey.of(place, backend, is_journal=True))
    return list(by_source(found).values())


def _archived(place: Place) -> int:
    """Return how many rows the store says it has archived. What else is missing from its journal was lost."""
    with place.open_existing() as backend:
        return backend.get_archive().rows


def _places(url: str | Sequence[str]) -> list[Place]:
    urls = [url] if isinstance(url, str) or not isinstance(url, Sequence) else list(url)
    if not urls or not all(isinstance(each, str) for each in urls):
        raise InvalidArgumentError(
            f"url must be the url of a store, or several, got {shown(url)}", field="url", value=url
        )
    return [Place.of(each) for each in urls]


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not value > 0:
        raise InvalidArgumentError(f"{name} must be above 0, got {shown(value)}", field=name, value=value)
