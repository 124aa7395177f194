"""One attempt that is being run, as the worker sees it. It also stands behind the handler's JobContext."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.context import JobContext
from penstock.errors import InvalidTransitionError, JobNotFoundError
from penstock.job import Job
from penstock.queue import Queue

if TYPE_CHECKING:
    from penstock.task import Submission, Task

__all__ = ["Reason", "Run"]

#: Held for moments, by whoever asks a run to end or tells its progress. One for all: a short job would pay for its own.
_lock = threading.Lock()


class Reason(StrEnum):
    """Why a handler is asked to end."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    LOST = "lost"  # the job was taken away: another attempt may be running
    DRAINED = "drained"  # the worker is going away


class Run:
    """An attempt from the moment a slot takes it until its outcome is handed to the reporter."""

    __slots__ = (
        "_claim",
        "_dirty",
        "_interrupt",
        "_progress",
        "_queue",
        "asked_at",
        "job",
        "on_look",
        "reason",
        "seconds",
        "started_at",
        "task",
        "was_told",
    )

    def __init__(self, job: Job, task: Task[Any, Any], seconds: float, queue: Queue) -> None:
        self.job = job
        self.task = task
        self.seconds = seconds
        self.started_at = time.monotonic()
        #: Why it was asked to end, and when; None while it may go on.
        self.reason: Reason | None = None
        self.asked_at = 0.0
        #: Whether the handler has looked and seen that it should end.
        self.was_told = False
        #: Called now and then while it runs: there may be something to store.
        self.on_look: Callable[[], None] | None = None
        self._queue = queue
        self._claim = [None]
        self._interrupt: Callable[[], None] | None = None
        self._progress: tuple[int, str | None] = (0, None)
        self._dirty = False

    @property
    def ends_at(self) -> float:
        """When its time is over, by the monotonic clock."""
        return self.started_at + self.seconds

    def context(self) -> JobContext:
        return JobContext(self.job, self)

    # -- ending -------------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Claim the right to report this attempt; false if somebody has it already. Exactly one caller gets it."""
        try:
            self._claim.pop()
        except IndexError:
            return False
        return True

    @property
    def is_settled(self) -> bool:
        return not self._claim

    def ask_to_end(self, reason: Reason) -> bool:
        """Tell the handler to end, and interrupt it if there is a way; false if it was told before."""
        with _lock:
            if self.reason is not None:
                return False
            self.reason, self.asked_at = reason, time.monotonic()
            interrupt = self._interrupt
        if interrupt is not None:
            interrupt()
        return True

    def interruptible(self, interrupt: Callable[[], None] | None) -> None:
        """Say how the handler can be interrupted from now on; called at once if it was asked to end already."""
        with _lock:
            self._interrupt = interrupt
            is_asked = self.reason is not None
        if is_asked and interrupt is not None:
            interrupt()

    # -- what a context needs -----------------------------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        if self.reason is None:
            return False
        self.was_told = True
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
        """The latest progress that was told."""
        return self._progress[0]

    @property
    def has_news(self) -> bool:
        """Whether there is progress that the store does not know."""
        return self._dirty

    def flush(self) -> None:
        """Store the latest progress. A job that was taken away is noticed here."""
        with _lock:
            if not self._dirty:
                return
            (percent, description), self._dirty = self._progress, False
        try:
            self._queue.save_progress(self.job.id, percent, description, attempt=self.job.attempt)
        except (InvalidTransitionError, JobNotFoundError):
            self.ask_to_end(Reason.LOST)

    def save_checkpoint(self, data: bytes) -> None:
        self._queue.save_checkpoint(self.job.id, data, attempt=self.job.attempt)

    def spawn(self, submission: Submission) -> str:
        child = submission.to_job(self._queue)
        return self._queue.spawn_jobs(self.job.id, [child], attempt=self.job.attempt)[0]
