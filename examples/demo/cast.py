"""The jobs that the demo submits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from examples.demo import jobs

from penstock import JobHandle, RetryPolicy

#: The kinds of jobs, which are their tags, and what each one shows.
KINDS = {
    "fast": "short jobs, a process for each of them",
    "slow": "has checkpoints; one loses its worker",
    "flaky": "fails twice, comes back after a pause",
    "poison": "fails every time, ends as dead letter",
    "refused": "says that no retry will help",
    "orphan": "waits for a poison job, shares its fate",
    "stuck": "hangs; ended by its time limit",
    "crash": "its process dies; the worker does not",
    "step": "keyed: one at a time, in order",
    "flow": "one, then four, then one",
    "delayed": "not before its time",
    "cancelled": "one waiting, one running",
}
CUSTOMERS = ("ada", "bob", "eve")
STEPS = 5


@dataclass(frozen=True)
class Settings:
    """The number of fast jobs, and the factor of every wait."""

    jobs: int
    pace: float

    def seconds(self, moments: float) -> float:
        return moments * self.pace


@dataclass(frozen=True)
class Cast:
    """The jobs that the demo refers to later, and how fast the fast ones were stored."""

    total: int
    endless: JobHandle[Any]
    unwanted: JobHandle[Any]
    stuck: JobHandle[Any]
    stored_per_second: float


def submit_all(settings: Settings) -> Cast:
    """Submit every job. What a handler's `.submit` returns is on disk."""
    seconds = settings.seconds
    patient = RetryPolicy(max_attempts=4, initial_delay=seconds(0.5), jitter=0.2)
    short = RetryPolicy(max_attempts=3, backoff="constant", initial_delay=seconds(0.3))

    jobs.slow.submit_many(
        [{"parts": 20, "seconds": 3.0}] * 6
    )  # at any pace: a worker is killed in the middle of one
    jobs.flaky.options(retry=patient).submit_many([{}] * 8)
    poisons = jobs.poison.options(retry=short).submit_many([{}] * 3)
    jobs.refused.submit()
    jobs.orphan.options(after=[poisons[0]]).submit()
    stuck = jobs.stuck.options(
        retry=RetryPolicy(max_attempts=2, initial_delay=seconds(0.2)), timeout=max(seconds(1), 0.5)
    ).submit()
    jobs.crash.options(retry=short).submit()
    for number in range(1, STEPS + 1):
        for customer in CUSTOMERS:
            jobs.step.submit(customer, number, seconds(0.1))
    submit_flow(settings)
    jobs.delayed.options(delay=seconds(3)).submit_many([{}] * 3)
    endless = jobs.endless.submit()
    unwanted = jobs.unwanted.options(delay=seconds(30)).submit()

    began = time.perf_counter()
    jobs.fast.submit_many([{"number": number} for number in range(settings.jobs)])
    rate = settings.jobs / max(time.perf_counter() - began, 1e-6)
    total = jobs.app.queue.get_job_stats().total_jobs
    return Cast(total, endless, unwanted, stuck, rate)


def submit_flow(settings: Settings) -> None:
    first = jobs.fetch.submit("cat.png", settings.seconds(0.3))
    middle = [
        jobs.resize.options(after=[first]).submit("cat.png", width, settings.seconds(width / 512))
        for width in (64, 128, 256, 512)
    ]
    jobs.publish.options(after=middle).submit("cat.png")
