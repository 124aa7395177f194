"""The loop: claim a batch, complete it, journal included, until the store is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.items import job_of, make_items
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Pair, Target
from benchmarks.timing import alternate, timed

# Batch size and how many jobs are drained with it: about as long for each.
SIZES: Final = {100: 20_000, 1: 1_000, 10: 5_000, 1_000: 30_000}
CHUNK: Final = 5_000


def loop(target: Target, settings: Settings) -> Iterator[Result]:
    """Claim and complete in batches of 100; for comparison also of 1, 10 and 1,000."""
    for batch, number in SIZES.items():
        jobs = number // 4 if settings.quick else number
        with target.pair() as pair:
            rounds = alternate(
                settings.rounds,
                [_ours(pair, batch, jobs), _raw(pair, batch, jobs)],
                settings.progress(f"loop, batch {batch:,}", settings.rounds),
            )
        goal = Goal(0.6) if batch == 100 else None
        yield Result(f"loop, batch {batch:,}", target.name, rounds, against="raw loop", goal=goal)


def _ours(pair: Pair, batch: int, number: int) -> Callable[[], float]:
    backend = pair.backend

    def run() -> None:
        while jobs := backend.dequeue_jobs("bench", limit=batch):
            backend.complete_jobs(
                {job.id: None for job in jobs}, attempts={job.id: job.attempt for job in jobs}
            )

    def measure() -> float:
        items = make_items(number)
        for start in range(0, number, CHUNK):
            backend.enqueue_jobs([job_of(item) for item in items[start : start + CHUNK]])
        pair.checkpoint()
        return number / timed(run)

    return measure


def _raw(pair: Pair, batch: int, number: int) -> Callable[[], float]:
    def measure() -> float:
        items = make_items(number)
        for start in range(0, number, CHUNK):
            pair.raw.bulk(items[start : start + CHUNK])
        pair.checkpoint()
        return number / timed(lambda: pair.raw.drain(batch))

    return measure
