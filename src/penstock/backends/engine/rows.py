"""The stored row of a job, shared by all SQL stores, and its translation from and to `Job`.

Times are integer microseconds since 1970; `tags`, `key`, `after` and `after_any` are JSON arrays of strings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from penstock.backends.contract.values import JobEnd
from penstock.backends.engine.writes import ENQUEUE, value_of
from penstock.clock import from_micros, to_micros
from penstock.errors import BackendError
from penstock.job import (
    ELIGIBLE,
    FINAL,
    IN_FLIGHT,
    Job,
    JobState,
    JobStatus,
    JournalEntry,
    Key,
    Priority,
    state_of,
)
from penstock.policy import FailureCategory, RetryPolicy, Timeouts

__all__ = ["COLUMNS", "JOURNAL_COLUMNS", "Gate", "Row", "job_of", "journal_entry", "row_of"]

NO_STRINGS: Final = "[]"


class Gate(IntEnum):
    """Where an unclaimed job stands; NULL for jobs that cannot be claimed at all."""

    READY = 0  # in the ready set: any claim may take it
    DELAYED = 1  # only its time is missing
    WAITING = 2  # dependencies unmet, or not its key's turn
    HELD = 3  # nothing but its time may be missing, but only a claim by id takes it


class Row(msgspec.Struct):
    """A job's row: every column but the blobs, in the order of `COLUMNS`. Verbs change it, then save it."""

    seq: int
    id: str
    type: str
    tags: str
    priority: int
    order_at: int  # COALESCE(last_retry_at, created_at)
    status: str
    closed: int  # 1 once final
    gate: int | None
    unmet: int  # dependencies that still hold it back
    fan: int  # 1 if jobs wait, or once waited, for it
    depth: int
    n: int  # journal rows of this job so far
    attempt: int
    lost_attempt: int | None  # the latest attempt whose loss was counted as a failure
    max_attempts: int | None
    retry: str | None
    execution: int | None
    visibility: int | None
    lifetime: int | None
    assignee_id: str | None
    assigned_at: int | None
    owner: str | None
    lease_until: int | None
    deadline_at: int | None
    expires_at: int | None
    ready_at: int | None
    created_at: int
    started_at: int | None
    attempt_started_at: int | None
    updated_at: int
    verb: str
    from_status: str | None
    # From here on what most jobs leave at its default, so that one comparison tells (`_USUAL`).
    key: str | None
    held: int
    retry_count: int
    failures: int
    run_at: int | None
    due_at: int | None
    last_retry_at: int | None
    finalized_at: int | None
    progress: int
    description: str | None
    error_message: str
    error_category: str | None
    error_code: str | None
    correlation_id: str | None
    callback_url: str | None
    idempotency_key: str | None
    uniqueness: str | None
    parent_id: str | None
    redrive_of: str | None
    trace: str | None
    after: str
    after_any: str

    @property
    def is_eligible(self) -> bool:
        return self.status in ELIGIBLE

    @property
    def is_in_flight(self) -> bool:
        return self.status in IN_FLIGHT

    def move(self, verb: str, status: str, now: int) -> None:
        """Take one journaled step. Leaving flight ends the hold; a final status closes the job."""
        self.from_status = self.status
        self.status = status
        self.verb = verb
        self.n += 1
        self.updated_at = now
        self.gate = None
        if status in IN_FLIGHT:
            return
        self.owner = self.lease_until = self.deadline_at = None
        if status in FINAL:
            self.closed = 1
            if self.finalized_at is None:
                self.finalized_at = now
            if self.ready_at is not None and self.ready_at > now:
                self.ready_at = None  # it ended before it was due, so it never became ready
        elif self.closed:
            self.closed = 0
            self.finalized_at = None

    def note(self, verb: str, now: int) -> None:
        """Journal a change that keeps the status."""
        self.from_status = self.status
        self.verb = verb
        self.n += 1
        self.updated_at = now

    def settle_gate(self, now: int, *, has_turn: bool = True) -> None:
        """Place an eligible job where claims find it, or where they do not."""
        if not self.is_eligible:
            return
        if self.unmet or not has_turn:
            self.gate, self.ready_at = Gate.WAITING, None
            return
        if self.gate in (None, Gate.WAITING):
            self.ready_at = now if self.due_at is None else max(now, self.due_at)
        if self.held:
            self.gate = Gate.HELD
        elif self.due_at is not None and self.due_at > now:
            self.gate = Gate.DELAYED
        elif self.gate != Gate.READY:
            self.gate = Gate.READY


