"""The context of a handler: its job, progress, checkpoints, spawned jobs and logs."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import InvalidArgumentError, shown
from penstock.job import Job
from penstock.logs import job_fields

if TYPE_CHECKING:
    from penstock.app.handle import JobHandle
    from penstock.app.task import Task

__all__ = ["Attempt", "JobContext", "JobLog"]

logger = logging.getLogger("penstock.job")

MAX_DESCRIPTION = 2000


class Attempt(Protocol):
    """The attempt behind a context, as a worker, a child process or a test implements it."""

    @property
    def is_cancelled(self) -> bool: ...

    @property
    def deadline(self) -> datetime | None: ...

    def progress(self, percent: int, description: str | None) -> None: ...

    def save_checkpoint(self, data: bytes) -> None: ...

    def spawn(self, job: Job, delay: timedelta | None) -> str: ...


class JobContext:
    """The job a handler runs for. A handler that has a parameter annotated with this class is given one.

        @app.job
        def export(context: penstock.JobContext, table: str) -> int:
            done = int(context.checkpoint or b"0")
            ...

    Attributes:
        job: the job as it was when this attempt began.
    """

    __slots__ = ("_attempt", "_checkpoint", "job")

    def __init__(self, job: Job, attempt: Attempt) -> None:
        #: The job as it was when this attempt began.
        self.job = job
        self._attempt = attempt
        self._checkpoint = job.checkpoint

    def __repr__(self) -> str:
        return f"<JobContext of {self.job.type} {self.job.id}, attempt {self.job.attempt}>"

    @property
    def attempt(self) -> int:
        """The number of this attempt, 1 for the first."""
        return self.job.attempt

    @property
    def deadline(self) -> datetime | None:
        """When this attempt's time is over; None if it has no limit, as in a direct call."""
        return self._attempt.deadline

    @property
    def is_cancelled(self) -> bool:
        """Whether the handler should end: its job was cancelled or reclaimed, or its time is over."""
        return self._attempt.is_cancelled

    def progress(self, percent: float, description: str | None = None) -> None:
        """Report progress. Cheap: only the latest of many reports reaches the store, within a second.

        Args:
            percent: 0 to 100; a fraction is cut.
            description: what is being done, up to 2,000 characters; None leaves the last one.
        """
        if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
            raise InvalidArgumentError(
                f"percent must be a number from 0 to 100, got {shown(percent)}",
                field="percent",
                value=percent,
            )
        if description is not None:
            description = _description(description)
        self._attempt.progress(int(percent), description)

    @property
    def checkpoint(self) -> bytes | None:
        """The latest checkpoint of this attempt or an earlier one; None if there is none."""
        return self._checkpoint

    def save_checkpoint(self, data: bytes) -> None:
        """Store a checkpoint from which the next attempt continues. It is committed when this returns.

        Raises:
            InvalidArgumentError: not bytes.
            PayloadTooLargeError: over the store's limit.
            StaleAttemptError: the job was reclaimed from this attempt; the handler should end.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgumentError(
                f"a checkpoint must be bytes (text: .encode() it, else json.dumps(…).encode()), got {shown(data)}",
                field="data",
                value=data,
            )
        kept = bytes(data)
        self._attempt.save_checkpoint(kept)
        self._checkpoint = kept

    def spawn(self, task: Task[..., Any], /, **arguments: Any) -> JobHandle[Any]:
        """Submit a job on behalf of this one: whatever waits for this job waits for that one too.

        A retried handler spawns again; `task.options(idempotency_key=…)` makes that harmless.

        Args:
            task: what `@app.job` made, or `.options(…)` of it.
            **arguments: those of its handler.
        """
        from penstock.app.task import Task  # noqa: PLC0415  # tasks know contexts

        if not isinstance(task, Task):
            raise InvalidArgumentError(
                f"spawn takes what @app.job made, got {shown(task)}", field="task", value=task
            )
        return task.spawned_by(self._attempt, arguments)

    @property
    def log(self) -> JobLog:
        """A logger whose records carry the job's id, type and attempt: `context.log.info("…")`, or `context.log("…")`."""
        return JobLog(logger, job_fields(self.job))


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Logs to `penstock.job`; `record.job_id`, `job_type`, `attempt` and `worker` say of which job."""

    def __call__(self, message: str, *args: object) -> None:
        self.info(message, *args)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


def _description(text: object) -> str | None:
    if not isinstance(text, str):
        raise InvalidArgumentError(
            f"description must be a text, got {shown(text)}", field="description", value=text
        )
    # It is for people: what cannot be stored is replaced, what is too long is cut.
    cleaned = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")[:MAX_DESCRIPTION]
    return cleaned or None
