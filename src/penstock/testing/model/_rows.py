"""The model's row of a job, and checks that need one row only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.backends import Change
from penstock.errors import InvalidTransitionError, StaleAttemptError
from penstock.job import CANCELLED, Job, JobStatus, JournalEntry

S = JobStatus


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A stored job and the store's own fields of it."""

    job: Job
    number: int
    n: int = 0
    depth: int = 1
    due_at: datetime
    ready_at: datetime | None = None
    attempt_ready_at: datetime | None = None
    submitted_at: datetime
    open_after: frozenset[str] = frozenset()
    spawned: frozenset[str] = frozenset()
    waits_for_any: bool = False
    owner: str | None = None
    lease_from: datetime | None = None
    is_delayed: bool = False
    verb: str = ""
    lost_attempt: int | None = None


def not_possible(verb: str, job: Job) -> InvalidTransitionError:
    text = f"{verb} of job {job.id} is not possible: it is {job.status}"
    return InvalidTransitionError(text, job_id=job.id, status=str(job.status), verb=verb)


def check_fence(row: Row, attempt: int | None, verb: str, *, is_over: bool) -> None:
    """Refuse an attempt that is not the job's, or that is over."""
    if attempt is not None and (attempt != row.job.attempt or is_over):
        raise StaleAttemptError(
            job_id=row.job.id,
            status=str(row.job.status),
            verb=verb,
            attempt=attempt,
            current_attempt=row.job.attempt,
        )


def is_past(start: datetime | None, span: timedelta | None, now: datetime) -> bool:
    return start is not None and span is not None and start + span <= now


def utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def selection_order(row: Row) -> tuple[Any, ...]:
    return row.job.priority, row.job.last_retry_at or row.job.created_at, row.number


def shared_fate(status: JobStatus) -> JobStatus:
    return S.UNSCHEDULED if status in CANCELLED else status


def fate_error(ended: Job) -> dict[str, Any]:
    return {"error_message": f"the job {ended.id} it waited for is {ended.status}"}


def entries_into(rows: Iterable[JournalEntry]) -> Counter[tuple[str, JobStatus]]:
    """Count by type how often a status was entered."""
    return Counter((row.type, row.status) for row in rows if row.from_status is not row.status)


def change_of(entry: JournalEntry, available: bool) -> Change:
    return Change(
        job_id=entry.job_id,
        type=entry.type,
        key=entry.key,
        tags=entry.tags,
        verb=entry.verb,
        from_status=entry.from_status,
        status=entry.status,
        attempt=entry.attempt,
        assignee_id=entry.assignee_id,
        at=entry.recorded_at,
        available=available,
    )
