"""Explains in a message why a job has not ended: what it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from penstock.backends import Backend
from penstock.backends.contract.overview import is_claimed
from penstock.backends.contract.selection import JobSelection
from penstock.errors import PenstockError, shown
from penstock.job import Job, JobState, JobStatus
from penstock.scope import cancel_scope

__all__ = ["why_unfinished"]

#: How long the store may take to answer.
EXPLAIN_SECONDS: Final = 2.0
_MAX_NAMED: Final = 5
_UNFINISHED: Final = ("pending", "running", "retrying", "handed_back")


def why_unfinished(backend: Backend, job_id: str) -> str:
    """Return the state of an unfinished job and what it waits for, as text; "" if that is not known."""
    with contextlib.suppress(PenstockError), cancel_scope(EXPLAIN_SECONDS):
        job = backend.get_job(job_id)
        return "".join([f": it is {job.status} in {backend.location}", *_reasons(backend, job)])
    return ""


def _reasons(backend: Backend, job: Job) -> Iterator[str]:
    if job.status.holds_slot:
        yield _running(job)
    if not job.status.is_eligible:
        return
    if job.held:
        yield ", and held: only a claim that names its id gets it"
        return
    if job.state is JobState.PENDING:
        yield from _waits_for(backend, job)
    step = backend.runtime.next_steps([job.id]).get(job.id)
    due = job.run_at if step is None or step.due_at is None else step.due_at
    if due is not None and due > backend.now():
        what = "its next attempt is" if job.attempt else "it is"
        yield f", and {what} not due before {_shown_moment(due)}"
    if not is_claimed(job, backend.reading.overview().living):
        yield (
            f", and no living worker claims the type {shown(job.type)} in this store"
            " (start one: penstock worker module:app, with the same url)"
        )


def _running(job: Job) -> str:
    since = "" if job.attempt_started_at is None else f" since {_shown_moment(job.attempt_started_at)}"
    what = ", and its worker has been asked to end it" if job.status is JobStatus.CANCELLING else ""
    return f" (attempt {job.attempt} by {shown(job.assignee_id)}{since}){what}"


def _waits_for(backend: Backend, job: Job) -> Iterator[str]:
    """Yield what keeps a job from being due: dependencies, or an earlier job of its key."""
    unfinished = _unfinished(backend, job.after)
    choice = _unfinished(backend, job.after_any)
    if unfinished:
        yield f", and waits for {_listed(unfinished)}"
    if choice and len(choice) == len(job.after_any):
        yield f", and waits for one of {_listed(choice)}"
    head = None if job.key is None else _head_of_key(backend, job)
    if head is not None:
        yield f", and waits for the turn of its key {shown(tuple(job.key or ()))}, which {head} has"
    elif not unfinished and not choice:
        yield ", and waits for its turn, or for jobs that were spawned by those it runs after"


def _unfinished(backend: Backend, job_ids: Sequence[str]) -> list[str]:
    found = backend.runtime.statuses(job_ids) if job_ids else {}
    return [f"{each} ({found[each][0]})" for each in job_ids if each in found and not found[each][0].is_final]


def _head_of_key(backend: Backend, job: Job) -> str | None:
    """Return the first unfinished job of a job's key, if it is another one and soon found."""
    page = backend.reading.select_jobs(JobSelection(statuses=_UNFINISHED, key=job.key), limit=1)
    first = page.jobs[0].id if page.jobs else job.id
    return None if first == job.id else next(iter(_unfinished(backend, [first])), None)


def _listed(jobs: list[str]) -> str:
    rest = len(jobs) - _MAX_NAMED
    return ", ".join(jobs[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _shown_moment(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
