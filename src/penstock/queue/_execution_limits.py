"""Execution limits of the jobs that this process holds, by its monotonic clock.

The store fails attempts that ran too long only if they have no owner, because it has only the wall clock, and one that
jumps ahead would end every running job. The process that holds a job measures how long it has really run. A worker ends its
handlers in time by itself; this is for consumers that hang: of a stream, or of a job claimed outside streams.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from penstock.backends import Backend
from penstock.errors import BackendError, PenstockError
from penstock.job import Job
from penstock.policy import FailureCategory

__all__ = ["ExecutionLimits"]

logger = logging.getLogger("penstock")

#: Time for a worker to end its job and report it, before the attempt is failed here.
GRACE_SECONDS: Final = 10.0


class ExecutionLimits:
    """Fails attempts held by this process that have run longer than their execution limit."""

    def __init__(self, backend: Backend, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._monotonic = monotonic
        self._lock = threading.Lock()
        #: By job id: the attempt, when it is overdue, and its limit in seconds.
        self._held: dict[str, tuple[int, float, float]] = {}

    def hold(self, jobs: Iterable[Job]) -> None:
        """Start the clock of attempts that were claimed just now."""
        now = self._monotonic()
        limited = {
            job.id: (job.attempt, now + execution.total_seconds() + GRACE_SECONDS, execution.total_seconds())
            for job in jobs
            if (execution := job.timeouts.execution) is not None
        }
        if limited:
            with self._lock:
                self._held |= limited

    def release(self, job_id: str, attempt: int | None = None) -> None:
        """Stop the clock of a job, if it is held in this attempt or an earlier one; None is any attempt."""
        with self._lock:
            held = self._held.get(job_id)
            if held is not None and (attempt is None or held[0] <= attempt):
                del self._held[job_id]

    def enforce(self) -> int:
        """Fail the attempts that are overdue, as TIMEOUT; return how many.

        Raises:
            BackendError: the store failed; what is left is retried at the next call.
        """
        failed = 0
        for job_id, attempt, seconds in self._overdue():
            try:
                self._backend.fail_job(
                    job_id,
                    f"the attempt ran longer than its limit of {seconds:g} s",
                    attempt=attempt,
                    category=FailureCategory.TIMEOUT,
                    code="execution_timeout",
                )
                failed += 1
            except BackendError:
                raise
            except PenstockError as error:
                logger.debug("not failed as overdue: %s", error)  # reported, cancelled or reclaimed meanwhile
            self.release(job_id, attempt)
        return failed

    def _overdue(self) -> list[tuple[str, int, float]]:
        now = self._monotonic()
        with self._lock:
            return [
                (job_id, attempt, seconds)
                for job_id, (attempt, overdue_at, seconds) in self._held.items()
                if overdue_at <= now
            ]
