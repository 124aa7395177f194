"""Outcomes on their way to the store: whatever has gathered goes in one transaction a kind, every report fenced.

Slots hand outcomes over and go on; while one batch is being committed the next one gathers. A store that is away is tried
again until it is back: results are kept meanwhile. A report that is refused because its attempt is over is logged and
dropped: somebody else has the job, or it was ended by hand.
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

from penstock._outcome import Cancelled, Completed, Failed, Outcome, invalid
from penstock.backends.base import Failure
from penstock.errors import (
    BackendError,
    InvalidArgumentError,
    InvalidTransitionError,
    QueueClosedError,
    ReportErrors,
    StaleAttemptError,
)
from penstock.job import Job, JobStatus
from penstock.queue import Queue

__all__ = ["Report", "Reporter", "send"]

logger = logging.getLogger("penstock.worker")

MOST_AT_ONCE: Final = 1_000
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
#: While jobs wait for a slot, outcomes are gathered for so long at the most.
LINGER_SECONDS: Final = 0.05
NEVER: Final = 1 << 60


class Report(NamedTuple):
    """An outcome, and the attempt that had it."""

    job_id: str
    attempt: int
    outcome: Outcome


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
        self._enough = min(MOST_AT_ONCE, max(1, capacity // 2))
        self._pending: deque[Report] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        #: Whoever adds an outcome wakes the thread if there are so many then.
        self._wake_at = NEVER
        self._is_busy = False
        self._stopping = threading.Event()
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-reports", daemon=True)
        #: Reports that the store accepted, also by the kind of outcome, and those it refused because the attempt was over.
        self.accepted = 0
        self.accepted_of: Counter[type] = Counter()
        self.refused = 0

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job, outcome: Outcome) -> None:
        """Take over an outcome; never waits for the store."""
        self._pending.append(Report(job.id, job.attempt, outcome))
        wake_at = self._wake_at
        # While it gathers, nothing comes any more once no job waits for a slot.
        if len(self._pending) >= wake_at or (wake_at != NEVER and not self._backlog()):
            self._wake.put(None)

    @property
    def is_idle(self) -> bool:
        """Whether everything handed over so far has been dealt with."""
        return not self._pending and not self._is_busy

    def stop(self, seconds: float) -> bool:
        """Report what is left, for so long at the most; whether all of it was dealt with."""
        self._give_up_at = time.monotonic() + seconds
        self._stopping.set()
        self._wake.put(None)
        self._thread.join(seconds + LONGEST_PAUSE)
        return self.is_idle

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake_at = 1  # before the look at what is pending: whoever adds after it wakes us
            if not self._pending:
                if self._stopping.is_set():
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
                return
            except (
                Exception
            ) as error:  # a fault of ours: the jobs stay RUNNING and are lost with this process
                logger.exception("outcomes could not be reported")
                self._on_fatal(error)
            finally:
                self._is_busy = False

    def _linger(self) -> None:
        """Let short jobs that wait for a slot go first: large batches are cheap, and turns of threads are not.

        Half of what the worker may hold is enough, so that the store works on one half while the slots run the other.
        A worker that takes no jobs ahead has none waiting, and reports at once.
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
        """Take what is pending: each job once, because two attempts of one job are two reports."""
        batch: dict[str, Report] = {}
        pending = self._pending
        while pending and len(batch) < MOST_AT_ONCE:
            report = pending.popleft()
            if report.job_id in batch:
                pending.appendleft(report)
                break
            batch[report.job_id] = report
        while True:  # wake-ups for what has just been taken
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
        pause = FIRST_PAUSE
        while True:
            try:
                send(self._queue, kind, reports)
                self._count(kind, len(reports))
            except ReportErrors as group:
                self._count(kind, len(reports) - len(group.exceptions))
                self._refused(group, {report.job_id: report for report in reports})
            except BackendError as error:
                if not error.retryable:
                    raise
                if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
                    logger.critical("%d outcomes were not reported: %s", len(reports), error)
                    return
                logger.warning("%d outcomes wait for the store: %s", len(reports), error)
                self._stopping.wait(pause) if self._give_up_at is None else time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            except InvalidArgumentError as error:
                self._one_by_one(kind, reports, error)
            return

    def _count(self, kind: type, number: int) -> None:
        self.accepted += number
        self.accepted_of[kind] += number

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
                # It was cancelled while it failed. It has ended, and that is what was asked for.
                self._pending.append(report._replace(outcome=Cancelled()))
                continue
            self.refused += 1
            logger.warning("a late report was dropped: %s", error)

    def _one_by_one(self, kind: type, reports: list[Report], error: InvalidArgumentError) -> None:
        """Find the report that spoils a whole batch; that job fails for good, because it would do so again."""
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
