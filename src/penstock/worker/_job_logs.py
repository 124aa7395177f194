"""Log records of a worker about jobs; `penstock.logs.EVENTS` lists their events."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.backends import NextStep
from penstock.job import Job, JobStatus
from penstock.logs import job_fields
from penstock.outcome import Cancelled, Completed, Failed, Outcome, Released

__all__ = ["log_failure", "log_job", "log_success"]

logger = logging.getLogger("penstock.worker")

#: Characters of an error's first line. Results are not logged: they may hold what a log must not.
SHOWN_ERROR: Final = 200
_EVENTS: Final = {
    Completed: ("job.completed", "completed"),
    Cancelled: ("job.cancelled", "cancelled"),
    Released: ("job.released", "released"),
}


def log_job(level: int, event: str, job: Job, text: str, *args: object, **fields: object) -> None:
    """Log something about a job."""
    logger.log(level, text, *args, extra={"event": event, **job_fields(job), **fields})


def log_success(job: Job, outcome: Outcome, seconds: float) -> None:
    """Log an attempt that ended without a failure."""
    if not logger.isEnabledFor(logging.INFO):
        return
    event, word = _EVENTS[type(outcome)]  # failures are logged after their report
    log_job(
        logging.INFO,
        event,
        job,
        "%s %s, attempt %d, %s after %.3f s",
        job.type,
        job.id,
        job.attempt,
        word,
        seconds,
        seconds=round(seconds, 6),
    )


def log_failure(job: Job, outcome: Failed, seconds: float | None, step: NextStep | None) -> None:
    """Log a failed attempt: a warning if the job is retried, an error with the traceback if it has ended.

    Args:
        job: as it was claimed.
        outcome: what was reported.
        seconds: how long the attempt took, if that is known.
        step: the journal row of the report; None if it could not be read.
    """
    level, event, fate = _fate(job, step)
    if not logger.isEnabledFor(level):
        return
    summary, _, trace = outcome.message.partition("\n\n")
    fields: dict[str, object] = {
        "event": event,
        "category": str(outcome.category),
        "code": outcome.code,
        "seconds": None if seconds is None else round(seconds, 6),
        "max_attempts": _max_attempts(job),
        **job_fields(job),
    }
    if step is not None:
        fields["status"] = str(step.status)
        if event == "job.retry":
            fields["due_at"] = (step.due_at or datetime.now(UTC)).isoformat()
    record = logger.makeRecord(
        logger.name,
        level,
        __file__,
        sys._getframe().f_lineno,  # noqa: SLF001  # what logging itself uses
        "%s %s, attempt %s, failed%s (%s): %s; %s",
        (
            job.type,
            job.id,
            attempt_of(job),
            "" if seconds is None else f" after {seconds:.3f} s",
            outcome.category,
            summary.partition("\n")[0][:SHOWN_ERROR],
            fate,
        ),
        None,
        "log_failure",
        fields,
    )
    if level >= logging.ERROR and trace:
        # The exception itself stayed in the process that ran the job: its traceback arrived as text.
        record.exc_text = trace
    logger.handle(record)


def attempt_of(job: Job) -> str:
    """Return "2 of 3", or "2" for a job that is retried for ever."""
    most = _max_attempts(job)
    return f"{job.attempt}" if most is None else f"{job.attempt} of {most}"


def _max_attempts(job: Job) -> int | None:
    return None if job.retry is None else job.retry.max_attempts


_ENDS: Final[Mapping[JobStatus, str]] = {
    JobStatus.FAILED: "it ended failed and is not retried",
    JobStatus.DEAD_LETTER: "it ended dead_letter: no attempt is left",
}


def _fate(job: Job, step: NextStep | None) -> tuple[int, str, str]:
    """Return level, event and text for the step by which the store recorded a failure."""
    if step is None:
        return logging.WARNING, "job.retry", "whether it runs again is not known: the store did not answer"
    if step.status in _ENDS:
        return logging.ERROR, "job.failed", _ENDS[step.status]
    if step.status.is_final:
        return logging.WARNING, "job.failed", f"it ended {step.status}"
    if step.attempt > job.attempt:
        return logging.WARNING, "job.retry", "it runs again already"
    return logging.WARNING, "job.retry", _due(step.due_at)


def _due(due_at: datetime | None) -> str:
    if due_at is None:
        return "it runs again at once"
    seconds = max(0.0, (due_at - datetime.now(UTC)).total_seconds())
    return f"it runs again at {due_at:%Y-%m-%d %H:%M:%SZ}, in {seconds:.1f} s"
