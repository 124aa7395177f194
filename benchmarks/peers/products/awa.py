"""Awa: a client and worker in Rust; its wheel has an environment of its own."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.peers.handler import FILLER, note
from benchmarks.peers.product import CLIENTS, AsyncProduct

QUEUE: Final = "bench"
#: Jobs stored without those that completed. `queue_stats` reads counters that follow seconds later, and its view of all
#: jobs takes as long.
LEFT: Final = """SELECT (SELECT count(*) FROM awa.ready_entries)
    - (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
    - (SELECT count(*) FROM awa.done_entries)"""


@dataclass
class Bench:
    i: int
    s: str


class Awa(AsyncProduct):
    name = "Awa"
    stores = ("postgres",)
    environment = "peers-awa"
    package = "awa-pg"
    guarantees = "ack after run; heartbeats, rescue, retries, dead letters"
    settings = "200 workers, queue storage, enqueue_many_copy"

    async def open_async(self) -> None:
        import awa

        self._client: Any = awa.AsyncClient(self._url, max_connections=CLIENTS)
        await self._client.migrate()
        await self._client.install_queue_storage()

    async def close_async(self) -> None:
        await self._client.close()

    @property
    def _url(self) -> str:
        # Its parser wants a host before it reads the one that is a folder of sockets.
        parts = urlsplit(self.place)
        return parts._replace(netloc=parts.netloc if parts.hostname else f"{parts.netloc}localhost").geturl()

    async def submit_async(self, number: int) -> object:
        return await self._client.insert(Bench(number, FILLER), queue=QUEUE)

    async def submit_many_async(self, numbers: Sequence[int]) -> object:
        return await self._client.enqueue_many_copy(
            [Bench(number, FILLER) for number in numbers], queue=QUEUE
        )

    async def count_left_async(self) -> int:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self.place) as connection:
            row = await (await connection.execute(LEFT)).fetchone()
        return max(int(row[0]), 0) if row else 0

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        asyncio.run(self._work())

    async def _work(self) -> None:
        import awa

        client = awa.AsyncClient(self._url, max_connections=20)

        @client.task(Bench, queue=QUEUE)
        async def bench(job: Any) -> None:
            note(job.args.i, job.args.s)

        await client.start([(QUEUE, 200)])
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()
        await client.shutdown()


PRODUCT = Awa
