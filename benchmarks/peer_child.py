"""The worker of another product, in a process of its own: `python -m benchmarks.peer_child <product> <place>`.

Imports nothing of ours: what a fork costs is what was imported before it. Every handler appends a record of 16 bytes.
"""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call, untyped-decorator"
# ruff: noqa: PLC0415  # each product is imported when it is measured
from __future__ import annotations

import importlib
import logging
import os
import struct
import sys
import time
from datetime import timedelta
from typing import Any, Final

RECORD: Final = struct.Struct("<dq")
FILE: Final = "PENSTOCK_BENCH_FILE"
_opened: list[int] = []


def note(i: int, s: str) -> None:  # noqa: ARG001  # the payload of all workloads
    """Say when this job began."""
    if not _opened:
        _opened.append(os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND))
    os.write(_opened[0], RECORD.pack(time.monotonic(), i))


def rq(place: str) -> None:
    """RQ with a process for each job, until its queue is empty."""
    from redis import Redis
    from rq import Queue, Worker

    connection = Redis(unix_socket_path=place)
    Worker([Queue("bench", connection=connection)], connection=connection).work(
        burst=True, logging_level="WARNING"
    )


def huey_of(place: str) -> tuple[Any, Any]:
    """Return the queue in a file and its task, for whoever fills it and whoever empties it."""
    from huey import SqliteHuey

    queue = SqliteHuey(filename=place, fsync=True)
    return queue, queue.task(name="bench")(note)


def huey(place: str) -> None:
    """Two processes, the best setting on SQLite; until told to stop."""
    queue, _ = huey_of(place)
    logging.getLogger("huey").setLevel(logging.ERROR)
    queue.create_consumer(
        workers=2, worker_type="process", periodic=False, initial_delay=0.001, max_delay=0.01
    ).run()


def pgqueuer(place: str) -> None:
    """Until its table is empty, with its fastest driver, loop and batch."""
    import json

    import asyncpg
    import uvloop
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    async def run() -> None:
        pool = await asyncpg.create_pool(place, min_size=4, max_size=8)
        queue = PgQueuer.from_asyncpg_pool(pool)

        @queue.entrypoint("bench")
        async def bench(job: Any) -> None:
            note(**json.loads(job.payload))

        await queue.run(dequeue_timeout=timedelta(seconds=1), batch_size=500, mode=QueueExecutionMode.drain)
        await pool.close()

    uvloop.run(run())


if __name__ == "__main__":
    # Under its own name, and not as __main__: others import the handler by it.
    getattr(importlib.import_module("benchmarks.peer_child"), sys.argv[1])(sys.argv[2])
