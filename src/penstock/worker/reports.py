"""Reports of outcomes: what has gathered is reported in one transaction per kind, every report fenced by its attempt.

Slots pass outcomes on and continue; while one batch is committed the next one gathers. While the store is away, outcomes are
kept and their reports retried. A report that is refused because its attempt is over is logged and dropped: another attempt
has the job, or it was ended by hand.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from penstock.backends import Failure, NextStep
from penstock.errors import (
    BackendError,
    InvalidArgumentError,
    InvalidTransitionError,
    PenstockError,
    QueueClosedError,
    ReportErrors,
    StaleAttemptError,
)
from penstock.job import Job, JobStatus
from penstock.logs import retry_level
from penstock.outcome import Cancelled, Completed, Failed, Outcome, invalid
from penstock.queue import Queue
from penstock.service import Backoff, Service
from penstock.worker._job_logs import log_failure

__all__ = ["Report", "Reporter", "send"]

logger = logging.getLogger("penstock.worker")

MAX_BATCH: Final = 1_000
MAX_RETRY_SECONDS: Final = 2.0
#: While jobs wait for a slot, outcomes are gathered for at most this time.
LINGER_SECONDS: Final = 0.05
NEVER: Final = 1 << 60


class Report(NamedTuple):
    """The outcome of an attempt.

    Attributes:
        job_id: the job.
        attempt: the fence.
        outcome: what is reported.
        job: as it was claimed, for the log.
        seconds: how long the attempt took, if that is known.
    """

    job_id: str
    attempt: int
    outcome: Outcome
    job: Job | None = None
    seconds: float | None = None


class Reporter:
    """Reports outcomes on a thread of its own."""

    def __init__(
        self,
        queue: Queue,
        on_fatal: Callable[[BaseException], None],
        backlog: Callable[[], int],
        capacity: int,
    ) -> None:
        self._queue = queue
        self._on_fatal = on_fatal
        self._backlog = backlog
        self._enough = min(MAX_BATCH, max(1, capacity // 2))
        self._pending: deque[Report] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        #: The number of pending outcomes at which `put` wakes the thread.
        self._wake_at = NEVER
        self._is_busy = False
        self._stopping = threading.Event()
        self._fails_at: float | None = None
        self._service = Service("reports", self._run, label="reporting outcomes", log=logger)
        #: Reports that the store accepted, also by the kind of outcome, and those it refused because the attempt was over.
        self.accepted = 0
        self.accepted_of: Counter[type] = Counter()
        self.refused = 0

    def start(self) -> None:
        """Start the thread."""
        self._service.start()

    def put(self, job: Job, outcome: Outcome, seconds: float | None = None) -> None:
        """Add an outcome; never waits for the store."""
        self._pending.append(Report(job.id, job.attempt, outcome, job, seconds))
        wake_at = self._wake_at
        # While it gathers, nothing more comes once no job waits for a slot.
        if len(self._pending) >= wake_at or (wake_at != NEVER and not self._backlog()):
            self._wake.put(None)

    @property
    def is_idle(self) -> bool:
        """Whether everything added so far was reported or refused."""
        return not self._pending and not self._is_busy

    def stop(self, seconds: float) -> bool:
        """Report what is left, for at most so many seconds; return whether nothing is left."""
        self._fails_at = time.monotonic() + seconds
        self._stopping.set()
        self._wake.put(None)
        self._service.join(seconds + MAX_RETRY_SECONDS)
        return self.is_idle

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Wait for outcomes and report them; after `stop`, end when none are left."""
        self._wake_at = 1  # before the check of what is pending: what is added after it wakes this thread
        if not self._pending:
            if self._stopping.is_set():
                self._service.retire()
                return
            self._wake.get()
        self._is_busy = True
        self._linger()
        self._wake_at = NEVER
        try:
            self._report(self._gather())
        except QueueClosedError:
            logger.warning("the queue was closed with %d outcomes unreported", len(self._pending) + 1)
            self._pending.clear()
            raise
        except Exception as error:  # a defect: the jobs stay RUNNING until this process ends
            logger.exception("outcomes could not be reported")
            self._on_fatal(error)
        finally:
            self._is_busy = False

    def _linger(self) -> None:
        """Let short jobs that wait for a slot run first: large batches are cheap, and switches of threads are not.

        Half of what the worker may hold is enough, so that the store works on one half while the slots run the other.
        A worker that prefetches nothing has none waiting, and reports at once.
        """
        self._wake_at = self._enough
        end_at = time.monotonic() + LINGER_SECONDS
        while len(self._pending) < self._enough and self._backlog() and not self._stopping.is_set():
            left = end_at - time.monotonic()
            if left <= 0:
                return
            with contextlib.suppress(Empty):
                self._wake.get(timeout=left)

    def _gather(self) -> list[Report]:
        """Return what is pending, each job once: two attempts of one job are two reports."""
        batch: dict[str, Report] = {}
        pending = self._pending
        while pending and len(batch) < MAX_BATCH:
            report = pending.popleft()
            if report.job_id in batch:
                pending.appendleft(report)
                break
            batch[report.job_id] = report
        while True:  # wake-ups for what has just been gathered
            try:
                self._wake.get_nowait()
            except Empty:
                return list(batch.values())

    def _report(self, batch: Sequence[Report]) -> None:
        kinds: dict[type, list[Report]] = {}
        for report in batch:
            kinds.setdefault(type(report.outcome), []).append(report)
        for kind, reports in kinds.items():
            self._send(kind, reports)

    def _send(self, kind: type, reports: list[Report]) -> None:
        backoff = Backoff(longest=MAX_RETRY_SECONDS)
        while True:
            try:
                send(self._queue, kind, reports)
                self._accepted(kind, reports)
            except ReportErrors as group:
                refused = {getattr(error, "job_id", "") for error in group.exceptions}
                self._refused(group, {report.job_id: report for report in reports})
                self._accepted(kind, [report for report in reports if report.job_id not in refused])
            except BackendError as error:
                if not error.retryable:
                    raise
                if self._fails_at is not None and time.monotonic() >= self._fails_at:
                    logger.critical("%d outcomes were not reported: %s", len(reports), error)
                    return
                logger.log(retry_level(error), "%d outcomes wait for the store: %s", len(reports), error)
                pause = backoff.next()
                self._stopping.wait(pause) if self._fails_at is None else time.sleep(pause)
                continue
            except InvalidArgumentError as error:
                self._one_by_one(kind, reports, error)
            return

    def _accepted(self, kind: type, reports: Sequence[Report]) -> None:
        self.accepted += len(reports)
        self.accepted_of[kind] += len(reports)
        if kind is Failed and logger.isEnabledFor(logging.WARNING):
            self._log_failures(reports)

    def _log_failures(self, reports: Sequence[Report]) -> None:
        """Log failed attempts with the step by which the store recorded each: the next retry, or the end."""
        steps: dict[str, NextStep] = {}
        with contextlib.suppress(PenstockError):
            steps = self._queue.backend.runtime.next_steps([report.job_id for report in reports])
        for report in reports:
            if report.job is not None and isinstance(report.outcome, Failed):
                log_failure(report.job, report.outcome, report.seconds, steps.get(report.job_id))

    def _refused(self, group: ReportErrors, reports: dict[str, Report]) -> None:
        for error in group.exceptions:
            report = reports.get(getattr(error, "job_id", ""))
            if (
                report is not None
                and isinstance(error, InvalidTransitionError)
                and not isinstance(error, StaleAttemptError)
                and error.status == JobStatus.CANCELLING
                and type(report.outcome) is Failed
            ):
                # It was cancelled while it failed: it has ended, as requested.
                self._pending.append(report._replace(outcome=Cancelled()))
                continue
            self.refused += 1
            logger.warning("a late report was dropped: %s", error)

    def _one_by_one(self, kind: type, reports: list[Report], error: InvalidArgumentError) -> None:
        """Report one by one to find the invalid outcome of a batch; that job fails for good, because it would do so again."""
        if len(reports) > 1:
            for report in reports:
                self._send(kind, [report])
        elif kind is Failed and reports[0].outcome.code == "invalid_report":  # type: ignore[union-attr]
            raise error
        else:
            logger.error("the outcome of job %s cannot be stored: %s", reports[0].job_id, error)
            outcome = invalid(f"the outcome cannot be stored: {error}", "invalid_report")
            self._send(Failed, [reports[0]._replace(outcome=outcome)])


def send(queue: Queue, kind: type, reports: Sequence[Report]) -> None:
    """Report outcomes of one kind in one transaction."""
    attempts = {report.job_id: report.attempt for report in reports}
    if kind is Completed:
        results = {report.job_id: report.outcome.result for report in reports}  # type: ignore[union-attr]
        queue.complete_jobs(results, attempts=attempts)
    elif kind is Failed:
        failures = {report.job_id: _failure(report.outcome) for report in reports}  # type: ignore[arg-type]
        queue.fail_jobs(failures, attempts=attempts)
    elif kind is Cancelled:
        queue.acknowledge_cancellations(dict.fromkeys(attempts, True), attempts=attempts)
    else:
        messages = {report.job_id: report.outcome.message for report in reports}  # type: ignore[union-attr]
        queue.release_jobs(messages, attempts=attempts)


def _failure(outcome: Failed) -> Failure:
    return Failure(
        message=outcome.message,
        category=outcome.category,
        code=outcome.code,
        retry_after=outcome.retry_after,
    )
