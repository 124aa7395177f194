"""The worker's watch over what runs: time limits, cancellations, jobs that were taken away, progress, prefetched jobs.

One thread looks every tenth of a second. What this process itself commits is told by the store at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.backends.base import Change
from penstock.errors import PenstockError
from penstock.job import JobStatus
from penstock.logs import job_fields
from penstock.queue import Queue
from penstock.worker._run import Reason, Run

__all__ = ["Watch"]

logger = logging.getLogger("penstock.worker")

TICK_SECONDS: Final = 0.1
STORE_LOOK_SECONDS: Final = 0.5
PROGRESS_SECONDS: Final = 0.25
OUTPUT_SECONDS: Final = 1.0


class Watched(Protocol):
    """What the watch needs of a worker."""

    def runs(self) -> list[Run]: ...

    def overdue(self, run: Run) -> None:
        """Be told that a run has used up its time, or the grace after it was asked to end."""

    def tidy(self) -> None:
        """Do what is due now and then."""


class Watch:
    """Looks after the runs of one worker."""

    def __init__(self, worker: Watched, queue: Queue, grace: float) -> None:
        self._worker = worker
        self._queue = queue
        self._grace = grace
        self._stopped = threading.Event()
        self._unlisten: Callable[[], None] | None = None
        #: Jobs that were cancelled before a slot had taken them.
        self.cancelled: set[str] = set()
        self._thread = threading.Thread(target=self._watch, name="penstock-watch", daemon=True)

    def start(self) -> None:
        self._unlisten = self._queue.backend.listen(self._notice)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self._unlisten is not None:
            self._unlisten()

    def _notice(self, changes: Sequence[Change]) -> None:
        """Be told of a commit of this process: quick, and never raises."""
        for change in changes:
            if change.status is JobStatus.CANCELLING:
                self._cancel(change.job_id, change.attempt)

    def _cancel(self, job_id: str, attempt: int) -> None:
        for run in self._worker.runs():
            if run.job.id == job_id:
                if run.job.attempt == attempt:
                    run.ask_to_end(Reason.CANCELLED)
                return
        self.cancelled.add(job_id)

    def _watch(self) -> None:
        look_at = flush_at = keep_at = 0.0
        while not self._stopped.wait(TICK_SECONDS):
            now = time.monotonic()
            runs = self._worker.runs()
            try:
                self._end_overdue(runs, now)
                if now >= flush_at:
                    flush_at = now + PROGRESS_SECONDS
                    for run in runs:
                        if run.has_news:
                            run.flush()
                if now >= keep_at:
                    keep_at = now + OUTPUT_SECONDS
                    for run in runs:
                        if (look := run.on_look) is not None:  # it may end meanwhile
                            look()
                if now >= look_at:
                    look_at = now + STORE_LOOK_SECONDS
                    self._ask_the_store(runs)
                self._worker.tidy()
            except PenstockError as error:
                logger.warning("the watch over running jobs goes on: %s", error)
            except Exception:  # whatever it is, time limits must hold
                logger.exception("the watch over running jobs goes on")

    def _end_overdue(self, runs: list[Run], now: float) -> None:
        for run in runs:
            if run.reason is None and now >= run.ends_at:
                run.ask_to_end(Reason.TIMEOUT)
                self._worker.overdue(run)
            elif run.reason is not None and now >= min(
                run.asked_at + self._grace, max(run.ends_at, run.asked_at)
            ):
                self._worker.overdue(run)

    def _ask_the_store(self, runs: list[Run]) -> None:
        """Find out what others did to the jobs that run here."""
        if not runs:
            return
        found = self._queue.backend.statuses([run.job.id for run in runs])
        for run in runs:
            status, attempt = found.get(run.job.id, (None, -1))
            if attempt != run.job.attempt or status not in (JobStatus.RUNNING, JobStatus.CANCELLING):
                if not run.is_settled and run.ask_to_end(Reason.LOST):
                    logger.warning(
                        "job %s was taken from attempt %d (it is %s now); its handler is told to end",
                        run.job.id,
                        run.job.attempt,
                        status or "gone",
                        extra={"event": "job.lost", **job_fields(run.job)},
                    )
            elif status is JobStatus.CANCELLING:
                run.ask_to_end(Reason.CANCELLED)
