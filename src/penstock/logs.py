"""Log records that say which job they belong to, as lines of text or of JSON.

`penstock worker --log-format json` does all of this. A program with a logging of its own takes the parts:

    handler = logging.StreamHandler()
    handler.addFilter(penstock.logs.JobFilter())        # job_id, job_type, attempt and worker on every record
    handler.setFormatter(penstock.logs.JsonFormatter())
    logging.basicConfig(level="INFO", handlers=[handler])

The job is known wherever its handler runs: on a thread, in a process of its own, in a coroutine. Threads that a handler
starts itself know it only if they are given its context (`contextvars.copy_context().run`).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, ParamSpec, TextIO, TypeVar

from penstock.errors import BackendError, invalid
from penstock.job import Job

__all__ = [
    "EVENTS",
    "FORMATS",
    "JobFilter",
    "JsonFormatter",
    "TextFormatter",
    "configure",
    "current_job",
    "retry_level",
]

P = ParamSpec("P")
T = TypeVar("T")

Format = Literal["text", "json"]
FORMATS: Final = ("text", "json")

#: The values of `event` in a worker's log. They are stable; the text of `message` may change.
EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "worker.started": "A worker claims jobs of its `types` from now on; `store` says where.",
        "worker.stopping": "A worker claims no more jobs; `running` ones may finish.",
        "worker.stopped": "A worker has ended.",
        "job.started": "An attempt begins (level debug).",
        "job.completed": "An attempt succeeded, after `seconds`.",
        "job.retry": "An attempt failed and its job runs again at `due_at` (level warning); with `seconds`, "
        "`category`, `code`, `max_attempts` and `status`.",
        "job.failed": "An attempt failed and its job ended with it (level error, with the traceback as `exception`); "
        "with the same fields but `due_at`.",
        "job.cancelled": "An attempt ended because its job was cancelled.",
        "job.released": "A job was released; the attempt does not count.",
        "job.lost": "The job was reclaimed from this attempt, whose outcome is dropped.",
        "job.stuck": "An attempt on a thread does not end; its slot stays closed.",
        "job.unstuck": "Such a thread has returned; its slot is open again.",
        "store.unreachable": "A PostgreSQL server cannot be reached, or a SQLite file is locked (level warning); logged "
        "once, when it is noticed.",
        "store.back": "The store answers again, after `seconds` (level warning).",
        "job.log": "Something that a handler has logged.",
        "log": "Everything else.",
    }
)

_job: ContextVar[Job | None] = ContextVar("penstock_job", default=None)
_FIELDS: Final = ("job_id", "job_type", "attempt", "worker")
#: The attributes that every record has, or gets from `JobFilter`.
STANDARD: Final = frozenset(
    (*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "event", *_FIELDS)
)
_MAX_EXTRA: Final = 10_000


def retry_level(error: Exception) -> int:
    """Return the level at which to log a failed call that is retried: low if the store has logged the cause."""
    return logging.DEBUG if isinstance(error, BackendError) and error.is_logged else logging.WARNING


def current_job() -> Job | None:
    """Return the job whose handler runs here; None outside a handler."""
    return _job.get()


def inside(job: Job, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call something on behalf of a job; not for users."""
    token = _job.set(job)
    try:
        return call(*args, **kwargs)
    finally:
        _job.reset(token)


def job_fields(job: Job) -> dict[str, Any]:
    """Return the fields of a job's records, for `extra=`."""
    return {"job_id": job.id, "job_type": job.type, "attempt": job.attempt, "worker": job.assignee_id}


class JobFilter(logging.Filter):
    """Puts `job_id`, `job_type`, `attempt` and `worker` on every record, and `event`; lets every record pass.

    Outside a handler they are None; so a format may name them. For a handler of logging, not for a logger: filters of a
    logger do not see the records of those below it.

    Args:
        worker: the name to give where no job says it.
    """

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self.worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        job = _job.get()
        known = {} if job is None else job_fields(job)
        for name in _FIELDS:
            if getattr(record, name, None) is None:
                setattr(record, name, known.get(name))
        if record.worker is None:  # type: ignore[attr-defined]  # just set
            record.worker = self.worker
        if not hasattr(record, "event"):
            is_job = record.job_id is not None and not _is_ours(record.name)  # type: ignore[attr-defined]  # just set
            record.event = "job.log" if is_job else "log"
        return True


class TextFormatter(logging.Formatter):
    """One line per record. Control characters are escaped: a job's text must not forge lines or move the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        job_id = getattr(record, "job_id", None)
        if job_id is not None and job_id not in text:
            text = f"{getattr(record, 'job_type', '')} {job_id}: {text}"
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {printable(text)}"
        for more in _traceback(self, record).splitlines():
            line += f"\n    {printable(more)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: no value can forge a line or move a cursor.

    `time`, `level`, `logger`, `event`, `message`, `worker`, and of a job `job_id`, `type`, `attempt`; then whatever else
    the record was given by `extra=`, and `exception`. What JSON cannot hold is shown by its `repr`.
    """

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", "log"),
            "message": record.getMessage(),
            "worker": getattr(record, "worker", None),
            "job_id": getattr(record, "job_id", None),
            "type": getattr(record, "job_type", None),
            "attempt": getattr(record, "attempt", None),
        }
        for name, value in record.__dict__.items():
            if name not in STANDARD and name not in found:
                found[name] = _plain(value)
        trace = _traceback(self, record)
        if trace:
            found["exception"] = trace
        return json.dumps(found).replace("\x7f", "\\u007f")


def configure(
    format: Format = "text",
    level: str = "info",
    *,
    worker: str | None = None,
    stream: TextIO | None = None,
    logger: str = "penstock",
) -> logging.Handler:
    """Write the records of a logger, and of those below it, to a stream; return the handler that does.

    Args:
        format: "text" or "json".
        level: the lowest level that is written.
        worker: the name to give where no job says it.
        stream: where records are written; stderr unless given.
        logger: the logger whose records are written; "" is the root, which has all of them.

    Raises:
        InvalidArgumentError: an unknown format or level.
    """
    if format not in FORMATS:
        raise invalid("format", f"one of {', '.join(FORMATS)}", format)
    number = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else None
    if number is None:
        raise invalid("level", "the name of one of logging's", level)
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobFilter(worker))
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    found = logging.getLogger(logger)
    found.addHandler(handler)
    found.setLevel(number)
    found.propagate = False
    return handler


def printable(text: str) -> str:
    """Return a text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode()
        for each in text
    )


def _is_ours(logger: str) -> bool:
    return logger != "penstock.job" and (logger == "penstock" or logger.startswith("penstock."))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_text:
        return record.exc_text
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        try:
            return repr(value)[:_MAX_EXTRA]
        except Exception:  # a record must not be lost for the sake of one of its fields
            return f"<{type(value).__name__}>"
    return value
