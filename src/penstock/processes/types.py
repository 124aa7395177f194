"""The words of the process queue: statuses, commands and the record of a job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, TypeAlias

from penstock.errors import InvalidArgumentError, shown
from penstock.job import ProcessStatus

__all__ = ["DELETED", "FINAL", "JobCommand", "JobId", "JobRecord", "JobResult", "JobStatus", "check_job_id"]

JobId: TypeAlias = str
"""A UUID of version 4, as text."""
JobResult: TypeAlias = Any
"""Anything that JSON holds."""
JobStatus: TypeAlias = ProcessStatus

#: The statuses in which nothing runs any more. INTERRUPTED may be left by a restart.
FINAL: Final = frozenset({JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.INTERRUPTED})

#: The description of a deleted job's last record, where the registry keeps one.
DELETED: Final = "Deleted"


class JobCommand(IntEnum):
    """What the queue asks of a job.

    Attributes:
        NONE: nothing.
        START: run.
        STOP: end as soon as you can.
        DELETE: end, and be forgotten.
    """

    NONE = 0
    START = 1
    STOP = 2
    DELETE = 3


@dataclass(frozen=True)
class JobRecord:
    """A job as it was at one moment.

    Attributes:
        job_id: the job.
        status: as the process queue names it.
        progress: 0 to 100.
        description: what it is doing.
        result: what it returned, as JSON holds it.
        created_at: when it was added.
        updated_at: when this became so.
    """

    job_id: JobId
    status: JobStatus
    progress: int
    description: str | None
    result: JobResult | None
    created_at: datetime
    updated_at: datetime

    def __post_init__(self) -> None:
        if type(self.progress) is not int or not 0 <= self.progress <= 100:
            raise InvalidArgumentError(
                f"progress must be an integer from 0 to 100, got {shown(self.progress)}",
                field="progress",
                value=self.progress,
            )
        if not isinstance(self.status, JobStatus):
            try:
                object.__setattr__(self, "status", JobStatus(self.status))
            except ValueError:
                raise InvalidArgumentError(
                    f"status must be a JobStatus, got {shown(self.status)}", field="status", value=self.status
                ) from None


def check_job_id(job_id: object) -> JobId:
    """Return an id that is a UUID of version 4, in its usual form.

    Raises:
        InvalidArgumentError: it is not.
    """
    try:
        parsed = uuid.UUID(job_id) if isinstance(job_id, str) else None
    except ValueError:
        parsed = None
    if parsed is None or parsed.version != 4 or str(parsed) != str(job_id).lower():
        raise InvalidArgumentError(
            f"job_id must be a UUID of version 4 such as {str(uuid.uuid4())!r}, got {shown(job_id)}",
            field="job_id",
            value=job_id,
        )
    return str(job_id)


def check_params(params: object) -> dict[str, Any]:
    """Return the parameters of a job as a dict of their own."""
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise InvalidArgumentError(
            f"params must be a mapping, got {shown(params)}", field="params", value=params
        )
    return dict(params)
