"""What each verb does to one row. Pure: a row, a value and the time in; the changed row out."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from penstock.backends.contract.values import Failure
from penstock.backends.engine.rows import Gate, Row, decode_policy, decode_strings, job_of, micros_of
from penstock.backends.engine.store import Owner
from penstock.errors import StaleAttemptError
from penstock.job import GIVEN, Job, JobStatus, new_id
from penstock.lifecycle import Verb, targets
from penstock.policy import FailureCategory

DEAD: Final = frozenset({JobStatus.FAILED, JobStatus.DEAD_LETTER})
FREEING_UPDATES: Final = frozenset({JobStatus.COMPLETED, JobStatus.STOPPED, JobStatus.UNKNOWN_STOPPED})


def start(row: Row, assignee_id: str, owner: str | None, verb: Verb, now: int) -> None:
    """Begin an attempt."""
    row.move(verb, JobStatus.RUNNING, now)
    if row.attempt:  # what an earlier attempt was doing
        row.description = None
    row.attempt += 1
    row.assignee_id = assignee_id
    row.assigned_at = row.attempt_started_at = now
    if row.started_at is None:
        row.started_at = now
    row.progress = 0
    row.owner = owner
    row.lease_until = now + row.visibility if owner is None and row.visibility is not None else None
    row.deadline_at = None if row.execution is None else now + row.execution
    if row.closed:
        row.closed = 0
        row.finalized_at = None
        row.ready_at = now


def is_claimable(row: Row, now: int) -> bool:
    """Whether a claim by id may have the job, held or not."""
    if not row.is_eligible or row.gate in (None, Gate.WAITING):
        return False
    return row.due_at is None or row.due_at <= now


def complete(row: Row, _result: bytes | None, now: int) -> None:
    """Move a job to COMPLETED."""
    row.move(Verb.COMPLETE, JobStatus.COMPLETED, now)
    row.finalized_at = now
    if row.started_at is None:
        row.started_at = now


def fail(row: Row, failure: Failure, now: int, verb: Verb = Verb.FAIL) -> None:
    """Record a failed attempt and decide whether another one follows."""
    policy = None if row.retry is None else decode_policy(row.retry)
    # An attempt that was already counted when it was lost is not counted again by its late report.
    already_counted = row.lost_attempt == row.attempt
    if failure.category is not FailureCategory.CANCELLED and not already_counted:
        row.failures += 1
    delay: timedelta | None = None
    if failure.category is FailureCategory.PERMANENT:
        target = JobStatus.FAILED
    elif failure.category is FailureCategory.CANCELLED:
        target = JobStatus.STOPPED
    elif policy is not None and not policy.allows(failure.category, row.failures):
        target = JobStatus.DEAD_LETTER
    else:
        target = JobStatus.FAILED_RETRY
        if failure.retry_after is not None:
            delay = failure.retry_after  # type: ignore[assignment]  # checked: a timedelta by now
        elif policy is not None:
            delay = policy.delay(max(row.failures, 1))
    row.move(verb, target, now)
    _count_retry(row, now)
    row.due_at = now + micros_of(delay) if delay else None
    row.error_message = failure.message
    row.error_category = failure.category.value
    row.error_code = failure.code
    _place(row, now)


def stop(row: Row, message: str, now: int) -> None:
    """Move a job to STOPPED."""
    row.move(Verb.STOP, JobStatus.STOPPED, now)
    row.error_message = message


def stop_with_retry(row: Row, message: str, now: int) -> None:
    """Move a job to STOPPED and count a retry."""
    row.move(Verb.STOP_WITH_RETRY, JobStatus.STOPPED, now)
    _count_retry(row, now)
    row.error_message = message


def mark_unknown_stopped(row: Row, message: str, now: int) -> None:
    """Move a job to UNKNOWN_STOPPED."""
    row.move(Verb.MARK_UNKNOWN_STOPPED, JobStatus.UNKNOWN_STOPPED, now)
    row.error_message = message


def release(row: Row, message: str, now: int) -> None:
    """Release an attempt without counting it."""
    was_cancelling = row.status == JobStatus.CANCELLING
    row.move(Verb.RELEASE, JobStatus.STOPPED if was_cancelling else JobStatus.FAILED_RETRY, now)
    _count_retry(row, now)
    row.due_at = None
    if message:
        row.error_message = message
    _place(row, now)


def acknowledge(row: Row, was_executing: bool, now: int) -> None:
    """End a job whose cancellation its worker has acknowledged."""
    row.move(Verb.ACKNOWLEDGE, JobStatus.STOPPED if was_executing else JobStatus.UNKNOWN_STOPPED, now)
    if was_executing:
        row.error_category = FailureCategory.CANCELLED.value


def stale(verb: str, row: Row, attempt: int) -> StaleAttemptError:
    """Return the refusal of an attempt that is over."""
    return StaleAttemptError(
        job_id=row.id, status=row.status, verb=str(verb), attempt=attempt, current_attempt=row.attempt
    )


def cancel(row: Row, now: int) -> None:
    """Cancel a job: at once if it waits, by its worker if it runs."""
    (target,) = targets(Verb.CANCEL, JobStatus(row.status))
    hold = (row.owner, row.lease_until, row.deadline_at)
    row.move(Verb.CANCEL, target, now)
    if target is JobStatus.CANCELLING:
        row.owner, row.lease_until, row.deadline_at = hold


def lose(row: Row, verb: Verb, now: int) -> None:
    """Reclaim a job from an owner or lease that is gone."""
    if row.status == JobStatus.CANCELLING:
        row.move(verb, JobStatus.UNKNOWN_STOPPED, now)
        return
    if row.max_attempts is not None:
        row.failures += 1
        row.lost_attempt = row.attempt
        if row.failures >= row.max_attempts:
            row.move(verb, JobStatus.DEAD_LETTER, now)
            row.error_message = f"attempt {row.attempt} was lost, and it was the last one allowed"
            row.error_category = FailureCategory.SYSTEM.value
            row.error_code = "lost"
            return
    row.move(verb, JobStatus.UNKNOWN_RETRY, now)
    row.due_at = None
    _place(row, now)


def time_out(row: Row, now: int) -> None:
    """Fail an attempt that ran longer than its execution limit."""
    limit = timedelta(microseconds=row.execution or 0)
    failure = Failure(
        message=f"the attempt ran longer than its limit of {limit.total_seconds():g} s",
        category=FailureCategory.TIMEOUT,
        code="execution_timeout",
    )
    fail(row, failure, now, Verb.TIME_OUT)


def expire(row: Row, now: int) -> None:
    """Move a job whose lifetime is over to DEAD_LETTER."""
    limit = timedelta(microseconds=row.lifetime or 0)
    row.move(Verb.EXPIRE, JobStatus.DEAD_LETTER, now)
    row.error_message = f"the job did not end within its lifetime of {limit.total_seconds():g} s"
    row.error_category = FailureCategory.TIMEOUT.value
    row.error_code = "lifetime"


def update_status(row: Row, target: JobStatus, message: str, now: int) -> None:
    """Move a job to a status that the caller names."""
    was_held = row.is_in_flight
    hold = (row.owner, row.lease_until, row.deadline_at)
    row.move(Verb.UPDATE_STATUS, target, now)
    if target is JobStatus.CANCELLING:
        row.closed, row.finalized_at = 0, None
        if was_held:
            row.owner, row.lease_until, row.deadline_at = hold
        elif row.visibility is not None:
            # The worker that should acknowledge it may be gone, so the correction is a lease like any other.
            row.lease_until = now + row.visibility
    if message:
        row.error_message = message
    if target.is_eligible:
        row.due_at = None
        _place(row, now)


#: What a copy does not share with the dead job: each job has its own id, and what the dead one waited for is over.
_NOT_COPIED: Final = frozenset(
    {"id", "redrive_of", "idempotency_key", "unique", "run_at", "after", "after_any"}
)
_COPIED: Final = tuple(name for name in GIVEN if name not in _NOT_COPIED)


def copy_of(row: Row, payload: bytes, now: int) -> Job:
    """Return the job that repeats a dead one."""
    dead = job_of(row, payload, None, None, now)
    return Job(id=new_id(), redrive_of=row.id, **{name: getattr(dead, name) for name in _COPIED})


def owner(owner_id: str, host: str, pid: int, started: str, now: int) -> Owner:
    """Return the row of a new owner."""
    return Owner(owner_id, host, pid, started, now, opened_at=now, intakes="[]")


def tags_of(row: Row) -> tuple[str, ...]:
    """Return the tags of a row."""
    return decode_strings(row.tags)


def _count_retry(row: Row, now: int) -> None:
    row.retry_count += 1
    row.last_retry_at = row.order_at = now


def _place(row: Row, now: int) -> None:
    """Put a job without a key where claims find it; the order of a key is settled after the rows are saved."""
    if row.key is None:
        row.settle_gate(now)
