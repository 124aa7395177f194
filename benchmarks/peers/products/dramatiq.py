"""Dramatiq with Redis as its broker."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from benchmarks.peers.handler import note
from benchmarks.peers.product import Product, arguments


class Dramatiq(Product):
    name = "Dramatiq"
    stores = ("redis",)
    package = "dramatiq"
    guarantees = "ack after run; retries; no history"
    settings = "16 threads"
    has_bulk = False
    drain_jobs = 10_000

    def open(self) -> None:
        self._open()
        self._broker.client.flushall()

    def close(self) -> None:
        self._broker.close()

    def submit(self, number: int) -> object:
        return self._actor.send(**arguments(number))

    def count_left(self) -> int:
        # Waiting, and fetched but not acknowledged.
        client = self._broker.client
        fetched = sum(client.scard(key) for key in client.scan_iter("dramatiq:__acks__.*"))
        return int(client.hlen("dramatiq:default.msgs")) + int(fetched)

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        from dramatiq import Worker

        logging.disable(logging.WARNING)
        self._open()
        worker = Worker(self._broker, worker_threads=16, worker_timeout=100)
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        worker.start()
        stopped.wait()
        worker.stop()

    def _open(self) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self._broker: Any = RedisBroker(url=self.place)
        dramatiq.set_broker(self._broker)
        self._actor: Any = dramatiq.actor(note, actor_name="bench", broker=self._broker)


PRODUCT = Dramatiq
