from __future__ import annotations

from datetime import datetime

from penstock.backends import ClaimRequest, Withheld
from penstock.job import Job
from penstock.lifecycle import Verb
from penstock.policy import FailureCategory
from penstock.testing.model._rows import Row, S, selection_order
from penstock.testing.model._state import ModelState


def answer_claim(state: ModelState, request: ClaimRequest, now: datetime) -> list[Job]:
    if request.revives:
        state.unresponsive.discard(request.assignee_id)
    if request.pushed and request.assignee_id in state.unresponsive:
        return Withheld()
    return [state.view(row, now) for row in claim_jobs(state, request, now)]


def claim_jobs(state: ModelState, request: ClaimRequest, now: datetime) -> list[Row]:
    matching = [row for row in state.rows.values() if matches(row.job, request)]
    taken: list[Row] = []
    for row in sorted(matching, key=selection_order):
        if len(taken) < request.limit and state.is_takeable(row, now):
            taken.append(start_attempt(state, row, Verb.CLAIM, request.assignee_id, now, owner=request.owner))
    return taken


def start_attempt(
    state: ModelState, row: Row, verb: Verb, assignee_id: str, now: datetime, *, owner: str | None
) -> Row:
    row = state.put(row, owner=owner, lease_from=now, attempt_ready_at=row.ready_at, is_delayed=False)
    return state.move(
        row,
        verb,
        S.RUNNING,
        now,
        attempt=row.job.attempt + 1,
        assignee_id=assignee_id,
        assigned_at=now,
        started_at=row.job.started_at or now,
        attempt_started_at=now,
        progress=0,
        description=None if row.job.attempt else row.job.description,
    )


def lose(state: ModelState, row: Row, verb: Verb, now: datetime) -> None:
    job = row.job
    if job.status is S.CANCELLING:
        state.move(row, verb, S.UNKNOWN_STOPPED, now)
        return
    if job.retry is None:
        state.move(row, verb, S.UNKNOWN_RETRY, now)
        return
    row = state.put(row, lost_attempt=job.attempt)
    if job.failures + 1 < job.retry.max_attempts:
        state.move(row, verb, S.UNKNOWN_RETRY, now, failures=job.failures + 1)
    else:
        error = {
            "error_message": f"attempt {job.attempt} was lost, and it was the last allowed",
            "error_category": FailureCategory.SYSTEM,
            "error_code": "lost",
        }
        state.move(row, verb, S.DEAD_LETTER, now, error=error, failures=job.failures + 1)


def matches(job: Job, request: ClaimRequest) -> bool:
    if request.job_ids is None and job.held:
        return False
    return (
        set(request.tags) <= set(job.tags)
        and (request.types is None or job.type in request.types)
        and (request.key is None or job.key == request.key)
        and (request.job_ids is None or job.id in request.job_ids)
    )
