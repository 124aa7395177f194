"""RQ: SimpleWorker for W3 and W4, its fork worker for W3p."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.peers.handler import note
from benchmarks.peers.product import Product, arguments

QUEUE: Final = "bench"


class Rq(Product):
    name = "RQ"
    stores = ("redis",)
    package = "rq"
    guarantees = "ack after run; the result is kept for 500 s; a lost job is failed, or retried if told to"
    settings = "SimpleWorker; W3p 2 fork workers, the handler imported before"
    drain_jobs = 2_000
    isolated_jobs = 1_000

    def open(self) -> None:
        self._open()
        self._redis.flushall()

    def submit(self, number: int) -> object:
        return self._queue.enqueue(note, kwargs=arguments(number))

    def submit_many(self, numbers: Sequence[int]) -> object:
        from rq import Queue

        return self._queue.enqueue_many(
            [Queue.prepare_data(note, kwargs=arguments(number)) for number in numbers]
        )

    def count_left(self) -> int:
        return int(self._queue.count + self._queue.started_job_registry.count)

    def work(self, workload: str) -> None:
        from rq import SimpleWorker, Worker

        self._open()
        kind: Any = Worker if workload == "w3p" else SimpleWorker
        kind([self._queue], connection=self._redis).work(logging_level="WARNING")

    def worker_processes(self, workload: str) -> int:
        return 2 if workload == "w3p" else 1

    def _open(self) -> None:
        from redis import Redis
        from rq import Queue

        self._redis: Any = Redis.from_url(self.place)
        self._queue: Any = Queue(QUEUE, connection=self._redis)


PRODUCT = Rq
