"""Workers: an app's jobs on threads beside the raw loop, and how soon a job in a process of its own begins.

The handler is one write of 16 bytes (the clock and the job's number) to a file, nothing else. The worker of a process each
runs in a process of its own, as small as a user's; it imports the app from this module.
"""

from __future__ import annotations

import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.items import TYPE, job_of, make_items
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Pair, Target, open_url
from benchmarks.timing import alternate
from penstock import App, Queue, Worker
from penstock.app.client import QueueClient

JOBS: Final = 30_000
CHUNK: Final = 5_000
PREFETCH: Final = 2_000
AT_ONCE: Final = 2
SUBMITS: Final = 200
WARM_UP: Final = 5
GAP: Final = 0.05
RECORD: Final = "BENCH_RECORD"

APP = App()
_record: list[int] = []


@APP.job(type=TYPE)
def note(i: int, s: str) -> None:  # noqa: ARG001  # the payload of the other workloads
    if not _record:
        _record.append(os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND))
    os.write(_record[0], struct.pack("dq", time.monotonic(), i))


@contextmanager
def recording() -> Iterator[Path]:
    """Give the file that handlers write to, empty."""
    with tempfile.NamedTemporaryFile(prefix="penstock-bench-") as file:
        os.environ[RECORD] = file.name
        for descriptor in _record:
            os.close(descriptor)
        _record.clear()
        yield Path(file.name)


def _starts(record: Path) -> dict[int, float]:
    """Return when each job's handler began, by its number."""
    entries = list(struct.iter_unpack("dq", record.read_bytes()))
    starts = {number: at for at, number in entries}
    if len(starts) != len(entries):
        raise RuntimeError("a job ran twice: the run is void")
    return starts


# -- threads --------------------------------------------------------------------------------------------------------


def on_threads(target: Target, settings: Settings) -> Iterator[Result]:
    """W3 with a worker on threads: a full store, 2,000 jobs prefetched."""
    number = JOBS // 5 if settings.quick else JOBS
    for slots in (1, 4):
        with target.pair() as pair, recording() as record:
            rounds = alternate(
                settings.rounds_of_bulk,
                [thread_rate(pair, number, slots, record), _raw(pair, number)],
                settings.progress(f"W3, {slots} threads", settings.rounds_of_bulk),
            )
        yield Result(
            f"W3, worker, threads: {slots}", target.name, rounds, against="raw loop of 100",
            goal=Goal(0.8 if target.name == "postgres" else 0.5),
        )  # fmt: skip


def thread_rate(pair: Pair, number: int, slots: int, record: Path) -> Callable[[], float]:
    queue = Queue(pair.backend)

    def measure() -> float:
        record.write_bytes(b"")
        _fill(queue, number)
        pair.checkpoint()
        APP.stand_in(QueueClient(queue))
        try:
            Worker(APP, slots, PREFETCH, isolation="thread").run(until_idle=True)
            end = time.monotonic()
        finally:
            APP.stand_in(None)
        starts = _starts(record)
        if len(starts) != number:
            raise RuntimeError(f"{len(starts)} of {number} jobs ran")
        return number / (end - min(starts.values()))

    return measure


def _raw(pair: Pair, number: int) -> Callable[[], float]:
    def measure() -> float:
        items = make_items(number)
        for start in range(0, number, CHUNK):
            pair.raw.bulk(items[start : start + CHUNK])
        pair.checkpoint()
        begun = time.perf_counter()
        pair.raw.drain(100)
        return number / (time.perf_counter() - begun)

    return measure


def _fill(queue: Queue, number: int) -> None:
    items = make_items(number)
    for start in range(0, number, CHUNK):
        queue.enqueue_jobs([job_of(item) for item in items[start : start + CHUNK]])


# -- a process each -------------------------------------------------------------------------------------------------


def latency(target: Target, settings: Settings) -> Iterator[Result]:
    """W4 with a process for each job: from the return of a submission until its handler begins, in another process."""
    submits = SUBMITS // 4 if settings.quick else SUBMITS
    progress = settings.progress("W4p", submits + WARM_UP)
    location = target.create("latency")
    with recording() as record, Queue(target.open(location)) as queue:
        record.write_bytes(b"")
        worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child", "serve", target.url(location), str(AT_ONCE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(2.0)  # until it is at rest
        sent: dict[int, float] = {}
        for number, item in enumerate(make_items(submits + WARM_UP)):
            queue.enqueue_job(job_of(item))
            if number >= WARM_UP:
                sent[number] = time.monotonic()
            progress()
            time.sleep(GAP)
        give_up_at = time.monotonic() + 30
        while len(starts := _starts(record)) < submits + WARM_UP and time.monotonic() < give_up_at:
            time.sleep(0.05)
        worker.terminate()
        worker.communicate()
    target.drop(location)
    waits = sorted(1000 * (starts[number] - at) for number, at in sent.items())
    yield Result(
        "W4, a process each, p50", target.name, [(statistics.median(waits),)], unit="ms",
        goal=Goal(5, at_most=True, of_ratio=False),
        note=f"p90 {waits[int(0.9 * (len(waits) - 1))]:.2f} ms, p99 {waits[int(0.99 * (len(waits) - 1))]:.2f} ms",
    )  # fmt: skip


def serve(url: str, slots: int) -> dict[str, float]:
    """Run jobs as they come until told to stop; called in a process of its own."""
    with open_url(url) as backend:
        APP.stand_in(QueueClient(Queue(backend)))
        worker = Worker(APP, slots)
        print("ready", flush=True)
        worker.run()
    return {}
