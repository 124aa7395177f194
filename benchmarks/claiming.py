"""What a claim costs in an empty store and in one with a long past, and what two common tags cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from benchmarks.items import make_items
from benchmarks.loading import COMMON, crowded_store, insert
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Target
from benchmarks.timing import alternate
from penstock import Backend, Job, Priority

MEASURED: Final = 300
# Claims timed per round, by limit.
CLAIMS: Final = {1: 25, 100: 10}
STEPS: Final = (1_000, 3_000, 10_000, 30_000, 100_000)


class Case(NamedTuple):
    """A way to claim. Its own jobs are few; what else is in the store has a chance only where the filter lets it.

    Where others would be eligible too (no filter, the common tag), the measured ones are more urgent; so the same
    jobs are taken in both stores, and given back after each claim.
    """

    name: str
    own_type: str
    own_tags: tuple[str, ...] = ()
    priority: Priority = Priority.NORMAL
    tags: tuple[str, ...] = ()
    types: tuple[str, ...] | None = None


CASES: Final = (
    Case("no filter", "m-any", priority=Priority.CRITICAL),
    Case("types", "m-type", types=("m-type",)),
    Case("common tag", "m-common", (COMMON,), Priority.HIGH, tags=(COMMON,)),
    Case("rare tag", "m-rare", ("rare",), tags=("rare",)),
    Case("common and rare tag", "m-both", (COMMON, "scarce"), tags=(COMMON, "scarce")),
)


def flat(target: Target, settings: Settings) -> Iterator[Result]:
    """Claim cost beside 1,000,000 finished, 100,000 delayed and 100,000 ready jobs of others, to that in an empty store."""
    empty = target.create("empty")
    crowded = crowded_store(target, settings)
    with target.open(empty) as small, target.open(crowded) as big:
        for case in CASES:
            for backend in (small, big):
                list(insert(backend, _own_jobs(case)))
        progress = settings.progress("claim cost", len(CASES) * len(CLAIMS) * settings.rounds)
        for limit, claims in CLAIMS.items():
            for case in CASES:
                rounds = alternate(
                    settings.rounds,
                    [_cost(big, case, limit, claims), _cost(small, case, limit, claims)],
                    progress,
                )
                yield Result(
                    f"claim {limit}: {case.name}",
                    target.name,
                    rounds,
                    unit="ms",
                    against="empty store",
                    goal=Goal(1.5, at_most=True),
                )
        for case in CASES:
            # What was measured ends, so that the next workload finds the store as it was loaded.
            while jobs := big.dequeue_jobs("bench", types=[case.own_type], limit=MEASURED):
                big.complete_jobs({job.id: None for job in jobs})
    target.drop(empty)


def two_common_tags(target: Target, settings: Settings) -> Iterator[Result]:
    """Claim cost with two tags that are both common, against the number of ready jobs that have one of them."""
    location = target.create("tags")
    steps = STEPS[:3] if settings.quick else STEPS
    progress = settings.progress("two common tags", len(steps))
    case = Case("two common tags", "m-two", ("red", "green"), Priority.LOW, tags=("red", "green"))
    present = 0
    with target.open(location) as backend:
        list(insert(backend, _own_jobs(case)))
        for step in steps:
            for tag in ("red", "green"):
                jobs = make_items(step - present)
                list(
                    insert(
                        backend,
                        (Job(id=each, type="other", payload=data, tags=(tag,)) for each, data in jobs),
                    )
                )
            present = step
            backend.maintain()
            target.settle(location)
            cost = _cost(backend, case, 1, 10)
            rounds = [(cost(),) for _ in range(settings.rounds_of_bulk)]
            yield Result(
                f"claim 1: two common tags, {step:,} ready of each",
                target.name,
                rounds,
                unit="ms",
                against="",
                extra={"jobs": step},
            )
            progress()
    target.drop(location)


def statistics_cost(target: Target, settings: Settings) -> Iterator[Result]:
    """`get_job_stats` of all jobs and of one tag, in the store with a long past; some changes not folded yet."""
    location = crowded_store(target, settings)
    with target.open(location) as backend:
        total = backend.get_job_stats().total_jobs
        for job_id, data in make_items(500):
            backend.enqueue_job(Job(id=job_id, type="tail", payload=data, tags=(COMMON,)))
        for name, tags in (("all jobs", ()), ("one tag", (COMMON,))):
            rounds = [(_stats_milliseconds(backend, tags),) for _ in range(settings.rounds)]
            yield Result(
                f"get_job_stats, {name}",
                target.name,
                rounds,
                unit="ms",
                against="",
                goal=Goal(10, at_most=True, of_ratio=False),
                note=f"{total:,} jobs",
            )


def _own_jobs(case: Case) -> Iterator[Job]:
    for job_id, data in make_items(MEASURED):
        yield Job(id=job_id, type=case.own_type, payload=data, tags=case.own_tags, priority=case.priority)


def _cost(backend: Backend, case: Case, limit: int, claims: int) -> Callable[[], float]:
    """Return a measure of the median milliseconds of a claim; giving the jobs back is not timed."""

    def measure() -> float:
        taken = []
        for _ in range(claims):
            start = time.perf_counter()
            jobs = backend.dequeue_jobs("bench", case.tags, limit, types=case.types)
            taken.append(time.perf_counter() - start)
            if len(jobs) != limit or any(job.type != case.own_type for job in jobs):
                raise RuntimeError(f"{case.name}: the claim took what it should not, or too little")
            backend.release_jobs({job.id: "measured" for job in jobs})
        return statistics.median(taken) * 1000

    return measure


def _stats_milliseconds(backend: Backend, tags: tuple[str, ...]) -> float:
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        backend.get_job_stats(tags)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1000
