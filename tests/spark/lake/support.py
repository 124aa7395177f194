"""What a lake must hold, by the pure transforms over the whole journal, and what it holds by other readers."""

from pathlib import Path
from typing import Any

from tests.journals import START, entries_of, frame_of_all, rows_of
from tests.machine_journals import stir

import penstock
from penstock.spark import attempts, flows, hourly, latest, read_table
from penstock.testing import ManualClock

TABLES = ("events", "attempts", "jobs", "hourly", "flows")
SKETCHES = {"wait_sketch", "run_sketch"}


class RandomStore:
    """A SQLite store in a file, to which random things are done."""

    def __init__(self, folder: Path, name: str = "jobs") -> None:
        self.url = f"sqlite:///{folder}/{name}.db"
        self._clock = ManualClock(START)
        with penstock.open_backend(self.url, clock=self._clock) as backend:
            self.id = backend.journal.store_id()

    def stir(self, seed: int, steps: int = 300) -> None:
        with penstock.open_backend(self.url, clock=self._clock) as backend:
            stir(backend, self._clock, seed, steps)

    def entries(self) -> list[Any]:
        with penstock.open_backend(self.url, clock=self._clock) as backend:
            return entries_of(backend)


def assert_lake_is(spark: Any, lake: Path, stores: list[RandomStore]) -> None:
    """Compare every table with what the transforms make of the stores' whole journals."""
    events = frame_of_all(spark, {store.id: store.entries() for store in stores}).cache()
    ended, jobs = attempts(events).cache(), latest(events).cache()
    wanted = {
        "events": events,
        "attempts": ended,
        "jobs": jobs,
        "hourly": hourly(ended, events),
        "flows": flows(jobs),
    }
    for name, frame in wanted.items():
        columns = [column for column in frame.columns if column not in SKETCHES]
        assert rows_of(read_table(spark, lake, name), *columns) == rows_of(frame, *columns), name
    for frame in (events, ended, jobs):
        frame.unpersist()


def files_of(lake: Path) -> dict[str, int]:
    return {
        str(path.relative_to(lake)): path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()
    }
