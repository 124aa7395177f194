"""Huey: tasks in a table, read by a consumer with several processes."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from benchmarks.peers.handler import note
from benchmarks.peers.product import Product, arguments

PROCESSES: Final = {"sqlite": 2, "postgres": 4}


class Huey(Product):
    name = "Huey"
    stores = ("sqlite", "postgres")
    package = "huey"
    guarantees = "at most once: a job is deleted before it runs; no history"
    settings = "fsync; 2 processes on SQLite, 4 on PostgreSQL; polls every 1 to 10 ms on SQLite"
    has_bulk = False
    drain_jobs = 10_000
    has_past = True

    def open(self) -> None:
        self._open()

    def submit(self, number: int) -> object:
        return self._task(**arguments(number))

    def fill(self, numbers: Sequence[int]) -> None:
        self._stop_flushing()
        for number in numbers:
            self.submit(number)

    def count_left(self) -> int:
        return int(self._huey.pending_count())

    def work(self, workload: str) -> None:
        self._open()
        logging.getLogger("huey").setLevel(logging.ERROR)
        # On PostgreSQL a notification wakes the consumer; the delays are for SQLite.
        self._huey.create_consumer(
            workers=1 if workload == "w4" else PROCESSES[self.store],
            worker_type="process", periodic=False, initial_delay=0.001, max_delay=0.01,
        ).run()  # fmt: skip

    def load_past(self, finished: int, delayed: int) -> None:  # noqa: ARG002  # it deletes what has finished
        self._stop_flushing()
        tomorrow = datetime.now() + timedelta(days=1)  # noqa: DTZ005  # as it does
        for number in range(delayed):
            task = self._task.s(**arguments(number))
            task.eta = tomorrow
            # Where its consumer puts a delayed job when it finds one; in the queue it would count as due.
            self._huey.add_schedule(task)

    def _stop_flushing(self) -> None:
        if self.store == "sqlite":
            with self._huey.storage.db() as connection:
                connection.execute("PRAGMA synchronous = OFF")

    def _open(self) -> None:
        from huey import PostgresHuey, SqliteHuey

        self._huey: Any
        if self.store == "sqlite":
            self._huey = SqliteHuey(filename=str(self.folder / "huey.db"), fsync=True)
        else:
            self._huey = PostgresHuey(dsn=self.place)
        self._task = self._huey.task(name="bench")(note)


PRODUCT = Huey
