"""arq: Redis and asyncio; it wants an older client of Redis, so it has an environment of its own."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.handler import note
from benchmarks.peers.product import AsyncProduct, arguments


async def bench(_context: Any, i: int, s: str) -> None:
    note(i, s)


class Arq(AsyncProduct):
    name = "arq"
    stores = ("redis",)
    environment = "peers-arq"
    package = "arq"
    guarantees = "ack after run; the result is kept for an hour; a lost job runs again after its timeout"
    settings = "100 jobs at once, poll_delay 5 ms"
    has_bulk = False
    drain_jobs = 10_000

    async def open_async(self) -> None:
        self._pool = await self._connect()
        await self._pool.flushall()

    async def close_async(self) -> None:
        await self._pool.aclose()

    async def submit_async(self, number: int) -> object:
        return await self._pool.enqueue_job("bench", **arguments(number))

    async def submit_many_async(self, numbers: Sequence[int]) -> object:
        # It has no call for many; eight coroutines are what a user would write.
        for first in range(0, len(numbers), 8):
            await asyncio.gather(*(self.submit_async(number) for number in numbers[first : first + 8]))
        return None

    async def count_left_async(self) -> int:
        waiting = await self._pool.zcard("arq:queue")
        running = 0
        async for _ in self._pool.scan_iter("arq:in-progress:*"):
            running += 1
        return int(waiting) + running

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        asyncio.run(self._work())

    async def _work(self) -> None:
        from arq.worker import Worker

        worker = Worker([bench], redis_pool=await self._connect(), max_jobs=100, poll_delay=0.005)
        await worker.main()

    async def _connect(self) -> Any:
        from arq import create_pool
        from arq.connections import RedisSettings

        return await create_pool(RedisSettings.from_dsn(self.place))


PRODUCT = Arq
