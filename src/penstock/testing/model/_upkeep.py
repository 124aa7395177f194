from __future__ import annotations

from datetime import datetime, timedelta

from penstock.backends import Failure
from penstock.job import IN_FLIGHT
from penstock.lifecycle import Verb
from penstock.policy import FailureCategory
from penstock.testing.model._claiming import lose
from penstock.testing.model._reports import fail
from penstock.testing.model._rows import S, is_past
from penstock.testing.model._state import ModelState

_TIMEOUT_GRACE = timedelta(seconds=10)


def expire(state: ModelState, now: datetime) -> int:
    spent = [
        row
        for row in state.rows.values()
        if not row.job.status.is_final and is_past(row.job.created_at, row.job.timeouts.lifetime, now)
    ]
    error = {
        "error_message": "its lifetime is over",
        "error_category": FailureCategory.TIMEOUT,
        "error_code": "lifetime",
    }
    for row in spent:
        state.move(row, Verb.EXPIRE, S.DEAD_LETTER, now, error=error)
    return len(spent)


def lose_abandoned(state: ModelState, now: datetime) -> int:
    lost = [
        row
        for row in state.rows.values()
        if row.job.status in IN_FLIGHT
        and (
            is_past(row.lease_from, row.job.timeouts.visibility, now)
            if row.owner is None
            else row.owner not in state.owners
        )
    ]
    for row in lost:
        lose(state, row, Verb.LOSE, now)
    return len(lost)


def time_out(state: ModelState, now: datetime) -> int:
    late = [
        row
        for row in state.rows.values()
        if row.job.status is S.RUNNING
        and row.owner is None
        and row.job.timeouts.execution is not None
        and is_past(row.job.attempt_started_at, row.job.timeouts.execution + _TIMEOUT_GRACE, now)
    ]
    failure = Failure(
        message="its execution time is over", category=FailureCategory.TIMEOUT, code="execution_timeout"
    )
    for row in late:
        fail(state, row, Verb.TIME_OUT, failure, now)
    return len(late)


def wake_delayed(state: ModelState, now: datetime) -> int:
    due = [row for row in state.rows.values() if row.is_delayed and row.due_at <= now]
    for row in due:
        state.put(row, is_delayed=False)
    return sum(row.job.status.is_eligible and not state.waits(row) for row in due)


def apply_retention(state: ModelState, now: datetime) -> int:
    rule = state.options.retention
    if rule is None:
        return 0
    old = [
        row
        for row in state.rows.values()
        if row.job.status.is_final
        and row.job.id not in state.ended
        and is_past(
            row.job.finalized_at,
            rule.completed if row.job.status is S.COMPLETED else rule.other,
            now,
        )
    ]
    for row in old:
        state.remove(row, Verb.CLEANUP, now)
    return len(old)
