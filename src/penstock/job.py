"""The job and what goes with it: frozen data that imports nothing but rules."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Final, Literal, Self

import msgspec

from penstock.errors import invalid
from penstock.policy import FailureCategory, RetryPolicy, Timeouts

__all__ = [
    "Job",
    "JobState",
    "JobStats",
    "JobStatus",
    "JournalArchive",
    "JournalConsumer",
    "JournalEntry",
    "Key",
    "Maintenance",
    "Priority",
    "ProcessStatus",
    "Unique",
]


Unique = Literal["while_unfinished"]
"""How long an idempotency key is reserved, other than for the store's window: while its job is unfinished."""
UNIQUE: Final = ("while_unfinished",)


class JobStatus(StrEnum):
    """The stored status of a job; `JobState` and `ProcessStatus` are derived from it.

    Attributes:
        INITIAL_PENDING: stored, not started yet; may be claimed.
        RUNNING: a worker holds it.
        CANCELLING: a worker holds it and has been asked to stop.
        FAILED_RETRY: failed or released, will run again; may be claimed.
        UNKNOWN_RETRY: its worker was lost, will run again; may be claimed.
        COMPLETED: done, with its result. Final.
        STOPPED: ended by a cancellation after it had started. Final.
        UNSCHEDULED: cancelled before it ever started. Final.
        UNKNOWN_STOPPED: ended with an unknown outcome. Final, but a late report may still correct it.
        FAILED: failed for good: the failure was permanent. Final.
        DEAD_LETTER: its attempts or its lifetime are exhausted. Final.
    """

    INITIAL_PENDING = "initial_pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    FAILED_RETRY = "failed_retry"
    UNKNOWN_RETRY = "unknown_retry"
    COMPLETED = "completed"
    STOPPED = "stopped"
    UNSCHEDULED = "unscheduled"
    UNKNOWN_STOPPED = "unknown_stopped"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"

    @property
    def is_eligible(self) -> bool:
        """Whether a job in this status may be claimed once it is due and its turn has come."""
        return self in ELIGIBLE

    @property
    def is_final(self) -> bool:
        """Whether a job in this status has ended."""
        return self in FINAL

    @property
    def holds_slot(self) -> bool:
        """Whether a job in this status occupies its worker."""
        return self in IN_FLIGHT


ELIGIBLE = frozenset({JobStatus.INITIAL_PENDING, JobStatus.FAILED_RETRY, JobStatus.UNKNOWN_RETRY})
IN_FLIGHT = frozenset({JobStatus.RUNNING, JobStatus.CANCELLING})
FINAL = frozenset(JobStatus) - ELIGIBLE - IN_FLIGHT
CANCELLED = frozenset({JobStatus.STOPPED, JobStatus.UNSCHEDULED, JobStatus.UNKNOWN_STOPPED})


class JobState(StrEnum):
    """The life-cycle state of the formal job model.

    Attributes:
        PENDING: waits for dependencies, or for its key's turn.
        DELAYED: its `run_at` has not come.
        SCHEDULED: ready to be claimed.
        RUNNING: with a worker, also while it is being cancelled.
        RETRYING: waits for its next attempt.
        COMPLETED: done.
        FAILED: failed for good.
        DEAD_LETTER: its attempts or its lifetime are exhausted.
        CANCELLED: stopped, unscheduled, or ended unknown.
    """

    PENDING = "pending"
    DELAYED = "delayed"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"


class ProcessStatus(IntEnum):
    """The status as the process queue names it.

    Attributes:
        PENDING: waits, for its first attempt or another one.
        RUNNING: with a worker.
        COMPLETED: done.
        ERROR: failed for good, or its attempts are exhausted.
        INTERRUPTED: stopped or cancelled.
    """

    PENDING = 0
    RUNNING = 1
    COMPLETED = 2
    ERROR = 3
    INTERRUPTED = 4


class Priority(IntEnum):
    """The urgency of a job; lower numbers are claimed first.

    Attributes:
        CRITICAL: 0, before everything else.
        HIGH: 1.
        NORMAL: 2, the default.
        LOW: 3.
        BULK: 4, when there is nothing else to do.
    """

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BULK = 4


_PROCESS_VIEW = {
    JobStatus.INITIAL_PENDING: ProcessStatus.PENDING,
    JobStatus.FAILED_RETRY: ProcessStatus.PENDING,
    JobStatus.UNKNOWN_RETRY: ProcessStatus.PENDING,
    JobStatus.RUNNING: ProcessStatus.RUNNING,
    JobStatus.CANCELLING: ProcessStatus.RUNNING,
    JobStatus.COMPLETED: ProcessStatus.COMPLETED,
    JobStatus.FAILED: ProcessStatus.ERROR,
    JobStatus.DEAD_LETTER: ProcessStatus.ERROR,
    JobStatus.STOPPED: ProcessStatus.INTERRUPTED,
    JobStatus.UNSCHEDULED: ProcessStatus.INTERRUPTED,
    JobStatus.UNKNOWN_STOPPED: ProcessStatus.INTERRUPTED,
}

