"""PgQueuer: its fastest driver, loop and batch."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from benchmarks.peers.handler import note
from benchmarks.peers.product import CLIENTS, AsyncProduct, encoded


class PgQueuer(AsyncProduct):
    name = "PgQueuer"
    stores = ("postgres",)
    package = "pgqueuer"
    guarantees = "ack after run; a log row per change; jobs without heartbeat run again"
    settings = "asyncpg, uvloop, batch_size 500"
    has_past = True

    def new_loop(self) -> asyncio.AbstractEventLoop:
        import uvloop

        return uvloop.new_event_loop()  # type: ignore[no-any-return,unused-ignore]

    async def open_async(self) -> None:
        import asyncpg
        from pgqueuer import AsyncpgPoolDriver, Queries

        self._pool: Any = await asyncpg.create_pool(self.place, min_size=CLIENTS, max_size=CLIENTS)
        self._queries: Any = Queries(AsyncpgPoolDriver(self._pool))
        if await self._pool.fetchval("SELECT to_regclass('pgqueuer')") is None:
            await self._queries.install()

    async def close_async(self) -> None:
        await self._pool.close()

    async def submit_async(self, number: int) -> object:
        return await self._queries.enqueue("bench", encoded(number).encode(), 0)

    async def submit_many_async(self, numbers: Sequence[int]) -> object:
        payloads = [encoded(number).encode() for number in numbers]
        return await self._queries.enqueue(["bench"] * len(payloads), payloads, [0] * len(payloads))

    async def count_left_async(self) -> int:
        return int(await self._pool.fetchval("SELECT count(*) FROM pgqueuer"))

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        import uvloop

        uvloop.run(self._work())

    async def _work(self) -> None:
        import asyncpg
        from pgqueuer import PgQueuer as Application

        pool = await asyncpg.create_pool(self.place, min_size=4, max_size=8)
        application = Application.from_asyncpg_pool(pool)

        @application.entrypoint("bench")
        async def bench(job: Any) -> None:
            note(**json.loads(job.payload))

        await application.run(dequeue_timeout=timedelta(seconds=1), batch_size=500)

    def load_past(self, finished: int, delayed: int) -> None:
        self.call(self._load_past(finished, delayed))

    async def _load_past(self, finished: int, delayed: int) -> None:
        """Insert what its worker leaves: log rows of each change, folded or not."""
        await self._pool.execute(
            "INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, aggregated)"
            " SELECT i, status, 0, 'bench', true FROM generate_series(1, $1::bigint) AS i,"
            " unnest('{queued,picked,successful}'::pgqueuer_status[]) AS status",
            finished,
            timeout=600,
        )
        for first in range(0, delayed, 5_000):
            number = min(5_000, delayed - first)
            await self._queries.enqueue(
                ["bench"] * number, [encoded(first).encode()] * number, [0] * number,
                [timedelta(days=1)] * number,
            )  # fmt: skip


PRODUCT = PgQueuer
