"""What the verbs of a store take and give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.durations import Duration, duration
from penstock.job import Job, JobStatus, JournalEntry, Key
from penstock.policy import FailureCategory

__all__ = [
    "CALLBACKS",
    "UNSET",
    "Awaited",
    "Change",
    "ClaimRequest",
    "Claimer",
    "Delivery",
    "Failure",
    "JobEnd",
    "NextStep",
    "Retention",
    "Schedule",
    "UnsetType",
    "Withheld",
]

#: The journal consumer that delivers callbacks.
CALLBACKS = "callbacks"

UNSET = msgspec.UNSET
UnsetType = msgspec.UnsetType


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One assignee's claim in `dequeue_jobs_for`; the fields are the arguments of `dequeue_jobs`.

    Attributes:
        assignee_id: for whom the jobs are claimed.
        tags: only jobs that have all of these.
        limit: at most so many.
        types: only these types; None is any.
        key: only this key.
        job_ids: only these, held ones included.
        owner: the liveness row that holds them.
        pushed: claimed for a stream, so that the assignee did not ask for them: nothing (`Withheld`) while it is declared
            unresponsive.
        revives: the assignee has given a sign of life, a new stream, and is not unresponsive any more.
    """

    assignee_id: str
    tags: Sequence[str] = ()
    limit: int = 1
    types: Sequence[str] | None = None
    key: Key | str | None = None
    job_ids: Sequence[str] | None = None
    owner: str | None = None
    pushed: bool = False
    revives: bool = False


class Withheld(list[Job]):
    """The empty answer to a pushed claim for an assignee that was declared unresponsive."""


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
    retry_after: Duration | None = None


class Awaited(NamedTuple):
    """An asyncio connection, for `Backend.joined`, and the function by which a thread waits for its loop."""

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
        callback_url: where the end is delivered.
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
    """A callback to deliver, and how often that was tried.

    Attributes:
        seq: the journal row that it is about.
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
        tick: every tick up to this moment is stored.
        updated_at: when that was recorded.
    """

    name: str
    tick: datetime
    updated_at: datetime


class NextStep(msgspec.Struct, frozen=True, kw_only=True):
    """What comes next for a job, without the job itself.

    Attributes:
        status: its status.
        attempt: its attempt.
        due_at: when it may be claimed; None if that is not limited, or the store does not know.
        owner: the liveness row that holds it (`OwnerView.id`); None if none does, or the store does not know.
        number: its insertion number; None if the store does not know.
    """

    status: JobStatus
    attempt: int
    due_at: datetime | None = None
    owner: str | None = None
    number: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A committed state change, as the listeners of this process get it (`Runtime.listen`).

    Attributes:
        job_id: the job.
        type: its type.
        key: its key, if it has one.
        tags: its tags.
        verb: what was done; "available" if the job is eligible now though its status is the same.
        from_status: the status before; None for a new job.
        status: the status after.
        attempt: the job's attempt.
        assignee_id: who holds it, or held it last.
        at: when.
        available: whether the job is eligible from now on.
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


class Claimer(Protocol):
    """A dispatcher that may claim jobs in the very commit that makes them eligible."""

    def wants(self, type: str, tags: Sequence[str]) -> bool:
        """Whether a stream waits for such a job at this moment; a guess, made without waiting."""
        ...

    def requested(self, changes: Sequence[Change]) -> Sequence[ClaimRequest]:
        """Return what to claim, given what is about to be committed. Must not call the store, nor wait."""
        ...

    def deliver(self, jobs: Sequence[list[Job]]) -> None:
        """Deliver what was claimed, one list per request, once it is committed; an empty sequence if it was not."""
        ...

    def outcome_unknown(self) -> None:
        """Called instead of `deliver` if the store cannot tell whether the claim was committed."""
        ...