_SETTLED_STATES = {
    JobStatus.RUNNING: JobState.RUNNING,
    JobStatus.CANCELLING: JobState.RUNNING,
    JobStatus.COMPLETED: JobState.COMPLETED,
    JobStatus.FAILED: JobState.FAILED,
    JobStatus.DEAD_LETTER: JobState.DEAD_LETTER,
    JobStatus.STOPPED: JobState.CANCELLED,
    JobStatus.UNSCHEDULED: JobState.CANCELLED,
    JobStatus.UNKNOWN_STOPPED: JobState.CANCELLED,
}


def state_of(status: JobStatus, *, is_due: bool, is_waiting: bool) -> JobState:
    """Return the formal state of a job.

    Args:
        status: the stored status.
        is_due: whether the time it may run at has come.
        is_waiting: whether it waits for dependencies or for its key's turn.
    """
    settled = _SETTLED_STATES.get(status)
    if settled is not None:
        return settled
    if status is not JobStatus.INITIAL_PENDING:
        return JobState.SCHEDULED if is_due else JobState.RETRYING
    if is_waiting:
        return JobState.PENDING
    return JobState.SCHEDULED if is_due else JobState.DELAYED


class Key(tuple[str, ...]):
    """One or more strings; jobs of one key run one at a time, in order."""

    __slots__ = ()

    def __new__(cls, *parts: str) -> Self:
        if not parts or not all(isinstance(part, str) for part in parts):
            raise invalid("key", "one or more strings", parts)
        if not any(parts):
            raise invalid("key", "text that is not empty", parts)
        # Plain text also where a subclass of str was given, such as a member of an enumeration.
        return super().__new__(cls, (part if type(part) is str else str.__str__(part) for part in parts))

    @classmethod
    def of(cls, value: Key | str | Iterable[str] | None) -> Key | None:
        """Return a Key from a Key, one text, or several; None stays None."""
        if value is None or type(value) is cls:
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, tuple | list):
            return cls(*value)
        raise invalid("key", "a Key, a string or a sequence of strings", value)

    def __getnewargs__(self) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"Key({', '.join(map(repr, self))})"


