"""Claims and upkeep beside a transaction that stays open, so that no dead row can be removed; PostgreSQL only.

A claimed job leaves a dead entry in the index of the ready set. While any session holds an old snapshot, no vacuum removes
it. What a claim costs must not depend on how many there are, nor on a ready job that no worker handles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, NamedTuple

from benchmarks.results import Goal, Result
from benchmarks.settings import Settings, Step
from benchmarks.stores import Target
from penstock import Backend, Job

JOBS: Final = 100_000
JOBS_QUICK: Final = 10_000
PARTS: Final = 10
LIMIT: Final = 20


class Case(NamedTuple):
    """A run: whether a snapshot is held, whether a late job lies there that no worker handles, what is claimed."""

    name: str
    is_pinned: bool
    has_late: bool
    types: tuple[str, ...] = ("t",)
    failing: float = 0.0


CASES: Final = (
    Case("free", is_pinned=False, has_late=False),
    Case("free, late job", is_pinned=False, has_late=True),
    Case("pinned", is_pinned=True, has_late=False),
    Case("pinned, late job", is_pinned=True, has_late=True),
    Case("pinned, two types", is_pinned=True, has_late=True, types=("t", "u")),
    Case("pinned, 1 in 5 fails once", is_pinned=True, has_late=True, failing=0.2),
)


def pinned(target: Target, settings: Settings) -> Iterator[Result]:
    """The last tenth of a run against its first, for claims and for a pass of upkeep."""
    if target.name != "postgres":
        return
    jobs = JOBS_QUICK if settings.quick else JOBS
    step = settings.progress("beside a held snapshot", len(CASES) * PARTS)
    for case in CASES:
        location = target.create("pinned")
        with target.open(location) as backend, _snapshot(target.url(location), is_held=case.is_pinned):
            claims, upkeep = _measured(backend, case, jobs // PARTS, step)
        target.drop(location)
        for what, figures in (("claim", claims), ("upkeep", upkeep)):
            yield Result(
                workload=f"pinned: {case.name}, {what}",
                store=target.name,
                rounds=[(figures[-1], figures[0])],
                unit="ms",
                against="first tenth",
                goal=Goal(2.0, at_most=True),
                note=f"ms by tenths of {jobs:,} jobs: {' '.join(f'{each:.2f}' for each in figures)}",
            )


@contextmanager
def _snapshot(url: str, *, is_held: bool) -> Iterator[None]:
    import psycopg  # noqa: PLC0415  # an extra

    if not is_held:
        yield
        return
    with psycopg.connect(url.partition("#")[0]) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        yield


def _measured(backend: Backend, case: Case, part: int, step: Step) -> tuple[list[float], list[float]]:
    """Return the median of a claim and the time of a pass of upkeep, in ms, for each tenth."""
    if case.has_late:
        due = backend.now() + timedelta(milliseconds=300)
        backend.enqueue_job(Job(id="late", type="nobody", run_at=due))
        while backend.maintain().due == 0:
            time.sleep(0.05)
    claims, upkeep = [], []
    for _ in range(PARTS):
        backend.enqueue_jobs([Job.new(case.types[each % len(case.types)]) for each in range(part)])
        claims.append(_drain(backend, case))
        began = time.perf_counter()
        backend.maintain()
        upkeep.append((time.perf_counter() - began) * 1000)
        step()
    return claims, upkeep


def _drain(backend: Backend, case: Case) -> float:
    times: list[float] = []
    while True:
        began = time.perf_counter()
        jobs = backend.dequeue_jobs("w", limit=LIMIT, types=case.types)
        if not jobs:
            return statistics.median(times)
        times.append((time.perf_counter() - began) * 1000)
        failed = [job.id for job in jobs[: int(LIMIT * case.failing)] if job.attempt == 1]
        if failed:
            backend.fail_jobs(dict.fromkeys(failed, "once"))
        backend.complete_jobs({job.id: None for job in jobs if job.id not in failed})