COLUMNS: Final = Row.__struct_fields__
_FIRST_UNUSUAL: Final = COLUMNS.index("key")
# What a plain job has there when it is stored, and keeps when it is claimed for the first time.
_USUAL: Final = tuple(
    value_of(ENQUEUE[name], {}) if name in ENQUEUE else None for name in COLUMNS[_FIRST_UNUSUAL:]
)
#: In the order in which rows of the journal are read.
JOURNAL_COLUMNS: Final = JournalEntry.__struct_fields__

#: From the stored text to the status; quicker than `JobStatus(text)`, which every change of a job would pay for.
STATUSES: Final = {status.value: status for status in JobStatus}
_CATEGORY = {category.value: category for category in FailureCategory}
_PRIORITY = tuple(Priority)
_encode = msgspec.json.Encoder().encode
_decode_strings = msgspec.json.Decoder(tuple[str, ...]).decode


def encode_strings(values: Iterable[str]) -> str:
    """Return strings as one canonical JSON text."""
    return _encode(tuple(values)).decode() if values else NO_STRINGS


@lru_cache(maxsize=4096)
def decode_strings(text: str) -> tuple[str, ...]:
    return _decode_strings(text)


@lru_cache(maxsize=4096)
def decode_key(text: str) -> Key:
    return Key(*_decode_strings(text))


class _StoredPolicy(msgspec.Struct, frozen=True):
    max_attempts: int
    backoff: str
    initial_delay: int
    max_delay: int
    multiplier: float
    jitter: float
    retry_on: tuple[FailureCategory, ...]


@lru_cache(maxsize=1024)
def encode_policy(policy: RetryPolicy) -> str:
    stored = _StoredPolicy(
        policy.max_attempts,
        policy.backoff,
        micros_of(policy.initial_delay),
        micros_of(policy.max_delay),
        policy.multiplier,
        policy.jitter,
        policy.retry_on,
    )
    return _encode(stored).decode()


@lru_cache(maxsize=1024)
def decode_policy(text: str) -> RetryPolicy:
    stored = msgspec.json.decode(text, type=_StoredPolicy)
    return RetryPolicy.restore(
        max_attempts=stored.max_attempts,
        backoff=stored.backoff,
        initial_delay=timedelta(microseconds=stored.initial_delay),
        max_delay=timedelta(microseconds=stored.max_delay),
        multiplier=stored.multiplier,
        jitter=stored.jitter,
        retry_on=stored.retry_on,
    )


@lru_cache(maxsize=1024)
def timeouts_of(execution: int | None, visibility: int | None, lifetime: int | None) -> Timeouts:
    def span(micros: int | None) -> timedelta | None:
        return None if micros is None else timedelta(microseconds=micros)

    return Timeouts(execution=span(execution), visibility=span(visibility), lifetime=span(lifetime))


_MICROSECOND = timedelta(microseconds=1)


@lru_cache(maxsize=1024)
def encode_timeouts(timeouts: Timeouts) -> tuple[int | None, int | None, int | None]:
    """Return execution, visibility and lifetime in microseconds."""

    def micros(span: timedelta | None) -> int | None:
        return None if span is None else micros_of(span)

    return micros(timeouts.execution), micros(timeouts.visibility), micros(timeouts.lifetime)


def micros_of(span: timedelta) -> int:
    """Return a duration as integer microseconds."""
    return span // _MICROSECOND


