from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.backends import Failure
from penstock.errors import PenstockError, ReportErrors
from penstock.job import IN_FLIGHT, JobStatus
from penstock.lifecycle import Verb, allows, allows_late, refusal
from penstock.policy import FailureCategory
from penstock.testing import _checks as check
from penstock.testing.model._rows import Row, S, check_fence
from penstock.testing.model._state import ModelState

Report = Callable[[Row, datetime], Row]

FREEING_UPDATES = frozenset({S.COMPLETED, S.STOPPED, S.UNKNOWN_STOPPED})


def report_alone(
    state: ModelState, verb: Verb, job_id: str, attempt: int | None, apply: Report, *, frees: bool = True
) -> dict[str, int]:
    """Make one fenced report in its own transaction and return what it freed."""
    with state.transaction() as now:
        return report(state, verb, job_id, attempt, apply, now, frees=frees)


def report(
    state: ModelState,
    verb: Verb,
    job_id: str,
    attempt: int | None,
    apply: Report,
    now: datetime,
    *,
    frees: bool = True,
) -> dict[str, int]:
    row = state.row(job_id)
    status = row.job.status
    is_allowed = allows(verb, status) or (attempt is not None and allows_late(verb, status, row.verb))
    check_fence(row, attempt, str(verb), is_over=not is_allowed and status not in IN_FLIGHT)
    if not is_allowed:
        raise refusal(verb, job_id, row.job.status)
    held = row.job.status in IN_FLIGHT
    if not held and row.job.assignee_id is not None:
        state.unresponsive.discard(row.job.assignee_id)
    apply(row, now)
    return {row.job.assignee_id: 1} if held and frees and row.job.assignee_id is not None else {}


def report_all(
    state: ModelState, verb: Verb, reports: Mapping[str, Report], attempts: Mapping[str, int] | None
) -> dict[str, int]:
    """Make many reports in one transaction, best effort."""
    fences = check.attempts(attempts)
    freed: dict[str, int] = {}
    refused: list[Exception] = []
    with state.transaction() as now:
        for job_id, apply in reports.items():
            try:
                for assignee, count in report(state, verb, job_id, fences.get(job_id), apply, now).items():
                    freed[assignee] = freed.get(assignee, 0) + count
            except PenstockError as error:
                refused.append(error)
    if refused:
        raise ReportErrors(f"{len(refused)} of {len(reports)} reports were refused", refused, freed)
    return freed


def completing(state: ModelState, result: bytes | None) -> Report:
    data = check.optional_data("result", result, state.options.max_payload)

    def apply(row: Row, now: datetime) -> Row:
        started_at = row.job.started_at or now
        return state.move(
            row, Verb.COMPLETE, S.COMPLETED, now, result=data, finalized_at=now, started_at=started_at
        )

    return apply


def failing(state: ModelState, failure: Failure) -> Report:
    failure = check.failure(failure)

    def apply(row: Row, now: datetime) -> Row:
        return fail(state, row, Verb.FAIL, failure, now)

    return apply


def fail(state: ModelState, row: Row, verb: Verb, failure: Failure, now: datetime) -> Row:
    job, policy, category = row.job, row.job.retry, failure.category
    was_counted = row.lost_attempt == job.attempt
    counts = category is not FailureCategory.CANCELLED and not was_counted
    failures = job.failures + counts
    delay = check.optional_duration("retry_after", failure.retry_after)
    if category is FailureCategory.PERMANENT:
        target = S.FAILED
    elif category is FailureCategory.CANCELLED:
        target = S.STOPPED
    elif policy is None or policy.allows(category, failures):
        target = S.FAILED_RETRY
    else:
        target = S.DEAD_LETTER
    if delay is None and policy is not None and target is S.FAILED_RETRY:
        delay = policy.delay(failures)
    return state.move(
        row,
        verb,
        target,
        now,
        due_at=now + (delay or timedelta(0)),
        error={
            "error_message": failure.message,
            "error_category": category,
            "error_code": failure.code,
        },
        retry_count=job.retry_count + 1,
        failures=failures,
        last_retry_at=now,
    )


def ending(
    state: ModelState, verb: Verb, target: JobStatus, message: str, *, retried: bool = False
) -> Report:
    text = check.message("error_message", message)

    def apply(row: Row, now: datetime) -> Row:
        fields: dict[str, Any] = {}
        if retried:
            fields = {"retry_count": row.job.retry_count + 1, "last_retry_at": now}
        return state.move(row, verb, target, now, error={"error_message": text}, **fields)

    return apply


def releasing(state: ModelState, message: str) -> Report:
    text = check.message("error_message", message)

    def apply(row: Row, now: datetime) -> Row:
        target = S.FAILED_RETRY if row.job.status is S.RUNNING else S.STOPPED
        return state.move(
            row,
            Verb.RELEASE,
            target,
            now,
            error={"error_message": text},
            retry_count=row.job.retry_count + 1,
            last_retry_at=now,
        )

    return apply


def acknowledging(state: ModelState, was_executing: bool) -> Report:
    if not check.flag("was_executing", was_executing):
        return lambda row, now: state.move(row, Verb.ACKNOWLEDGE, S.UNKNOWN_STOPPED, now)
    error = {"error_category": FailureCategory.CANCELLED}
    return lambda row, now: state.move(row, Verb.ACKNOWLEDGE, S.STOPPED, now, error=error)


def note(state: ModelState, job_id: str, attempt: int | None, verb: str, **fields: Any) -> None:
    with state.transaction():
        row = state.row(job_id)
        state.check_in_flight(row, attempt, verb)
        state.put(row, job=msgspec.structs.replace(row.job, **fields))
