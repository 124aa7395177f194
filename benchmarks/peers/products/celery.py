"""Celery with Redis as its broker, without results."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

from typing import Any

from benchmarks.peers.handler import note
from benchmarks.peers.product import Product, arguments


class Celery(Product):
    name = "Celery"
    stores = ("redis",)
    package = "celery"
    guarantees = "ack before run: at most once; no history"
    settings = "2 processes, no gossip, no mingle, results ignored"
    has_bulk = False
    drain_jobs = 6_000

    def open(self) -> None:
        self._open()
        self._redis.flushall()

    def submit(self, number: int) -> object:
        return self._task.apply_async(kwargs=arguments(number))

    def count_left(self) -> int:
        # It acknowledges when it receives: what is left is in the list, or in memory of its worker.
        return int(self._redis.llen("celery")) + int(self._redis.hlen("unacked"))

    def work(self, workload: str) -> None:
        self._open()
        processes = "1" if workload == "w4" else "2"
        self._app.worker_main(
            ["worker", "-c", processes, "--without-gossip", "--without-mingle", "--without-heartbeat",
             "-l", "ERROR"]
        )  # fmt: skip

    def _open(self) -> None:
        from celery import Celery as App
        from redis import Redis

        self._redis: Any = Redis.from_url(self.place)
        self._app: Any = App("bench", broker=self.place)
        self._app.conf.update(
            task_ignore_result=True, worker_prefetch_multiplier=100, broker_connection_retry_on_startup=True
        )
        self._task = self._app.task(name="bench")(note)


PRODUCT = Celery
