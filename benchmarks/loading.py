"""Stores with a past: many finished jobs with their journal, delayed ones, ready ones that are not wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from benchmarks.items import make_items
from benchmarks.settings import Settings
from benchmarks.stores import Target
from penstock import Backend, Job

COMMON: Final = "common"
CHUNK: Final = 5_000
OTHER_TYPES: Final = 10


class Past(NamedTuple):
    """How many jobs lie in a store beside those that are measured."""

    finished: int
    delayed: int
    ready: int

    @property
    def total(self) -> int:
        return self.finished + self.delayed + self.ready


FULL: Final = Past(finished=1_000_000, delayed=100_000, ready=100_000)
QUICK: Final = Past(finished=100_000, delayed=10_000, ready=10_000)


def crowded_store(target: Target, settings: Settings) -> str:
    """Return the location of a store with a long past; it is made once a run and kept for the workloads after."""
    known: str | None = target.cache.get("crowded")
    if known is None:
        past = QUICK if settings.quick else FULL
        progress = settings.progress(f"loading {past.total:,} jobs", past.total + past.finished)
        known = target.cache["crowded"] = _load(target, past, progress)
    return known


def _load(target: Target, past: Past, progress: Callable[[int], None]) -> str:
    location = target.create("crowded")
    with target.open(location) as backend:
        for done in insert(backend, _finished(past.finished)):
            progress(done)
    raw = target.open_raw(location)
    # Moved by the raw probe, whose statements fire the same triggers: twice as fast as by the verbs.
    progress(raw.drain(CHUNK))
    raw.close()
    with target.open(location) as backend:
        for jobs in (_delayed(past.delayed), _ready(past.ready)):
            for done in insert(backend, jobs):
                progress(done)
        backend.maintain()
    target.settle(location)
    return location


def insert(backend: Backend, jobs: Iterable[Job]) -> Iterator[int]:
    """Enqueue jobs in chunks, yielding how many each had."""
    source = iter(jobs)
    while chunk := list(islice(source, CHUNK)):
        backend.enqueue_jobs(chunk)
        yield len(chunk)


def _finished(number: int) -> Iterator[Job]:
    return _others(number, None)


def _delayed(number: int) -> Iterator[Job]:
    return _others(number, datetime.now(UTC) + timedelta(days=1))


def _ready(number: int) -> Iterator[Job]:
    return _others(number, None)


def _others(number: int, run_at: datetime | None) -> Iterator[Job]:
    """Yield jobs of ten types, every second one with the common tag."""
    for start in range(0, number, CHUNK):
        for index, (job_id, data) in enumerate(make_items(min(CHUNK, number - start))):
            yield Job(
                id=job_id,
                type=f"other-{index % OTHER_TYPES}",
                payload=data,
                tags=(COMMON,) if index % 2 else (),
                run_at=run_at,
            )
