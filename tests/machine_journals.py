"""Stores with long random histories, quickly: verbs at random on a store in memory, refusals ignored."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.journals import memory_store

from penstock import FailureCategory, Job, PenstockError, RetryPolicy, Timeouts
from penstock.backends import Backend
from penstock.job import JobStatus
from penstock.testing import ManualClock

WORKERS = ("w1", "w2", "w3")
TAGS = ("red", "blue", "green")


def random_store(seed: int, steps: int = 400, **options: Any) -> Backend:
    """Return a store to which `steps` random things were done; the same seed gives the same store."""
    backend, clock = memory_store(**options)
    stir(backend, clock, seed, steps)
    return backend


def stir(backend: Backend, clock: ManualClock, seed: int, steps: int = 400) -> None:
    """Do `steps` random things to a store that goes by this clock."""
    rng = random.Random(seed)
    ids: list[str] = [job.id for job in backend.list_jobs(limit=1000)]

    def job() -> Job:
        job_id = rng.choice(ids) if ids and rng.random() < 0.1 else f"job-{len(ids)}"
        policy = RetryPolicy(max_attempts=rng.randint(1, 3), initial_delay=rng.choice([0, 5]))
        made = Job(
            id=job_id,
            type=rng.choice(["resize", "send"]),
            tags=tuple(rng.sample(TAGS, rng.randint(0, 2))),
            key=(rng.choice(["cat", "dog"]),) if rng.random() < 0.3 else None,
            after=tuple(rng.sample(ids[-5:], 1)) if ids and rng.random() < 0.3 else (),
            after_any=tuple(rng.sample(ids[-5:], min(2, len(ids)))) if ids and rng.random() < 0.1 else (),
            **rng.choice(
                [
                    *[{}] * 3,
                    {"idempotency_key": "once"},
                    {"idempotency_key": "twice"},
                    {"idempotency_key": "once", "unique": "while_unfinished"},
                ]
            ),
            retry=policy if rng.random() < 0.7 else None,
            timeouts=Timeouts(
                visibility=timedelta(seconds=rng.choice([20, 60])) if rng.random() < 0.5 else None,
                execution=timedelta(seconds=30) if rng.random() < 0.2 else None,
                lifetime=timedelta(minutes=5) if rng.random() < 0.1 else None,
            ),
            held=rng.random() < 0.05,
        )
        ids.append(job_id)
        return made

    def one() -> str:
        return rng.choice(ids or ["nobody"])

    def report(name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: getattr(backend, name)(one(), *args, **kwargs)

    verbs: list[tuple[int, Callable[[], Any]]] = [
        (10, lambda: backend.enqueue_job(job())),
        (10, lambda: backend.dequeue_jobs(rng.choice(WORKERS), limit=rng.randint(1, 3))),
        (2, lambda: backend.dequeue_jobs(rng.choice(WORKERS), job_ids=[one()])),
        (14, report("complete_job")),
        (6, report("fail_job", "it failed")),
        (1, report("fail_job", "for good", category=FailureCategory.PERMANENT)),
        (2, report("stop_job", "stop")),
        (1, report("mark_job_unknown_stopped", "gone")),
        (2, lambda: backend.release_jobs({one(): "back"})),
        (2, lambda: backend.cancel_jobs(job_ids=[one()])),
        (2, lambda: backend.acknowledge_cancellation(one(), rng.random() < 0.5)),
        (1, lambda: backend.mark_worker_unresponsive(rng.choice(WORKERS))),
        (2, lambda: backend.update_job_status(one(), rng.choice(list(JobStatus)))),
        (1, lambda: backend.restart_job(one(), "w1")),
        (2, lambda: backend.update_job(one(), tags=tuple(rng.sample(TAGS, 2)), priority=rng.randint(0, 4))),
        (2, lambda: backend.delete_jobs(job_ids=[one()])),
        (1, lambda: backend.redrive_jobs(job_ids=[one()])),
        (3, backend.maintain),
        (10, lambda: clock.advance(rng.choice([0.5, 3, 30, 600]))),
        (3, lambda: backend.spawn_jobs(one(), [_without_idempotency(job())])),
    ]
    weights = [weight for weight, _ in verbs]
    for _ in range(steps):
        try:
            rng.choices(verbs, weights)[0][1]()
        except (PenstockError, ExceptionGroup):
            continue


def _without_idempotency(job: Job) -> Job:
    # The journal does not tell that a job waits for one that was there before.
    import msgspec

    return msgspec.structs.replace(job, idempotency_key=None, unique=None)
