"""The slots of a worker: threads that take jobs from the backlog and run each one to its outcome.

A `Runner` runs a job: on the slot's own thread, or in a child process that the slot waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from penstock.app.execution import LoopRunner, execute
from penstock.app.lending import lent_by
from penstock.app.task import Task
from penstock.isolation.output import DEFAULT_LIMIT
from penstock.job import Job
from penstock.outcome import Cancelled, Completed, Failed, Outcome, Released, failure_of, too_large
from penstock.policy import FailureCategory
from penstock.worker._capture import Capture
from penstock.worker.run import Reason, Run

__all__ = ["Backlog", "Runner", "Slot", "ThreadRunner", "judged", "timed_out"]

logger = logging.getLogger("penstock.worker")


class Runner(Protocol):
    """Runs an attempt to its end and returns its outcome."""

    def run(self, run: Run) -> Outcome | None:
        """Run it; None if its handler has ended and another thread reports the outcome."""
        ...

    def close(self) -> None: ...


class ThreadRunner:
    """Runs handlers on the calling thread, one at a time. Only an `await` can be interrupted."""

    def __init__(self, on_output: Callable[[Run, str], None]) -> None:
        self._loop = LoopRunner()
        self._on_output = on_output
        #: The output of the handler.
        self.capture = Capture()
        self._current: Run | None = None
        self._stored = ""
        #: Held while output is stored, so that the latest is stored last.
        self._storing = threading.Lock()

    def run(self, run: Run) -> Outcome:
        task = run.task
        with self._storing:
            self.capture.begin(task.limits.get("output", DEFAULT_LIMIT))
            self._current, self._stored = run, ""
        run.store_output = self._store_output
        if task.is_async:
            run.interruptible(self._loop.cancel)
        with lent_by(run.lender):
            outcome = execute(task, run.job, run.context, task.app.middlewares, self._loop.run)
        if task.is_async:
            run.interruptible(None)
        run.store_output = None
        if self.capture.text() and not run.is_settled:
            self._store_output()
        return outcome

    def _store_output(self) -> None:
        """Store what the handler has printed, if there is more of it than before."""
        with self._storing:
            run, printed = self._current, self.capture.text()
            if run is not None and printed != self._stored:
                self._stored = printed
                self._on_output(run, printed)

    def close(self) -> None:
        self._loop.close()


class Backlog:
    """Claimed jobs that wait for a slot; None in their place ends a slot."""

    def __init__(self) -> None:
        #: Each with the monotonic time at which it was added; None ends a slot.
        self._jobs: SimpleQueue[tuple[Job, float] | None] = SimpleQueue()

    def put(self, jobs: list[Job]) -> None:
        now = time.monotonic()
        put = self._jobs.put
        for job in jobs:
            put((job, now))

    def take(self) -> Job | None:
        """Wait for a job; None ends the slot."""
        waiting = self._jobs.get()
        return None if waiting is None else waiting[0]

    def end(self, slots: int) -> None:
        """End so many slots, after all jobs."""
        for _ in range(slots):
            self._jobs.put(None)

    def withdraw(self, older_than: float | None = None) -> list[Job]:
        """Remove and return the jobs that no slot has taken, or those that have waited for so many seconds."""
        found: list[Job] = []
        limit = None if older_than is None else time.monotonic() - older_than
        for _ in range(self._jobs.qsize()):
            try:
                waiting = self._jobs.get_nowait()
            except Empty:
                break
            if waiting is None or (limit is not None and waiting[1] > limit):
                self._jobs.put(waiting)
            else:
                found.append(waiting[0])
        return found

    def __len__(self) -> int:
        return self._jobs.qsize()


class Slot:
    """One place for a job, with its thread.

    The thread is not a service: it ends by what it finds in the backlog, nothing wakes or retries it, and one that is stuck in
    a handler is left behind.
    """

    def __init__(
        self,
        number: int,
        backlog: Backlog,
        start: Callable[[Job], Run | None],
        finish: Callable[[Run, Outcome], None],
        runner_for: Callable[[Task[Any, Any]], Runner | None],
        on_output: Callable[[Run, str], None],
        on_end: Callable[[Slot], None] | None = None,
    ) -> None:
        self._backlog = backlog
        self._on_end = on_end
        self._start = start
        self._finish = finish
        self._runner_for = runner_for
        #: The attempt that it runs.
        self.run: Run | None = None
        #: Whether its attempt was reported as overdue, but its thread has not returned.
        self.is_stuck = False
        self._own = ThreadRunner(on_output)
        # Not a service: it ends by what it finds in the backlog, and one that is stuck in a handler is left behind.
        self.thread = threading.Thread(target=self._work, name=f"penstock-slot-{number}", daemon=True)

    @property
    def printed(self) -> str:
        """The output so far of the handler on this slot's own thread."""
        return self._own.capture.text()

    def _work(self) -> None:
        while (job := self._backlog.take()) is not None:
            run = self._start(job)
            if run is None:
                continue
            self.run = run
            outcome: Outcome | None
            try:
                outcome = (self._runner_for(run.task) or self._own).run(run)
            except (
                BaseException
            ) as error:  # a defect of ours, or MemoryError: the job fails, the slot continues
                logger.exception("job %s could not be run", run.job.id)
                outcome = failure_of(error)
            self.run = None
            if outcome is not None:
                self._finish(run, outcome)
        self._own.close()
        if self._on_end is not None:
            self._on_end(self)


def judged(run: Run, outcome: Outcome, max_payload: int) -> Outcome:
    """Return the outcome to report for an attempt that ended, given why it was asked to end.

    A handler that returns without having seen the request to end has done its work. One that has seen it and then
    returns has stopped early.
    """
    if run.reason is None and type(outcome) is Completed and not outcome.result:
        return outcome  # most short jobs, before any other check
    if run.reason is Reason.TIMEOUT:
        return timed_out(run)
    is_early = isinstance(outcome, Failed) or (isinstance(outcome, Completed) and run.saw_request)
    if is_early and run.reason is Reason.CANCELLED:
        return Cancelled()
    if is_early and run.reason is Reason.DRAINED:
        return Released("the worker was stopped while the job ran")
    if isinstance(outcome, Completed) and outcome.result is not None and len(outcome.result) > max_payload:
        return too_large(len(outcome.result), max_payload)
    return outcome


def timed_out(run: Run) -> Failed:
    """Return the failure of an attempt that ran out of time."""
    return Failed(
        message=f"the execution time of {run.seconds:g} s is over",
        category=FailureCategory.TIMEOUT,
        code="timeout",
    )
