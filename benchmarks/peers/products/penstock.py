"""Penstock through the API that users call: `@app.job`, `submit`, `submit_many`, `Worker`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import penstock
from benchmarks.peers import handler
from benchmarks.peers.product import OURS, Product, arguments
from penstock import Worker

#: Where the app's store is, for the worker and the template process that it starts.
URL: Final = "PENSTOCK_BENCH_URL"
CHUNK: Final = 5_000

app = penstock.App(os.environ.get(URL))


@app.job(type="bench")
def note(i: int, s: str) -> None:
    handler.note(i, s)


class Penstock(Product):
    name = "Penstock"
    stores = ("sqlite", "postgres")
    environment = OURS
    package = "penstock"
    guarantees = "ack after run, leases, retries, journal of every change"
    settings = "1 thread, 2,000 prefetched; W3p 2 processes, 20 prefetched"
    isolated_jobs = 2_000
    has_past = True

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'penstock.db'}" if self.store == "sqlite" else self.place

    def open(self) -> None:
        self._choose_store()
        app.queue.get_job_stats()  # opens it

    def close(self) -> None:
        app.close()

    def submit(self, number: int) -> object:
        return note.submit(**arguments(number))

    def submit_many(self, numbers: Sequence[int]) -> object:
        return note.submit_many([arguments(number) for number in numbers])

    def count_left(self) -> int:
        stats = app.queue.get_job_stats()
        return stats.pending_jobs + stats.running_jobs + stats.failed_jobs

    def work(self, workload: str) -> None:
        self._choose_store()
        if workload == "w3p":
            worker = Worker(app, concurrency=2, prefetch=20)
        else:
            prefetch = 0 if workload == "w4" else 2_000
            worker = Worker(app, concurrency=1, prefetch=prefetch, isolation="thread")
        worker.run()

    def load_past(self, finished: int, delayed: int) -> None:
        """Store the jobs by the API, finish them by the raw loop, whose statements fire the same triggers."""
        from benchmarks.peers.raw_probe import open_raw  # noqa: PLC0415  # only here

        for first in range(0, finished, CHUNK):
            self.submit_many(range(first, min(first + CHUNK, finished)))
        app.close()
        raw = open_raw(self.store, self.url)
        raw.drain(CHUNK)
        raw.close()
        later = note.options(delay=86_400)
        for first in range(0, delayed, CHUNK):
            later.submit_many([arguments(number) for number in range(first, min(first + CHUNK, delayed))])
        app.queue.backend.maintain()

    def _choose_store(self) -> None:
        app.url = os.environ[URL] = self.url


PRODUCT = Penstock
