"""What the verbs of a store take and give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.job import Job, JobStatus, JournalEntry, Key
from penstock.policy import FailureCategory, duration

__all__ = [
    "CALLBACKS",
    "UNSET",
    "Awaited",
    "Change",
    "ClaimRequest",
    "Delivery",
    "Failure",
    "JobEnd",
    "Retention",
    "Schedule",
    "Taker",
    "UnsetType",
]

#: The consumer of the journal that tells callback urls how jobs ended.
CALLBACKS = "callbacks"

UNSET = msgspec.UNSET
UnsetType = msgspec.UnsetType


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One assignee's wish in `dequeue_jobs_for`; the fields are the arguments of `dequeue_jobs`.

    Attributes:
        assignee_id: who takes the jobs.
        tags: only jobs that have all of these.
        limit: at most so many.
        types: only these types; None is any.
        key: only this key.
        job_ids: only these, held ones included.
        owner: the liveness row that holds them.
    """

    assignee_id: str
    tags: Sequence[str] = ()
    limit: int = 1
    types: Sequence[str] | None = None
    key: Key | str | None = None
    job_ids: Sequence[str] | None = None
    owner: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure with all its facts, for `fail_jobs`.

    Attributes:
        message: what happened.
        category: which kind of failure.
        code: a short machine-readable reason.
        retry_after: how long to wait instead of the policy's delay.
    """

    message: str
    category: FailureCategory = FailureCategory.TEMPORARY
    code: str | None = None
    retry_after: timedelta | float | None = None


class Awaited(NamedTuple):
    """A connection of asyncio's, for `Backend.joined`, and how a thread waits for something of its loop."""

    connection: object
    wait: Callable[[Awaitable[Any]], Any]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended jobs stay, from their end; None is for ever. The journal stays until it is archived.

    Durations are timedelta, or seconds.

    Attributes:
        completed: for COMPLETED jobs; 30 days.
        other: for all others that have ended; 90 days.
    """

    completed: timedelta | None = timedelta(days=30)
    other: timedelta | None = timedelta(days=90)

    def __post_init__(self) -> None:
        for field in ("completed", "other"):
            value = getattr(self, field)
            if value is not None:
                msgspec.structs.force_setattr(self, field, duration(value, f"retention.{field}"))


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job that has a callback url: the journal row, and what the row does not hold.

    Attributes:
        entry: the journal row.
        callback_url: who is to be told.
        correlation_id: as it was submitted.
        created_at: when it was submitted.
        result: None if there is none, or if it is larger than the reader asked for.
        result_size: its bytes; None if there is none.
    """

    entry: JournalEntry
    callback_url: str
    correlation_id: str | None = None
    created_at: datetime
    result: bytes | None = None
    result_size: int | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a callback url has to be told, and how often that was tried.

    Attributes:
        seq: the journal row it tells of.
        event_id: the same at every attempt.
        url: where it goes.
        lane: deliveries of one lane wait for each other, not for those of others.
        body: what is sent.
        due_at: when it is tried next; None once it was given up.
        attempts: how often it was tried.
        error: why the last attempt failed.
    """

    seq: int
    event_id: str
    url: str
    lane: str
    body: bytes
    due_at: datetime | None
    attempts: int = 0
    error: str = ""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic schedule as the store knows it.

    Attributes:
        name: by which the store knows it.
        tick: everything up to this moment has been dealt with.
        updated_at: when that was said.
    """

    name: str
    tick: datetime
    updated_at: datetime


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A committed state change, as told to the listeners of this process (`Backend.listen`).

    Attributes:
        job_id: the job.
        type: its type.
        key: its key, if it has one.
        tags: its tags.
        verb: what was done; "available" if the job can be taken now though its status is the same.
        from_status: the status before; None for a new job.
        status: the status after.
        attempt: the job's attempt.
        assignee_id: who holds it, or held it last.
        at: when.
        available: whether the job can be taken from now on.
    """

    job_id: str
    type: str
    key: Key | None
    tags: tuple[str, ...]
    verb: str
    from_status: JobStatus | None
    status: JobStatus
    attempt: int
    assignee_id: str | None
    at: datetime
    available: bool = False


class Taker(Protocol):
    """Somebody who waits for jobs, and may take them in the very commit that makes them takeable."""

    def wants(self, type: str, tags: Sequence[str]) -> bool:
        """Whether somebody waits for such a job at this moment; a guess, made without waiting."""
        ...

    def wishes(self, changes: Sequence[Change]) -> Sequence[ClaimRequest]:
        """Return what to claim, given what is about to be committed. Must not call the store, nor wait."""
        ...

    def receive(self, jobs: Sequence[list[Job]]) -> None:
        """Take what was claimed, one list a wish, once it is committed; nothing at all if it was not."""
        ...

    def doubt(self) -> None:
        """Learn, instead, that nobody can say whether it was committed."""
        ...
