"""SAQ on PostgreSQL and Redis."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.handler import note
from benchmarks.peers.product import AsyncProduct, arguments


async def bench(_context: Any, *, i: int, s: str) -> None:
    note(i, s)


class Saq(AsyncProduct):
    name = "SAQ"
    stores = ("postgres", "redis")
    package = "saq"
    guarantees = "ack after run; the result is kept for 10 minutes; stuck jobs are swept"
    settings = "concurrency 50"
    has_bulk = False
    drain_jobs = 6_000

    async def open_async(self) -> None:
        from saq import Queue

        self._queue: Any = Queue.from_url(self.place)
        if self.store == "redis":
            await self._queue.redis.flushall()
        await self._queue.connect()

    async def close_async(self) -> None:
        await self._queue.disconnect()

    async def submit_async(self, number: int) -> object:
        return await self._queue.enqueue("bench", **arguments(number))

    async def submit_many_async(self, numbers: Sequence[int]) -> object:
        # Its only call for many waits for results; eight coroutines are what a user would write.
        for first in range(0, len(numbers), 8):
            await asyncio.gather(*(self.submit_async(number) for number in numbers[first : first + 8]))
        return None

    async def count_left_async(self) -> int:
        return int(await self._queue.count("incomplete"))

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        from saq import Queue, Worker

        logging.disable(logging.WARNING)

        async def run() -> None:
            queue = Queue.from_url(self.place)
            await queue.connect()
            await Worker(queue, functions=[bench], concurrency=50).start()

        asyncio.run(run())


PRODUCT = Saq
