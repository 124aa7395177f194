"""`penstock bench`: what this store does on this machine.

A store of its own is made beside the one that is named, on the same disk or server, and removed at the end: no job of the
user's is touched, and no worker sees what is measured.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.backends.base import Backend
from penstock.cli._output import emit_json, emit_table, note
from penstock.cli._store import AsJson, Url, open_store
from penstock.connection import default_url, postgres_location, sqlite_file
from penstock.errors import InvalidArgumentError
from penstock.job import Job
from penstock.queue import Queue

__all__ = ["bench"]

BATCH: Final = 100
#: So many jobs wait for each measurement that takes some: more than it can take in its time.
STOCK: Final = 20_000


def bench(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600, help="How long each of the six measurements takes.")
    ] = 2.0,
    payload_bytes: Annotated[int, typer.Option(min=0, max=1_000_000, help="Size of a payload.")] = 100,
    threads: Annotated[
        int, typer.Option(min=1, max=64, help="Threads of the measurements with several.")
    ] = 8,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a store does here.

    Submitting, claiming and completing, on this machine's disk or on a server. Uses a store of its own beside the named one, and removes it afterwards.

    Examples:
        penstock bench
        penstock bench --url postgresql://localhost/app --seconds 5
        penstock bench --json
    """
    chosen = url or default_url()
    note(f"measuring beside {_place(chosen)}, about {6 * seconds:g} s")
    with _own_store(chosen) as (own_url, options), open_store(own_url, create=True, **options) as backend:
        found = _measure(backend, seconds, b"x" * payload_bytes, threads)
    if as_json:
        emit_json({"store": chosen.partition(":")[0], "payload_bytes": payload_bytes, "results": found})
        return
    emit_table(
        ["what", "jobs/s", "p50", "p99"],
        [
            (each["what"], f"{each['jobs_per_second']:,.0f}", _ms(each["p50_ms"]), _ms(each["p99_ms"]))
            for each in found
        ],
        right=["jobs/s", "p50", "p99"],
    )


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} ms"


def _measure(backend: Backend, seconds: float, payload: bytes, threads: int) -> list[dict[str, Any]]:
    def a_job() -> Job:
        return Job.new("bench", payload)

    def stock() -> None:
        waiting = backend.get_job_stats().pending_jobs
        if waiting < STOCK:
            backend.enqueue_jobs(a_job() for _ in range(STOCK - waiting))

    def submit_one() -> int:
        backend.enqueue_job(a_job())
        return 1

    def submit_batch() -> int:
        backend.enqueue_jobs([a_job() for _ in range(BATCH)])
        return BATCH

    def run_one() -> int:
        jobs = backend.dequeue_jobs("bench")
        for job in jobs:
            backend.complete_job(job.id, attempt=job.attempt)
        return len(jobs)

    def run_batch() -> int:
        jobs = backend.dequeue_jobs("bench", limit=BATCH)
        backend.complete_jobs(
            dict.fromkeys(job.id for job in jobs), attempts={job.id: job.attempt for job in jobs}
        )
        return len(jobs)

    results = [
        _timed("submit, one at a time", submit_one, seconds, 1),
        _timed(f"submit, {threads} threads", submit_one, seconds, threads),
        _timed(f"submit, {BATCH} at a time", submit_batch, seconds, 1),
    ]
    stock()
    results.append(_timed("claim and complete, one at a time", run_one, seconds, 1))
    stock()
    results.append(_timed(f"claim and complete, {BATCH} at a time", run_batch, seconds, 1))
    _drain(backend)
    results.append(_delivery(backend, seconds, payload))
    return results


def _timed(what: str, act: Callable[[], int], seconds: float, threads: int) -> dict[str, Any]:
    """Repeat an act for some seconds, on some threads, and return how many jobs that was and how long one act took."""
    spans: list[float] = []
    totals: list[int] = []
    errors: list[BaseException] = []
    begin = time.perf_counter()

    def work() -> None:
        own: list[float] = []
        total = 0
        try:
            while (start := time.perf_counter()) < begin + seconds:
                number = act()
                if not number:
                    break
                total += number
                own.append(time.perf_counter() - start)
        except BaseException as error:  # told to the thread that asked
            errors.append(error)
        spans.extend(own)
        totals.append(total)

    if threads == 1:
        work()
    else:
        workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    if errors:
        raise errors[0]
    return _figures(what, sum(totals), time.perf_counter() - begin, spans)


def _delivery(backend: Backend, seconds: float, payload: bytes) -> dict[str, Any]:
    """Measure from a submission to the moment that a waiting consumer has the job, one job after the other."""
    queue = Queue(backend)
    spans: list[float] = []
    with queue.stream_jobs("bench") as stream:
        jobs = iter(stream)
        begin = time.perf_counter()
        while (start := time.perf_counter()) < begin + seconds:
            queue.submit("bench", payload)
            batch = next(jobs)
            spans.append(time.perf_counter() - start)
            queue.complete_jobs(dict.fromkeys(job.id for job in batch))
        total = time.perf_counter() - begin
    return _figures("submit until a waiting consumer has it", len(spans), total, spans)


def _drain(backend: Backend) -> None:
    while jobs := backend.dequeue_jobs("bench", limit=1000):
        backend.complete_jobs(dict.fromkeys(job.id for job in jobs))


def _figures(what: str, jobs: int, seconds: float, spans: list[float]) -> dict[str, Any]:
    ordered = sorted(spans)
    middle = ordered[len(ordered) // 2] if ordered else None
    return {
        "what": what,
        "jobs": jobs,
        "seconds": round(seconds, 3),
        "jobs_per_second": round(jobs / seconds, 1) if seconds else 0.0,
        "p50_ms": None if middle is None else round(middle * 1000, 3),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000, 3)
        if ordered
        else None,
    }


# -- a store of its own ----------------------------------------------------------------------------------------------


def _place(url: str) -> str:
    if url.startswith("sqlite"):
        return str(Path(sqlite_file(url)).absolute())
    return url.partition(":")[0] + " server"  # the rest may hold a password


@contextmanager
def _own_store(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    scheme = url.partition(":")[0].lower()
    if scheme.startswith("postgres"):
        location, options = postgres_location(url)
        schema = f"penstock_bench_{uuid.uuid4().hex[:12]}"
        try:
            yield location, {**options, "schema": schema}
        finally:
            _drop(location, schema)
    elif scheme == "sqlite":
        file = Path(sqlite_file(url)).absolute()
        if not file.parent.is_dir():
            raise InvalidArgumentError(f"there is no folder {file.parent}", field="url", value=url)
        # Beside the store: the system's folder for temporary files may lie in memory.
        folder = tempfile.mkdtemp(prefix=".penstock-bench-", dir=file.parent)
        query = url.partition("?")[2]
        try:
            yield f"sqlite:///{folder}/bench.db{'?' if query else ''}{query}", {}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        yield url, {}  # refused where every store is opened


def _drop(url: str, schema: str) -> None:
    with contextlib.suppress(ImportError):
        import psycopg  # noqa: PLC0415  # an extra

        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
                connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        except psycopg.Error as error:
            note(f"the schema {schema} is left behind, drop it by hand: {error}")
