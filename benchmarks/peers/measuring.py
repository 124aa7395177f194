"""The workloads, in a process of the product's environment. Imports nothing of Penstock."""

from __future__ import annotations

import gc
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.handler import FILE, RECORD
from benchmarks.peers.product import CLIENTS, Product

CHUNK: Final = 5_000
#: For products without a bulk call: long enough to see their rate.
SINGLE_CHUNK: Final = 500
SLICES: Final = 2
SECONDS: Final = 0.5
BULK_JOBS: Final = 100_000
BULK_SECONDS: Final = 10.0
SUBMITS: Final = 200
WARM_UP: Final = 5
REST_SECONDS: Final = 2.0
GAP_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.005


class VoidError(Exception):
    """A run whose figure would mean nothing."""


@dataclass(frozen=True)
class Size:
    """How much is measured: a tenth of everything in a quick run."""

    is_quick: bool

    def jobs(self, number: int) -> int:
        return max(number // 10, 100) if self.is_quick else number


def measure(product: Product, workload: str, size: Size) -> dict[str, float]:
    """Return the figures of one run; `value` is the one that is compared."""
    gc.collect()
    match workload:
        case "w1":
            return _submit_rate(product, 1)
        case "w1c":
            return _submit_rate(product, CLIENTS)
        case "w2":
            return _bulk_rate(product, size)
        case "w3" | "w5":
            return _drain_rate(product, workload, size.jobs(product.drain_jobs))
        case "w3p":
            return _drain_rate(product, workload, size.jobs(product.isolated_jobs))
        case "w4":
            return _latency(product, size)
    raise ValueError(workload)


def _submit_rate(product: Product, clients: int) -> dict[str, float]:
    product.open()
    product.submit(-1)
    value = statistics.median(product.rate(clients, SECONDS) for _ in range(SLICES))
    product.close()
    return {"value": value}


def _bulk_rate(product: Product, size: Size) -> dict[str, float]:
    product.open()
    number, chunk = size.jobs(BULK_JOBS), CHUNK if product.has_bulk else SINGLE_CHUNK
    product.submit_many(range(-10, 0))
    done, start = 0, time.perf_counter()
    while done < number and time.perf_counter() - start < BULK_SECONDS:
        product.submit_many(range(done, done + chunk))
        done += chunk
    seconds = time.perf_counter() - start
    product.close()
    return {"value": done / seconds, "jobs": done}


def _drain_rate(product: Product, workload: str, number: int) -> dict[str, float]:
    product.open()
    delayed = product.count_left()
    for first in range(0, number, CHUNK):
        product.fill(range(first, min(first + CHUNK, number)))
    _checkpoint(product)
    with _workers(product, workload) as (processes, record):
        starts = _await_starts(processes, record, number)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while left := product.count_left() - delayed:
            if time.monotonic() > give_up_at:
                raise VoidError(f"every job ran, but the store still shows {left} waiting or running")
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - min(starts.values())
    product.close()
    _read_starts(processes.record, number)  # again: a job may have run twice in the meantime
    return {"value": number / seconds, "jobs": number}


def _latency(product: Product, size: Size) -> dict[str, float]:
    submits = size.jobs(2 * SUBMITS) // 2
    product.open()
    with _workers(product, "w4") as (processes, record):
        for number in range(WARM_UP):
            product.submit(number)
            _await_starts(processes, record, number + 1)
        time.sleep(REST_SECONDS)
        returned = product.submit_spaced(WARM_UP, submits, GAP_SECONDS)
        starts = _await_starts(processes, record, WARM_UP + submits)
    product.close()
    waits = sorted(1000 * (starts[number] - moment) for number, moment in returned.items())
    return {
        "value": statistics.median(waits),
        "p99": waits[int(0.99 * (len(waits) - 1))],
        "jobs": submits,
    }


class Workers:
    """The worker processes of a product, and the file that handlers write to."""

    def __init__(self, product: Product, workload: str, folder: Path) -> None:
        self._errors = folder / "errors"
        self.file = folder / "record"
        self.file.touch()
        self.record = b""
        command = [
            sys.executable, "-m", "benchmarks.peers.child", "work",
            type(product).__module__, product.store, product.place, workload,
        ]  # fmt: skip
        with self._errors.open("wb") as errors:
            self._started = [
                subprocess.Popen(
                    command, env={**os.environ, FILE: str(self.file)}, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                )
                for _ in range(product.worker_processes(workload))
            ]  # fmt: skip

    def check(self) -> None:
        """Raise if no worker is left."""
        if all(process.poll() is not None for process in self._started):
            raise VoidError(f"the worker ended by itself: {self.last_words()}")

    def last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-3:])[-300:] or "it said nothing"

    def end(self) -> None:
        """End them with all processes that they started: each has a session of its own."""
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            _kill_session(process)
            process.wait()
        self.record = self.file.read_bytes()


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _workers(product: Product, workload: str) -> Iterator[tuple[Workers, Path]]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        workers = Workers(product, workload, Path(folder))
        try:
            yield workers, workers.file
        finally:
            workers.end()


def _await_starts(workers: Workers, record: Path, number: int) -> dict[int, float]:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while (size := record.stat().st_size) < number * RECORD.size:
        workers.check()
        if time.monotonic() > give_up_at:
            found = size // RECORD.size
            raise VoidError(
                f"{found} of {number} jobs ran within {PATIENCE_SECONDS:.0f} s: {workers.last_words()}"
            )
        time.sleep(POLL_SECONDS)
    return _read_starts(record.read_bytes(), number)


def _read_starts(record: bytes, number: int) -> dict[int, float]:
    """Return when each job started; raise unless each ran exactly once."""
    starts = {job: moment for moment, job in RECORD.iter_unpack(record)}
    if len(starts) * RECORD.size != len(record):
        raise VoidError(f"{len(record) // RECORD.size} runs of {len(starts)} jobs: some ran twice")
    if starts.keys() != set(range(number)):
        raise VoidError(f"{len(starts)} of {number} jobs ran")
    return starts


def settle(product: Product) -> None:
    """Do what the store would do by itself within minutes of a large load."""
    if product.store == "postgres":
        import psycopg  # noqa: PLC0415  # only where PostgreSQL is measured

        with psycopg.connect(product.place, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    _checkpoint(product)


def _checkpoint(product: Product) -> None:
    """Write out what filling left in the write-ahead log, so that the worker does not pay for it."""
    if product.store == "sqlite":
        # In another process: closing a file drops all locks that this process has on it.
        program = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=30).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
        for file in sorted(product.folder.rglob("*.db")):
            subprocess.run([sys.executable, "-c", program, file], check=True)
    elif product.store == "postgres":
        import psycopg  # noqa: PLC0415  # only where PostgreSQL is measured

        with psycopg.connect(product.place, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
