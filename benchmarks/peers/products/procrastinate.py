"""Procrastinate: deferred by its synchronous connector, run by its asyncio worker."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # the product is imported in its own environment only
from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.handler import note
from benchmarks.peers.product import CLIENTS, Product, arguments, encoded


class Procrastinate(Product):
    name = "Procrastinate"
    stores = ("postgres",)
    package = "procrastinate"
    guarantees = "ack after run; rows and events are kept; lost jobs need a task of the user's"
    settings = "concurrency 10"
    drain_jobs = 4_000
    has_past = True

    def open(self) -> None:
        from procrastinate import App, SyncPsycopgConnector

        connector = SyncPsycopgConnector(conninfo=self.place, min_size=1, max_size=CLIENTS)
        self._app: Any = App(connector=connector)
        self._app.open()
        if not self._app.check_connection():
            self._app.schema_manager.apply_schema()
        self._task = self._app.task(name="bench")(note)

    def close(self) -> None:
        self._app.close()

    def submit(self, number: int) -> object:
        return self._task.defer(**arguments(number))

    def submit_many(self, numbers: Sequence[int]) -> object:
        return self._task.batch_defer(*[arguments(number) for number in numbers])

    def count_left(self) -> int:
        row = self._app.connector.execute_query_one(
            "SELECT count(*) AS number FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(row["number"])

    def work(self, workload: str) -> None:  # noqa: ARG002  # the same for all
        from procrastinate import App, PsycopgConnector

        logging.disable(logging.WARNING)
        app = App(connector=PsycopgConnector(conninfo=self.place, min_size=4, max_size=12))

        @app.task(name="bench")
        async def bench(i: int, s: str) -> None:
            note(i, s)

        async def run() -> None:
            async with app.open_async():
                await app.run_worker_async(concurrency=10)

        asyncio.run(run())

    def load_past(self, finished: int, delayed: int) -> None:
        """Insert what its worker leaves: a row per job, and three events."""
        import psycopg

        with psycopg.connect(self.place) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")  # no triggers
            connection.execute(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, attempts)"
                " SELECT 'default', 'bench', %s::jsonb, 'succeeded', 1 FROM generate_series(1, %s)",
                [encoded(0), finished],
            )
            connection.execute(
                "INSERT INTO procrastinate_events (job_id, type) SELECT id, type FROM procrastinate_jobs,"
                " unnest('{deferred,started,succeeded}'::procrastinate_job_event_type[]) AS type"
            )
        later = self._task.configure(schedule_in={"days": 1})
        for first in range(0, delayed, 1_000):
            later.batch_defer(*[arguments(number) for number in range(first, min(first + 1_000, delayed))])


PRODUCT = Procrastinate
