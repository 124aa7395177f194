"""`penstock bench`: how fast a store is on this machine.

The measurements use a temporary store on the same disk or server as the named one: they touch no job of the user, and no
worker claims their jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from penstock.backends import Backend
from penstock.backends.drivers import driver_for
from penstock.cli._output import emit_json, emit_table, note
from penstock.cli._settings import DURATION
from penstock.cli._store import AsJson, Store
from penstock.cli._values import as_seconds
from penstock.job import Job
from penstock.queue import Queue

__all__ = ["bench"]

BATCH: Final = 100
#: Jobs that are stored before each measurement that claims: more than it can claim in its time.
STOCK: Final = 20_000


def bench(
    *,
    seconds: Annotated[
        str, typer.Option(metavar=DURATION, help="The duration of each of the six measurements.")
    ] = "2s",
    payload_bytes: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="The size of a payload, in bytes.")
    ] = 100,
    threads: Annotated[
        int, typer.Option(min=1, max=64, help="The number of threads in the measurement with several.")
    ] = 8,
    store: Store,
    as_json: AsJson = False,
) -> None:
    """Measure how fast a store is here.

    It submits, claims and completes jobs in a temporary store on the same disk or server as the named one, and removes that store afterwards.

    Examples:
        penstock bench
        penstock bench --url postgresql://localhost/app --seconds 5
        penstock bench --json
    """
    span = as_seconds(seconds, "seconds", low=0.1, high=600)
    chosen = store.address
    driver = driver_for(chosen)
    note(f"measuring next to {driver.location(chosen)}, about {6 * span:g} s")
    with (
        driver.scratch(chosen) as (url, options),
        replace(store, url=url).open(create=True, **options) as backend,
    ):
        found = _measure(backend, span, b"x" * payload_bytes, threads)
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
    """Repeat an action on some threads until the time is over, and return the number of jobs and the latencies."""
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
        except BaseException as error:  # raised again by the calling thread
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
    """Measure the time from a submission until a waiting consumer has the job, one job after the other."""
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
