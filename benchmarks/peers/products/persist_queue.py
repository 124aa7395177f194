"""persist-queue: SQLiteAckQueue; it has no worker, so a loop of get, run and ack is one."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import signal
import sqlite3
import sys
import time
from typing import Any, Final

from benchmarks.peers.handler import note
from benchmarks.peers.product import Product, arguments

ACKED: Final = 5


class PersistQueue(Product):
    name = "persist-queue"
    stores = ("sqlite",)
    package = "persist-queue"
    guarantees = "ack after run; a lost job runs again when the queue is opened again"
    settings = "SQLiteAckQueue, auto_commit"
    has_bulk = False
    drain_jobs = 10_000
    #: A worker in another process does not see a new job before it looks, and it looks each second at most.
    has_latency = False
    has_past = True

    def open(self) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue: Any = SQLiteAckQueue(str(self.folder), auto_commit=True, multithreading=True)

    def close(self) -> None:
        self._queue.close()

    def submit(self, number: int) -> object:
        return self._queue.put(arguments(number))

    def count_left(self) -> int:
        file = f"file:{self.folder / self._queue.db_file_name}?mode=ro"
        table = self._queue._table_name  # noqa: SLF001  # it says so nowhere else
        connection = sqlite3.connect(file, uri=True)
        (left,) = connection.execute(f"SELECT count(*) FROM {table} WHERE status < {ACKED}").fetchone()
        connection.close()
        return int(left)

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        from persistqueue import Empty

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        self.open()
        while True:
            try:
                job = self._queue.get(block=False, raw=True)
            except Empty:
                time.sleep(0.001)
                continue
            note(**job["data"])
            self._queue.ack(id=job["pqid"])

    def load_past(self, finished: int, delayed: int) -> None:  # noqa: ARG002  # it has no delays
        self.submit(0)
        file, table = self.folder / self._queue.db_file_name, self._queue._table_name  # noqa: SLF001  # as above
        with sqlite3.connect(file, timeout=30) as connection:
            connection.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                f" INSERT INTO {table} (data, timestamp, status)"
                f" SELECT (SELECT data FROM {table} LIMIT 1), 0, {ACKED} FROM n",
                (finished,),
            )
            connection.execute(f"UPDATE {table} SET status = {ACKED}")


PRODUCT = PersistQueue
