"""Streams: the way of a job from submission to its consumer and back, how soon it gets there, and what waiting costs."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.child import memory
from benchmarks.items import TYPE, job_of, make_items
from benchmarks.processes import start_child
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Pair, Target
from benchmarks.timing import alternate
from penstock import Job, JobStream, Queue

JOBS: Final = 30_000
CHUNK: Final = 5_000
CAPACITY: Final = 1_000
SUBMITS: Final = 200
WARM_UP: Final = 5
GAP: Final = 0.05
STREAMS: Final = 5_000
IDLE_SECONDS: Final = 4.0
WAKE_UPS: Final = 50


def end_to_end(target: Target, settings: Settings) -> Iterator[Result]:
    """W3: a full store, one stream of capacity 1,000, nothing to do but to complete each job."""
    number = JOBS // 5 if settings.quick else JOBS
    with target.pair() as pair:
        rounds = alternate(
            settings.rounds_of_bulk,
            [_streamed(pair, number), _raw(pair, number, 100), _raw(pair, number, CAPACITY)],
            settings.progress("W3", settings.rounds_of_bulk),
        )
    goal = Goal(0.8 if target.name == "postgres" else 0.5)
    yield Result(
        "W3, stream",
        target.name,
        [(ours, raw) for ours, raw, _ in rounds],
        against="raw loop of 100",
        goal=goal,
    )
    yield Result(
        "W3, stream", target.name, [(ours, raw) for ours, _, raw in rounds], against="raw loop of 1,000"
    )


def _streamed(pair: Pair, number: int) -> Callable[[], float]:
    queue = Queue(pair.backend)

    def measure() -> float:
        _fill(number, queue.enqueue_jobs)
        pair.checkpoint()
        done = 0
        start = time.perf_counter()
        with queue.stream_jobs("bench", max_assigned_jobs=CAPACITY) as stream:
            for batch in stream:
                queue.complete_jobs(
                    dict.fromkeys(job.id for job in batch), attempts={job.id: job.attempt for job in batch}
                )
                done += len(batch)
                if done >= number:
                    return number / (time.perf_counter() - start)
        raise RuntimeError(f"the stream ended after {done} of {number} jobs")

    return measure


def _raw(pair: Pair, number: int, batch: int) -> Callable[[], float]:
    def measure() -> float:
        items = make_items(number)
        for start in range(0, number, CHUNK):
            pair.raw.bulk(items[start : start + CHUNK])
        pair.checkpoint()
        start_at = time.perf_counter()
        pair.raw.drain(batch)
        return number / (time.perf_counter() - start_at)

    return measure


def _fill(number: int, enqueue: Callable[[Sequence[Job]], object]) -> None:
    items = make_items(number)
    for start in range(0, number, CHUNK):
        enqueue([job_of(item) for item in items[start : start + CHUNK]])


def latency(target: Target, settings: Settings) -> Iterator[Result]:
    """W4: from the return of a submission until a waiting stream has the job; in one process, and from one to another."""
    submits = SUBMITS // 4 if settings.quick else SUBMITS
    progress = settings.progress("W4", 2 * (submits + WARM_UP))
    for label, measure, limit in (
        ("one process", _within, 1.0),
        ("two processes", _across, 1.2),
    ):
        waits = sorted(1000 * wait for wait in measure(target, submits, progress))
        p50, p99 = statistics.median(waits), waits[int(0.99 * (len(waits) - 1))]
        yield Result(
            f"W4, {label}, p50", target.name, [(p50,)], unit="ms", goal=Goal(limit, at_most=True, of_ratio=False),
            note=f"p90 {waits[int(0.9 * (len(waits) - 1))]:.2f} ms, worst {waits[-1]:.2f} ms",
        )  # fmt: skip
        yield Result(
            f"W4, {label}, p99", target.name, [(p99,)], unit="ms", goal=Goal(5, at_most=True, of_ratio=False)
        )


def _within(target: Target, submits: int, progress: Callable[[], None]) -> list[float]:
    location = target.create("latency")
    received: dict[str, float] = {}
    queue = Queue(target.open(location))
    stream = queue.stream_jobs("bench", max_assigned_jobs=10)

    def consume() -> None:
        for batch in stream:
            now = time.monotonic()
            for job in batch:
                received[job.id] = now
                queue.complete_job(job.id, attempt=job.attempt)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        sent = _submit_slowly(queue, submits, progress)
        _wait_for(lambda: len(received) == submits + WARM_UP)
    finally:
        queue.close()
        consumer.join()
        target.drop(location)
    return [received[job_id] - at for job_id, at in sent.items()]


def _across(target: Target, submits: int, progress: Callable[[], None]) -> list[float]:
    location = target.create("latency")
    child = start_child("receive", target.url(location), str(submits + WARM_UP))
    child.wait_ready()
    with Queue(target.open(location)) as queue:
        time.sleep(2.0)  # until the receiver is at rest
        sent = _submit_slowly(queue, submits, progress)
        received = child.communicate_json()
    target.drop(location)
    return [received[job_id] - at for job_id, at in sent.items()]


def _submit_slowly(queue: Queue, submits: int, progress: Callable[[], None]) -> dict[str, float]:
    """Return when each submission but the first few had returned."""
    sent: dict[str, float] = {}
    for number, item in enumerate(make_items(submits + WARM_UP)):
        queue.enqueue_job(job_of(item))
        if number >= WARM_UP:
            sent[item[0]] = time.monotonic()
        progress()
        time.sleep(GAP)
    return sent


def many_streams(target: Target, settings: Settings) -> Iterator[Result]:
    """5,000 streams that wait: what they cost, and how soon the right one wakes up."""
    number = STREAMS // 5 if settings.quick else STREAMS
    progress = settings.progress("streams", 1 + WAKE_UPS)
    location = target.create("streams")
    with Queue(target.open(location)) as queue:
        queue.stream_jobs(
            "warm", ["warm"]
        ).close()  # threads and connections are there before anything is counted
        before = memory("VmRSS")
        streams = [queue.stream_jobs(f"worker-{index}", [f"tag-{index}"]) for index in range(number)]
        time.sleep(2.0)
        each = (memory("VmRSS") - before) / number
        used, start = time.process_time(), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        idle = (time.process_time() - used) / (time.perf_counter() - start)
        progress()
        waits = []
        for index in range(0, number, number // WAKE_UPS):
            item = make_items(1)[0]
            got: list[float] = []
            taker = threading.Thread(target=_note_next, args=(streams[index], got))
            taker.start()
            time.sleep(0.01)
            start = time.perf_counter()
            queue.enqueue_job(Job(id=item[0], type=TYPE, tags=(f"tag-{index}",)))
            taker.join()
            waits.append(1000 * (got[0] - start))
            progress()
    target.drop(location)
    name = f"{number:,} streams"
    yield Result(
        f"{name}, idle",
        target.name,
        [(100 * idle,)],
        unit="% CPU",
        goal=Goal(5, at_most=True, of_ratio=False),
    )
    yield Result(
        f"{name}, memory of one", target.name, [(each / 1024,)], unit="KiB",
        goal=Goal(20, at_most=True, of_ratio=False),
    )  # fmt: skip
    yield Result(
        f"{name}, worst wake-up", target.name, [(max(waits),)], unit="ms",
        goal=Goal(20, at_most=True, of_ratio=False),
        note=f"submission included; median {statistics.median(waits):.2f} ms",
    )  # fmt: skip


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("jobs did not arrive within 10 s")
        time.sleep(0.01)


def _note_next(stream: JobStream, got: list[float]) -> None:
    next(stream)
    got.append(time.perf_counter())
