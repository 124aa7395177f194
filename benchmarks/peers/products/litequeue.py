"""litequeue: a table of messages; it has no worker, so a loop of pop, run and done is one."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.peers.handler import note
from benchmarks.peers.product import Product, encoded

IDLE_SECONDS: Final = 0.001
READY, DONE = 0, 2


class LiteQueue(Product):
    name = "litequeue"
    stores = ("sqlite",)
    package = "litequeue"
    guarantees = "ack after run; nothing reclaims the job of a lost worker"
    settings = "synchronous FULL; one transaction per 5,000 in W2; loop polls every 1 ms"
    drain_jobs = 8_000
    has_past = True

    def open(self) -> None:
        self._local = threading.local()
        self._queue()

    def submit(self, number: int) -> object:
        return self._queue().put(encoded(number))

    def submit_many(self, numbers: Sequence[int]) -> object:
        queue = self._queue()
        with queue.transaction():
            for number in numbers:
                queue.put(encoded(number))
        return None

    def count_left(self) -> int:
        return int(self._queue().qsize())

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        self.open()
        queue = self._queue()
        while True:
            message = queue.pop()
            if message is None:
                time.sleep(IDLE_SECONDS)
                continue
            note(**json.loads(message.data))
            queue.done(message.message_id)

    def load_past(self, finished: int, delayed: int) -> None:  # noqa: ARG002  # it has no delays
        connection = self._queue().conn
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO Queue (data, message_id, status, in_time, lock_time, done_time)"
            " SELECT ?, printf('00000000-%012d', i), ?, 1, 2, 3 FROM n",
            (finished, encoded(0), DONE),
        )

    def _queue(self) -> Any:
        # A connection belongs to the thread that opened it.
        if not hasattr(self._local, "queue"):
            from litequeue import LiteQueue as Queue

            self._local.queue = Queue(str(self.folder / "litequeue.db"))
            self._local.queue.conn.execute("PRAGMA synchronous = FULL")
            self._local.queue.conn.execute("PRAGMA busy_timeout = 10000")
        return self._local.queue


PRODUCT = LiteQueue
