"""Spawning from a running job (G24, G26, C33)."""

import inspect
from typing import Any

from penstock import (
    Job,
    Queue,
)
from penstock.queue.requests import SUBMIT_FIELDS, SubmitOptions

SOON = 10.0


def running(queue: Queue, **fields: Any) -> Job:
    queue.enqueue_job(Job(id="parent", type="split", **fields))
    (job,) = queue.claim_jobs("worker")
    return job


def test_spawning_takes_what_submission_takes() -> None:
    submission = inspect.signature(Queue.submit).parameters
    named = {name for name, each in submission.items() if each.kind is each.KEYWORD_ONLY}
    assert set(SubmitOptions.__annotations__) == named == SUBMIT_FIELDS
