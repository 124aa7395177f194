"""One attempt in progress, as the worker sees it; the handler's JobContext is backed by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.app.client import delayed
from penstock.app.context import JobContext
from penstock.app.lending import Lender
from penstock.errors import InvalidTransitionError, JobNotFoundError
from penstock.job import Job, JobStatus
from penstock.queue import Queue

if TYPE_CHECKING:
    from penstock.app.task import Task

__all__ = ["Reason", "Run"]

#: Held for moments while a run is asked to end or its progress changes. One for all: a short job would pay for its own.
_lock = threading.Lock()


class Reason(StrEnum):
    """The reason for which a handler is asked to end."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    LOST = "lost"  # the job was reclaimed: another attempt may be running
    DRAINED = "drained"  # the worker is stopping


class Run:
    """An attempt from the moment a slot takes it until its outcome is passed to the reporter."""

    __slots__ = (
        "_dirty",
        "_interrupt",
        "_progress",
        "_queue",
        "_report_right",
        "job",
        "lender",
        "reason",
        "requested_at",
        "saw_request",
        "seconds",
        "started_at",
        "store_output",
        "task",
    )

    def __init__(self, job: Job, task: Task[Any, Any], seconds: float, queue: Queue) -> None:
        self.job = job
        self.task = task
        self.seconds = seconds
        self.started_at = time.monotonic()
        #: Why it was asked to end, and when; None while it may continue.
        self.reason: Reason | None = None
        self.requested_at = 0.0
        #: Whether the handler has seen that it should end.
        self.saw_request = False
        #: Stores what the handler has printed; called now and then while it runs.
        self.store_output: Callable[[], None] | None = None
        #: Called when it waits for another job.
        self.lender: Lender | None = None
        self._queue = queue
        self._report_right = [None]
        self._interrupt: Callable[[], None] | None = None
        self._progress: tuple[int, str | None] = (0, None)
        self._dirty = False

    @property
    def ends_at(self) -> float:
        """When it runs out of time, by the monotonic clock."""
        return self.started_at + self.seconds

    def context(self) -> JobContext:
        return JobContext(self.job, self)

    # -- ending -------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Acquire the right to report this attempt; exactly one caller gets True."""
        try:
            self._report_right.pop()
        except IndexError:
            return False
        return True

    @property
    def is_settled(self) -> bool:
        return not self._report_right

    def request_end(self, reason: Reason) -> bool:
        """Ask the handler to end, and interrupt it if possible; return False if it was asked before."""
        with _lock:
            if self.reason is not None:
                return False
            self.reason, self.requested_at = reason, time.monotonic()
            interrupt = self._interrupt
        if interrupt is not None:
            interrupt()
        return True

    def interruptible(self, interrupt: Callable[[], None] | None) -> None:
        """Set how the handler can be interrupted from now on; called at once if it was asked to end already."""
        with _lock:
            self._interrupt = interrupt
            is_asked = self.reason is not None
        if is_asked and interrupt is not None:
            interrupt()

    # -- called by the context -----------------------------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        if self.reason is None:
            return False
        self.saw_request = True
        return True

    @property
    def deadline(self) -> datetime | None:
        return datetime.now(UTC) + timedelta(seconds=self.ends_at - time.monotonic())

    def progress(self, percent: int, description: str | None) -> None:
        with _lock:
            if description is None:
                description = self._progress[1]
            self._progress = (percent, description)
            self._dirty = True

    @property
    def percent(self) -> int:
        """The latest progress."""
        return self._progress[0]

    @property
    def has_progress(self) -> bool:
        """Whether there is progress that was not stored."""
        return self._dirty

    def flush(self) -> None:
        """Store the latest progress; a refusal shows that the job was reclaimed."""
        with _lock:
            if not self._dirty:
                return
            (percent, description), self._dirty = self._progress, False
        try:
            self._queue.save_progress(self.job.id, percent, description, attempt=self.job.attempt)
        except InvalidTransitionError as error:
            if (
                error.status != JobStatus.DEAD_LETTER
            ):  # there a result may still be accepted: the watch decides
                self.request_end(Reason.LOST)
        except JobNotFoundError:
            self.request_end(Reason.LOST)

    def save_checkpoint(self, data: bytes) -> None:
        self._queue.save_checkpoint(self.job.id, data, attempt=self.job.attempt)

    def spawn(self, job: Job, delay: timedelta | None) -> str:
        if delay is not None:
            job = delayed(job, self._queue.backend.now() + delay)
        (job_id,) = self._queue.spawn_jobs(self.job.id, [job], attempt=self.job.attempt)
        return job_id
