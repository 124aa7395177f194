"""What one pass of upkeep logs about jobs: a retry is a warning, the end an error.

No worker reports these attempts, so the process whose upkeep ends them is the only one that can log it. A pass may
reclaim thousands of jobs: the first few are named, the others are counted per type.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from penstock.backends.engine.rows import Row, moment_at
from penstock.job import JobStatus
from penstock.lifecycle import Verb

__all__ = ["UpkeepLog"]

logger = logging.getLogger("penstock")

MAX_NAMED: Final = 5
MAX_TYPES: Final = 20
_WHAT: Final = {
    Verb.LOSE: "was lost",
    Verb.TIME_OUT: "ran longer than its limit",
    Verb.EXPIRE: "did not end within its lifetime",
}


class UpkeepLog:
    """The log of one pass."""

    def __init__(self) -> None:
        #: Jobs that the transaction under way has changed, with their worker; set anew if it is repeated.
        self._batch: list[tuple[Row, str | None]] = []
        self._named = 0
        self._others: Counter[tuple[int, str, str, str]] = Counter()

    def noting(self, rows: Sequence[Row], change: Callable[[Row], None]) -> None:
        """Change rows, and log them once they are committed."""
        holders = [row.assignee_id for row in rows]
        for row in rows:
            change(row)
        self._batch = list(zip(rows, holders, strict=True))

    def committed(self) -> None:
        """Log what the last transaction has changed."""
        batch, self._batch = self._batch, []
        for row, holder in batch:
            level, fate = _fate(row)
            what = _WHAT[Verb(row.verb)]
            if self._named < MAX_NAMED:
                self._named += 1
                _log_job(row, holder, level, what, fate)
            else:
                self._others[level, row.type, what, fate.partition(" at 2")[0]] += 1

    def close(self) -> None:
        """Log how many jobs were not named."""
        for (level, type_, what, fate), number in self._others.most_common(MAX_TYPES):
            logger.log(level, "%d more jobs of %s: each %s; %s", number, type_, what, fate)
        left = sum(number for _, number in self._others.most_common()[MAX_TYPES:])
        if left:
            logger.error("%d more jobs of other types were lost, or ran out of time", left)


def _log_job(row: Row, holder: str | None, level: int, what: str, fate: str) -> None:
    fields: dict[str, object] = {
        "event": "job.failed" if JobStatus(row.status).is_final else "job.retry",
        "job_id": row.id,
        "job_type": row.type,
        "attempt": row.attempt,
        "worker": holder,
        "category": row.error_category,
        "code": row.error_code,
        "max_attempts": row.max_attempts,
        "status": row.status,
    }
    if row.due_at is not None:
        fields["due_at"] = moment_at(row.due_at).isoformat()
    attempt = f"{row.attempt}" if row.max_attempts is None else f"{row.attempt} of {row.max_attempts}"
    process = f" (its process {holder})" if holder else ""
    logger.log(
        level,
        "job %s of %s %s%s: attempt %s, %s",
        row.id,
        row.type,
        what,
        process,
        attempt,
        fate,
        extra=fields,
    )


def _fate(row: Row) -> tuple[int, str]:
    """Return the level and what becomes of a job."""
    status = JobStatus(row.status)
    if status in (JobStatus.DEAD_LETTER, JobStatus.FAILED):
        return logging.ERROR, f"it ended {status}"
    if status.is_final:
        return logging.WARNING, f"it ended {status}"
    if row.due_at is None:
        return logging.WARNING, "it runs again at once"
    return logging.WARNING, f"it runs again at {moment_at(row.due_at):%Y-%m-%d %H:%M:%SZ}"
