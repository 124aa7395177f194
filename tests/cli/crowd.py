"""A store with very many jobs in all statuses, made quickly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from penstock import FailureCategory, Job, Queue, RetryPolicy
from penstock.backends import Failure

__all__ = ["KINDS", "fill_crowd"]

#: What `stats` calls them; each has the same share of the jobs.
KINDS = ("pending", "running", "retrying", "handed_back", "completed", "failed", "dead", "cancelled")
_PORTION = 5_000
_ERRORS = ("OSError: disk full\n\nTraceback", "TimeoutError: no answer")


def fill_crowd(queue: Queue, number: int) -> dict[str, int]:
    """Store `number` jobs of ten types, as many of each kind; return how many of each kind there are."""
    each = number // len(KINDS)
    long_ago = datetime.now(UTC) - timedelta(days=3)
    for kind in KINDS:
        ids = [f"{kind}-{n:06}" for n in range(each)]
        for portion in _portions(ids):
            queue.enqueue_jobs([_job(job_id, kind, long_ago) for job_id in portion])
            _settle(queue, kind, portion)
    queue.maintain()
    return dict.fromkeys(KINDS, each)


def _job(job_id: str, kind: str, long_ago: datetime) -> Job:
    number = int(job_id[-6:])
    return Job(
        id=job_id,
        type=f"type-{number % 10}",
        payload=b'{"n": 1}',
        tags=("all", "rare") if number % 1_000 == 0 else ("all",),
        created_at=long_ago if number % 2 else None,
        retry=RetryPolicy(max_attempts=1 if kind == "dead" else 5, initial_delay=3_600),
    )


def _settle(queue: Queue, kind: str, ids: Sequence[str]) -> None:
    if kind == "cancelled":
        queue.cancel_jobs(job_ids=ids)
    if kind in ("pending", "cancelled"):
        return
    queue.backend.dequeue_jobs("crowd", job_ids=ids, limit=len(ids))
    errors = itertools.cycle(_ERRORS)
    if kind == "completed":
        queue.complete_jobs(dict.fromkeys(ids, b"1"))
    elif kind == "handed_back":
        queue.release_jobs(dict.fromkeys(ids, "the worker was stopped"))
    elif kind == "failed":
        queue.fail_jobs(
            {job_id: Failure(message=next(errors), category=FailureCategory.PERMANENT) for job_id in ids}
        )
    elif kind in ("retrying", "dead"):
        queue.fail_jobs({job_id: next(errors) for job_id in ids})


def _portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _PORTION):
        yield ids[start : start + _PORTION]