_NONE: Final = ()


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One unit of work: its request, its state and its outcome. Frozen: verbs change jobs, assignments do not.

    The store sets the fields after `held`; leave them out of a new job.
    """

    # the work and its limits
    id: str
    type: str
    payload: bytes = b""
    tags: tuple[str, ...] = ()
    priority: Priority = Priority.NORMAL
    retry: RetryPolicy | None = None
    timeouts: Timeouts = Timeouts()

    # grouping and origin
    redrive_of: str | None = None
    correlation_id: str | None = None
    callback_url: str | None = None
    idempotency_key: str | None = None
    #: How long its idempotency key is reserved: None for the store's window, a day; "while_unfinished" until it has ended.
    unique: Unique | None = None
    #: W3C trace context of its submitter: `traceparent`, then after a space its `tracestate`, if there is one.
    trace: str | None = None

    # when
    run_at: datetime | None = None
    key: Key | None = None
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    parent_id: str | None = None
    held: bool = False

    # state
    status: JobStatus = JobStatus.INITIAL_PENDING
    state: JobState | None = None
    attempt: int = 0
    retry_count: int = 0
    failures: int = 0
    assignee_id: str | None = None
    assigned_at: datetime | None = None
    progress: int = 0
    description: str | None = None
    checkpoint: bytes | None = None

    # outcome
    result: bytes | None = None
    error_message: str = ""
    error_category: FailureCategory | None = None
    error_code: str | None = None

    # moments
    created_at: datetime | None = None
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    attempt_started_at: datetime | None = None
    last_retry_at: datetime | None = None
    finalized_at: datetime | None = None
    updated_at: datetime | None = None

    def __post_init__(self) -> None:
        # The store builds jobs from clean rows in its hot loop; these tests are all it pays. There is one empty tuple.
        if self.tags is not _NONE or self.after is not _NONE or self.after_any is not _NONE:
            self._tidy_lists()
        if self.key is not None and type(self.key) is not Key:
            msgspec.structs.force_setattr(self, "key", Key.of(self.key))
        if self.payload is None:
            msgspec.structs.force_setattr(self, "payload", b"")

    def _tidy_lists(self) -> None:
        for name in ("tags", "after", "after_any"):
            given = getattr(self, name)
            if given is not _NONE:
                msgspec.structs.force_setattr(self, name, distinct(name, given))

    @classmethod
    def new(cls, type: str, payload: bytes = b"", **fields: Any) -> Job:
        """Return a job with a fresh random id (UUID version 4)."""
        return cls(id=new_id(), type=type, payload=payload, **fields)

    @property
    def is_plain(self) -> bool:
        """Whether nothing but type, payload, tags, priority and policy is asked for, as in most submissions."""
        try:
            return msgspec.structs.astuple(self)[_PLAIN_FROM:] == _PLAIN
        except Exception:  # a field that cannot be compared, such as an array: the store says which
            return False

    @property
    def process_status(self) -> ProcessStatus:
        """The status as the process queue names it."""
        return _PROCESS_VIEW[self.status]

    def _repr_html_(self) -> str:
        """Return the job as a small table, for notebooks."""
        from penstock._html import job_html  # noqa: PLC0415  # notebooks only

        return job_html(self)

    @property
    def completed_at(self) -> datetime | None:
        """When the job reached a final status (the formal model's name for `finalized_at`)."""
        return self.finalized_at


#: The bits of a UUID that its version, 4, and its variant leave random, and those that these two are.
_RANDOM_BITS: Final = (1 << 128) - 1 - (0xF << 76) - (0x3 << 62)
_FIXED_BITS: Final = (0x4 << 76) | (0x2 << 62)


def new_id() -> str:
    """Return a fresh random id (UUID version 4): `str(uuid.uuid4())` at half the cost."""
    digits = "%032x" % (int.from_bytes(os.urandom(16)) & _RANDOM_BITS | _FIXED_BITS)
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


#: The most characters of the texts that may be None; one has at least one character.
TEXT_LIMITS: Final = {
    "redrive_of": 512,
    "correlation_id": 512,
    "callback_url": 2048,
    "idempotency_key": 256,
    "trace": 1024,  # a traceparent has 55 characters, a tracestate at most 512 that must be kept
    "parent_id": 512,
    "assignee_id": 512,
    "description": 2000,
    "error_code": 256,
}
#: The fields of a new job, which its submitter gives; the store sets the others.
GIVEN: Final = Job.__struct_fields__[: Job.__struct_fields__.index("held") + 1]

_PLAIN_FROM = Job.__struct_fields__.index("redrive_of")
_PLAIN = msgspec.structs.astuple(Job(id="", type=""))[_PLAIN_FROM:]


class JobStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the jobs that have all of `tags`.

    Attributes:
        tags: which jobs were counted; none is all.
        total_jobs: all of them, CANCELLING included.
        pending_jobs: INITIAL_PENDING.
        running_jobs: RUNNING.
        completed_jobs: COMPLETED.
        stopped_jobs: every other final status.
        failed_jobs: FAILED_RETRY and UNKNOWN_RETRY: they wait for another attempt.
        total_retries: the sum of `retry_count`.
    """

    tags: tuple[str, ...] = ()
    total_jobs: int = 0
    pending_jobs: int = 0
    running_jobs: int = 0
    completed_jobs: int = 0
    stopped_jobs: int = 0
    failed_jobs: int = 0
    total_retries: int = 0


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One state change, as written in the transaction that made it.

    `after`, `after_any` and `parent_id` stand on a job's first row alone, which has no `from_status`;
    `ready_at` and `started_at` on the row that ends an attempt.
    """

    seq: int
    recorded_at: datetime
    job_id: str
    n: int
    type: str
    verb: str
    from_status: JobStatus | None
    status: JobStatus
    attempt: int
    retry_count: int
    failures: int
    max_attempts: int | None
    priority: Priority
    key: Key | None
    tags: tuple[str, ...]
    idempotency_key: str | None
    assignee_id: str | None
    due_at: datetime | None
    error_category: FailureCategory | None
    error_code: str | None
    error_message: str
    progress: int
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    parent_id: str | None = None
    ready_at: datetime | None = None
    started_at: datetime | None = None


class JournalConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A registered reader of the journal; rows are kept until it has consumed them.

    Attributes:
        name: the consumer's name.
        seq: everything up to this row is consumed.
        updated_at: when `seq` last advanced.
        holder: the process that reads for it now; None if there is none.
        held_until: when the holder's lease ends unless renewed.
    """

    name: str
    seq: int
    updated_at: datetime
    holder: str | None = None
    held_until: datetime | None = None


class JournalArchive(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that were removed from a journal.

    Attributes:
        histories: the jobs whose histories are gone.
        rows: the rows removed in all. Their numbers stay unused: `seq` has as many gaps.
        upto: the highest `seq` removed.
    """

    histories: int = 0
    rows: int = 0
    upto: int = 0


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pass of upkeep, in numbers of jobs.

    Attributes:
        expired: their lifetime was over.
        lost: reclaimed from an owner or a lease that had expired.
        timed_out: their attempt took too long.
        due: became claimable.
        removed: were kept long enough.
    """

    expired: int = 0
    lost: int = 0
    timed_out: int = 0
    due: int = 0
    removed: int = 0


def distinct(field: str, values: object) -> tuple[str, ...]:
    """Return a sequence of strings without repeats, in first-seen order.

    Raises:
        InvalidArgumentError: a single string or bytes, not a sequence, or an item that is not a string.
    """
    if type(values) is tuple and len(values) == 1 and type(values[0]) is str:
        return values
    # A mapping of ids stands for its keys; one of tags would silently lose its values.
    is_lossy = isinstance(values, Mapping) and field != "job_ids"
    if is_lossy or isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        raise invalid(field, "a sequence of strings", values)
    items = tuple(values)
    for item in items:
        if not isinstance(item, str):
            raise invalid(field, "made of strings", item)
    # Plain text also where a subclass of str was given, such as a member of an enumeration.
    return tuple(dict.fromkeys(item if type(item) is str else str.__str__(item) for item in items))
