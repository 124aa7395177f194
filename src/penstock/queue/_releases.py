"""Jobs that were claimed for a stream and not delivered: they are released, and again if the store fails."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from penstock.backends import Backend
from penstock.errors import PenstockError, ReportErrors
from penstock.job import Job
from penstock.logs import retry_level
from penstock.scope import shielded

__all__ = ["Releases"]

logger = logging.getLogger("penstock")

NOT_DELIVERED: Final = "the stream was closed before the job was delivered (cancelled)"
RETRY_SECONDS: Final = 1.0


class Releases:
    """Undelivered jobs on their way back to the store.

    Args:
        backend: the store.
        lock: guards what is pending.
    """

    def __init__(self, backend: Backend, lock: threading.RLock) -> None:
        self._backend = backend
        self._lock = lock
        #: Jobs to release; they stay held by this process until that succeeds.
        self.pending: list[Job] = []
        self._retry_at = 0.0

    def release_pending(self) -> None:
        """Release what is pending; if the store fails, later."""
        with self._lock:
            if not self.pending or time.monotonic() < self._retry_at:
                return
            jobs, self.pending = self.pending, []
        try:
            self.release(jobs)
        except PenstockError as error:
            logger.log(retry_level(error), "jobs were not released, which is retried: %s", error)
            with self._lock:
                self.pending += jobs
                self._retry_at = time.monotonic() + RETRY_SECONDS

    def release(self, jobs: list[Job]) -> None:
        """Release jobs now.

        Raises:
            PenstockError: the store failed.
        """
        if not jobs:
            return
        try:
            with shielded():  # a cancelled consumer must still release its jobs
                self._backend.release_jobs(
                    {job.id: NOT_DELIVERED for job in jobs}, attempts={job.id: job.attempt for job in jobs}
                )
        except ReportErrors as group:
            # Cancelled, reported or reclaimed meanwhile: nothing to release.
            logger.debug("not released: %s", group)