def row_of(job: Job, now: int) -> Row:
    """Return the row of a new job, still without `seq`, inherited priority, gate and depth."""
    created_at = now if job.created_at is None else to_micros(job.created_at)
    last_retry_at = _micros(job.last_retry_at)
    run_at = _micros(job.run_at)
    execution, visibility, lifetime = encode_timeouts(job.timeouts)
    return Row(
        seq=0,
        id=job.id,
        type=job.type,
        tags=encode_strings(job.tags),
        key=None if job.key is None else encode_strings(job.key),
        priority=int(job.priority),
        order_at=created_at if last_retry_at is None else last_retry_at,
        status="initial_pending",
        closed=0,
        gate=None,
        unmet=0,
        fan=0,
        held=int(job.held),
        depth=1,
        n=1,
        attempt=job.attempt,
        lost_attempt=None,
        retry_count=job.retry_count,
        failures=job.failures,
        max_attempts=None if job.retry is None else job.retry.max_attempts,
        retry=None if job.retry is None else encode_policy(job.retry),
        execution=execution,
        visibility=visibility,
        lifetime=lifetime,
        assignee_id=job.assignee_id,
        assigned_at=_micros(job.assigned_at),
        owner=None,
        lease_until=None,
        deadline_at=None,
        expires_at=None if lifetime is None else created_at + lifetime,
        run_at=run_at,
        due_at=run_at,
        ready_at=None,
        created_at=created_at,
        started_at=_micros(job.started_at),
        attempt_started_at=_micros(job.attempt_started_at),
        last_retry_at=last_retry_at,
        finalized_at=_micros(job.finalized_at),
        updated_at=now,
        progress=job.progress,
        description=job.description,
        error_message=job.error_message,
        error_category=None if job.error_category is None else job.error_category.value,
        error_code=job.error_code,
        correlation_id=job.correlation_id,
        callback_url=job.callback_url,
        idempotency_key=job.idempotency_key,
        uniqueness=job.unique,
        parent_id=job.parent_id,
        redrive_of=job.redrive_of,
        trace=job.trace,
        after=encode_strings(job.after),
        after_any=encode_strings(job.after_any),
        verb="enqueue" if job.unique is None else "enqueue_unique",
        from_status=None,
    )


