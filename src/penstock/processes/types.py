"""The data of the process queue: statuses, commands and the record of a job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, TypeAlias

from penstock.errors import invalid
from penstock.job import ProcessStatus
from penstock.payloads.json import decode_json, encode_json

__all__ = [
    "DELETED",
    "FINAL",
    "JobCommand",
    "JobId",
    "JobRecord",
    "JobResult",
    "JobStatus",
    "check_job_id",
    "check_progress",
    "check_progress_kept",
    "check_record",
    "check_seconds",
    "check_status",
    "lookup_id",
]

JobId: TypeAlias = str
"""A UUID of version 4, as text in lower case."""
JobResult: TypeAlias = Any
"""Anything that JSON holds."""
JobStatus: TypeAlias = ProcessStatus

#: The statuses in which nothing runs any more. INTERRUPTED may be left by a restart.
FINAL: Final = frozenset({JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.INTERRUPTED})

#: The description of a deleted job's last record, where the registry keeps one.
DELETED: Final = "Deleted"

#: Ten years, as for every duration.
MAX_TIMEOUT: Final = 315_360_000


class JobCommand(IntEnum):
    """A command of the queue to a job.

    Attributes:
        NONE: nothing.
        START: run.
        STOP: end soon.
        DELETE: end; the job is removed.
    """

    NONE = 0
    START = 1
    STOP = 2
    DELETE = 3


@dataclass(frozen=True)
class JobRecord:
    """A job as it was at one moment.

    The constructor checks progress and status; a registry checks the rest when the record is appended.

    Attributes:
        job_id: the job. A UUID of version 4 is written in lower case.
        status: as the process queue names it.
        progress: 0 to 100.
        description: what it is doing.
        result: what it returned, as JSON holds it.
        created_at: when it was added.
        updated_at: when this record was made.
    """

    job_id: JobId
    status: JobStatus
    progress: int
    description: str | None
    result: JobResult | None
    created_at: datetime
    updated_at: datetime

    def __post_init__(self) -> None:
        check_progress(self.progress)
        object.__setattr__(self, "status", check_status(self.status))
        if isinstance(self.job_id, str):
            object.__setattr__(self, "job_id", lookup_id(self.job_id))


def check_job_id(job_id: object) -> JobId:
    """Return an id that is a UUID of version 4, in lower case: one UUID is one job however it is written.

    Raises:
        InvalidArgumentError: it is not. Braces and "urn:uuid:" are refused.
    """
    normal = _uuid4(job_id) if isinstance(job_id, str) else None
    if normal is None:
        raise invalid("job_id", f"a UUID of version 4 such as {str(uuid.uuid4())!r}", job_id)
    return normal


def lookup_id(job_id: object) -> JobId:
    """Return the form in which an id is looked up: a UUID in lower case, any other text as it is.

    Raises:
        InvalidArgumentError: it is not text.
    """
    if not isinstance(job_id, str):
        raise invalid("job_id", "text", job_id)
    return _uuid4(job_id) or job_id


def _uuid4(text: str) -> JobId | None:
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return str(parsed) if parsed.version == 4 and str(parsed) == text.lower() else None


def check_progress(value: object, field: str = "progress") -> int:
    """Return a whole number from 0 to 100."""
    if type(value) is not int or not 0 <= value <= 100:
        raise invalid(field, "an integer from 0 to 100", value)
    return value


def check_status(value: object) -> JobStatus:
    """Return a status, given as one or as its number."""
    if type(value) is int or isinstance(value, JobStatus):
        try:
            return JobStatus(value)
        except ValueError:
            pass  # the error below names it
    raise invalid("status", "a JobStatus", value)


def check_is_record(record: object) -> JobRecord:
    """Return a value if it is a JobRecord, without a check of its fields."""
    if not isinstance(record, JobRecord):
        raise invalid("record", "a JobRecord", record)
    return record


def check_record(record: object) -> JobRecord:
    """Return a record every field of which can be written and read back as it is.

    Times become UTC, which is the same moment.

    Raises:
        InvalidArgumentError: names the first field that cannot, or a progress of 100 of a job that is not COMPLETED.
    """
    record = check_is_record(record)
    _check_result(record.result)
    if record.progress == 100 and record.status is not JobStatus.COMPLETED:
        raise invalid("progress", f"at most 99 until the job is COMPLETED (it is {record.status.name})", 100)
    return replace(
        record,
        job_id=check_job_id(record.job_id),
        description=_check_description(record.description),
        created_at=_check_time("created_at", record.created_at),
        updated_at=_check_time("updated_at", record.updated_at),
    )


def check_progress_kept(before: JobRecord | None, record: JobRecord) -> None:
    """Refuse a record whose progress is below that of the record before it, unless a new run begins with it."""
    begins = before is None or (before.status is JobStatus.INTERRUPTED and record.status is JobStatus.RUNNING)
    if before is not None and not begins and record.progress < before.progress:
        raise invalid("progress", f"at least {before.progress}, because it never decreases", record.progress)


def _check_result(value: object) -> None:
    if decode_json(encode_json(value, "result")) != value:
        raise invalid(
            "result", "what JSON gives back (a list, no tuple; text, no path; a dict, no model)", value
        )


def _check_description(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid("description", "text or None", value)
    encode_json(str.__str__(value), "description")
    return str.__str__(value)  # of a subclass, its text


def _check_time(field: str, value: object) -> datetime:
    if not isinstance(value, datetime):
        raise invalid(field, "a datetime", value)
    try:
        plain = datetime.combine(value.date(), value.timetz())  # without what a subclass adds
        if plain.utcoffset() is not None:
            return plain.astimezone(UTC)
    except (OverflowError, ValueError):
        raise invalid(field, "a datetime in the years 1 to 9999 (UTC)", value) from None
    raise invalid(field, "an aware datetime (with a time zone, such as UTC)", value)


def check_params(params: object) -> dict[str, Any]:
    """Return the parameters of a job as a dict of their own."""
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise invalid("params", "a mapping", params)
    return dict(params)


def check_seconds(value: object) -> float:
    """Return a timeout in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TIMEOUT:
        raise invalid("timeout", f"a number of seconds from 0 to {MAX_TIMEOUT}", value)
    return float(value)
