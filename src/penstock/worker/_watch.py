"""The worker's watch over its runs: time limits, cancellations, reclaimed jobs, progress, prefetched jobs.

One thread checks every tenth of a second. Cancellations that this process commits are seen at once, by the store's listener.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.backends import Change
from penstock.errors import QueueClosedError
from penstock.job import JobStatus
from penstock.lifecycle import LOST_BY_SILENCE
from penstock.logs import job_fields
from penstock.queue import Queue
from penstock.service import Service
from penstock.worker.run import Reason, Run

__all__ = ["Watch"]

logger = logging.getLogger("penstock.worker")

TICK_SECONDS: Final = 0.1
STORE_POLL_SECONDS: Final = 0.5
PROGRESS_SECONDS: Final = 0.25
OUTPUT_SECONDS: Final = 1.0


class Watched(Protocol):
    """The part of a worker that the watch uses."""

    def runs(self) -> list[Run]: ...

    def overdue(self, run: Run) -> None:
        """Called when a run has used up its time, or the grace after it was asked to end."""

    def tidy(self) -> None:
        """Called on every tick."""


class Watch:
    """Enforces limits and cancellations of the runs of one worker."""

    def __init__(self, worker: Watched, queue: Queue, grace: float) -> None:
        self._worker = worker
        self._queue = queue
        self._grace = grace
        self._unlisten: Callable[[], None] | None = None
        #: Jobs that were cancelled before a slot had taken them.
        self.cancelled: set[str] = set()
        #: Attempts that were reclaimed, the last allowed ones of their jobs.
        self._reclaimed: set[Run] = set()
        self._next_store_poll = self._next_flush = self._next_output = 0.0
        self._service = Service(
            "watch",
            self._tick,
            seconds=TICK_SECONDS,
            begins_with_pause=True,
            label="the watch over running jobs",
            log=logger,
        )

    def start(self) -> None:
        """Start the thread."""
        self._unlisten = self._queue.backend.runtime.listen(self._on_commit)
        self._service.start()

    def stop(self) -> None:
        """End the thread."""
        self._service.stop()
        if self._unlisten is not None:
            self._unlisten()

    def _on_commit(self, changes: Sequence[Change]) -> None:
        """Cancel what a commit of this process cancelled: quick, and never raises."""
        for change in changes:
            if change.status is JobStatus.CANCELLING:
                self._cancel(change.job_id, change.attempt)

    def _cancel(self, job_id: str, attempt: int) -> None:
        for run in self._worker.runs():
            if run.job.id == job_id:
                if run.job.attempt == attempt:
                    run.request_end(Reason.CANCELLED)
                return
        self.cancelled.add(job_id)

    def _tick(self) -> None:
        """Do what is due. Time limits come first: they must hold when the store fails."""
        now = time.monotonic()
        runs = self._worker.runs()
        self._end_overdue(runs, now)
        try:
            self._store_progress(runs, now)
            if now >= self._next_store_poll:
                self._next_store_poll = now + STORE_POLL_SECONDS
                self._poll_store(runs)
            self._worker.tidy()
        except QueueClosedError as error:  # it would end this thread, and time limits must hold
            logger.warning("the watch over running jobs continues: %s", error)

    def _store_progress(self, runs: list[Run], now: float) -> None:
        if now >= self._next_flush:
            self._next_flush = now + PROGRESS_SECONDS
            for run in runs:
                if run.has_progress:
                    run.flush()
        if now >= self._next_output:
            self._next_output = now + OUTPUT_SECONDS
            for run in runs:
                if (store_output := run.store_output) is not None:  # it may end meanwhile
                    store_output()

    def _end_overdue(self, runs: list[Run], now: float) -> None:
        for run in runs:
            if run.reason is None and now >= run.ends_at:
                run.request_end(Reason.TIMEOUT)
                self._worker.overdue(run)
            elif run.reason is not None and now >= min(
                run.requested_at + self._grace, max(run.ends_at, run.requested_at)
            ):
                self._worker.overdue(run)

    def _poll_store(self, runs: list[Run]) -> None:
        """Poll for cancellations and reclaims by other processes of the jobs that run here."""
        self._reclaimed.intersection_update(runs)
        if not runs:
            return
        found = self._queue.backend.runtime.statuses([run.job.id for run in runs])
        for run in runs:
            status, attempt = found.get(run.job.id, (None, -1))
            if attempt != run.job.attempt or status not in (JobStatus.RUNNING, JobStatus.CANCELLING):
                if attempt == run.job.attempt and status is JobStatus.DEAD_LETTER and self._may_finish(run):
                    continue
                if not run.is_settled and run.request_end(Reason.LOST):
                    logger.warning(
                        "job %s was reclaimed from attempt %d (it is %s now); its handler is asked to end",
                        run.job.id,
                        run.job.attempt,
                        status or "gone",
                        extra={"event": "job.lost", **job_fields(run.job)},
                    )
            elif status is JobStatus.CANCELLING:
                run.request_end(Reason.CANCELLED)

    def _may_finish(self, run: Run) -> bool:
        """Whether a job was reclaimed after its last allowed attempt: no other one follows, and its result counts."""
        if run in self._reclaimed:
            return True
        verb = self._queue.backend.runtime.released({run.job.id: run.job.attempt}).get(run.job.id)
        if verb not in LOST_BY_SILENCE:
            return False
        self._reclaimed.add(run)
        logger.warning(
            "job %s was reclaimed while it runs here; its handler continues, and its result is reported",
            run.job.id,
            extra={"event": "job.lost", **job_fields(run.job)},
        )
        return True