@contextmanager
def damage_named() -> Iterator[None]:
    """Say so if what was stored does not make sense: no store checks its pages by itself."""
    try:
        yield
    except (LookupError, ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise BackendError(f"a stored row is damaged ({error!r}); restore the store from a backup") from error


def plain_as_stored(job: Job, moment: int) -> Job:
    """Return a plain job (`Job.is_plain`) as it was stored at a moment, without reading it."""
    at = moment_at(moment)
    return msgspec.structs.replace(
        job, created_at=at, scheduled_at=at, updated_at=at, state=JobState.SCHEDULED
    )


def job_of(row: Row, payload: bytes, result: bytes | None, checkpoint: bytes | None, now: int) -> Job:
    """Return the job of a row, with its state as it is at `now`. Claims call this for every job."""
    status = STATUSES[row.status]
    due_at = row.due_at
    started, ready_at = row.attempt_started_at, row.ready_at
    attempt_started_at = None if started is None else moment_at(started)
    unusual = {} if astuple(row)[_FIRST_UNUSUAL:] == _USUAL else _unusual_fields(row)
    if result is not None or checkpoint is not None:
        unusual |= {"result": result, "checkpoint": checkpoint}
    return Job(
        id=row.id,
        type=row.type,
        payload=payload,
        tags=() if row.tags == NO_STRINGS else decode_strings(row.tags),
        priority=_PRIORITY[row.priority],
        retry=None if row.retry is None else decode_policy(row.retry),
        timeouts=timeouts_of(row.execution, row.visibility, row.lifetime),
        status=status,
        state=state_of(
            status,
            is_due=due_at is None or due_at <= now,
            is_waiting=row.gate == 2,  # Gate.WAITING
        ),
        attempt=row.attempt,
        assignee_id=row.assignee_id,
        assigned_at=attempt_started_at if row.assigned_at == started else _moment(row.assigned_at),
        created_at=moment_at(row.created_at),
        scheduled_at=moment_at(ready_at) if ready_at is not None and ready_at <= now else None,
        started_at=attempt_started_at if row.started_at == started else _moment(row.started_at),
        attempt_started_at=attempt_started_at,
        updated_at=moment_at(row.updated_at),
        **unusual,
    )


# What is read of a job to claim it for the first time.
FIRST_CLAIM_COLUMNS: Final = (
    "id",
    "type",
    "tags",
    "priority",
    "created_at",
    "ready_at",
    "retry",
    "execution",
    "visibility",
    "lifetime",
)
# Whether that is enough, as a condition in SQL: never touched since it was enqueued, and nothing special asked for.
IS_USUAL: Final = " AND ".join(
    [
        "n = 1 AND attempt = 0 AND started_at IS NULL",
        *(
            f"{name} IS NULL" if value is None else f"{name} = {value!r}"
            for name, value in zip(COLUMNS[_FIRST_UNUSUAL:], _USUAL, strict=True)
        ),
    ]
)


def first_claims(assignee_id: str, now: int) -> Callable[..., Job]:
    """Return what makes the job of a usual row as its first claim leaves it, from its payload and `FIRST_CLAIM_COLUMNS`.

    It does what `job_of` would at a third of the cost: claims live by it.
    """
    at = moment_at(now)

    def job(
        payload: bytes | None,
        id_: str,
        type_: str,
        tags: str,
        priority: int,
        created_at: int,
        ready_at: int,
        retry: str | None,
        execution: int | None,
        visibility: int | None,
        lifetime: int | None,
    ) -> Job:
        created = moment_at(created_at)
        return Job(
            id=id_,
            type=type_,
            payload=payload or b"",
            tags=() if tags == NO_STRINGS else decode_strings(tags),
            priority=_PRIORITY[priority],
            retry=None if retry is None else decode_policy(retry),
            timeouts=timeouts_of(execution, visibility, lifetime),
            status=_RUNNING,
            state=_RUNNING_STATE,
            attempt=1,
            assignee_id=assignee_id,
            assigned_at=at,
            created_at=created,
            scheduled_at=created if ready_at == created_at else moment_at(ready_at),
            started_at=at,
            attempt_started_at=at,
            updated_at=at,
        )

    return job


# Looking a member up on its enumeration costs more than a global name.
_RUNNING: Final = JobStatus.RUNNING
_RUNNING_STATE: Final = JobState.RUNNING


def _unusual_fields(row: Row) -> dict[str, Any]:
    return {
        "redrive_of": row.redrive_of,
        "trace": row.trace,
        "correlation_id": row.correlation_id,
        "callback_url": row.callback_url,
        "idempotency_key": row.idempotency_key,
        "unique": row.uniqueness,
        "run_at": _moment(row.run_at),
        "key": None if row.key is None else decode_key(row.key),
        "after": decode_strings(row.after),
        "after_any": decode_strings(row.after_any),
        "parent_id": row.parent_id,
        "held": bool(row.held),
        "retry_count": row.retry_count,
        "failures": row.failures,
        "progress": row.progress,
        "description": row.description,
        "error_message": row.error_message,
        "error_category": None if row.error_category is None else _CATEGORY[row.error_category],
        "error_code": row.error_code,
        "last_retry_at": _moment(row.last_retry_at),
        "finalized_at": _moment(row.finalized_at),
    }


def journal_entry(values: tuple[Any, ...]) -> JournalEntry:
    """Return the entry of a journal row whose columns are `JOURNAL_COLUMNS`."""
    raw = dict(zip(JOURNAL_COLUMNS, values, strict=True))
    for name in ("recorded_at", "due_at", "ready_at", "started_at"):
        raw[name] = _moment(raw[name])
    for name in ("tags", "after", "after_any"):
        raw[name] = () if raw[name] is None else decode_strings(raw[name])
    raw["from_status"] = None if raw["from_status"] is None else STATUSES[raw["from_status"]]
    raw["status"] = STATUSES[raw["status"]]
    raw["priority"] = _PRIORITY[raw["priority"]]
    raw["key"] = None if raw["key"] is None else decode_key(raw["key"])
    raw["error_category"] = None if raw["error_category"] is None else _CATEGORY[raw["error_category"]]
    return JournalEntry(**raw)


def job_end(values: tuple[Any, ...]) -> JobEnd:
    """Return the end of a job: the columns of its journal row, then those of `JobEnd` beside the row."""
    *row, callback_url, correlation_id, created_at, result, result_size = values
    return JobEnd(
        entry=journal_entry(tuple(row)),
        callback_url=callback_url,
        correlation_id=correlation_id,
        created_at=moment_at(created_at),
        result=result,
        result_size=result_size,
    )


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else moment_at(micros)


# Jobs of a batch share their moments.
moment_at = lru_cache(maxsize=4096)(from_micros)


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)
