"""The worker: a stream delivers jobs, slots run them, a reporter reports outcomes, a watch enforces the limits.

    stream ──intake──▶ backlog ──▶ slots ──▶ reporter ──▶ store
                                    ▲
                                  watch: time limits, cancellations, reclaimed jobs, progress

The store decides which owner holds a job, and whether a report is accepted (every one names its attempt). The worker
assumes that it still holds the job. So a handler whose attempt is over is asked to end, and what it reports afterwards is
refused.

Stopping: no new jobs are claimed; jobs in the backlog are released; running ones may finish within the grace; what is left
then is released uncounted. A second request to stop ends the grace.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from penstock.app import App
from penstock.app.client import QueueClient
from penstock.app.task import Isolation, Task
from penstock.backends.engine import arguments
from penstock.durations import Duration, duration
from penstock.errors import BackendError, InvalidArgumentError, InvalidTransitionError, PenstockError, shown
from penstock.job import Job, Key
from penstock.logs import retry_level
from penstock.outcome import Cancelled, Completed, Failed, Outcome, Released, invalid
from penstock.queue.stream import JobStream
from penstock.worker._capture import capturing
from penstock.worker._job_logs import log_job, log_success
from penstock.worker._lending import Lending
from penstock.worker._services import services
from penstock.worker._watch import Watch
from penstock.worker.arguments import MAX_SLOTS, checked_tasks, checked_whole
from penstock.worker.intake import Intake
from penstock.worker.origin import Origin, find_origin
from penstock.worker.reports import Reporter
from penstock.worker.run import Reason, Run
from penstock.worker.signals import stopping_on_signals
from penstock.worker.slots import Backlog, Runner, Slot, judged, timed_out

if TYPE_CHECKING:
    from penstock.worker._processes import ProcessRunner

__all__ = ["Worker"]

logger = logging.getLogger("penstock.worker")

POLL_SECONDS: Final = 0.02
MAX_POLL_SECONDS: Final = 0.25
FLUSH_SECONDS: Final = 10.0
KILL_SECONDS: Final = 10.0
#: How long a prefetched job may wait for a slot before it is released for other workers.
PREFETCH_SECONDS: Final = 5.0
MAX_PREFETCHED: Final = 100_000


class Worker:
    """Runs an app's jobs.

    Args:
        app: the app whose handlers it runs.
        concurrency: how many jobs run at a time.
        prefetch: how many more are claimed ahead of a free slot, for very short jobs; they count as RUNNING.
        isolation: "process": each job in a child process, which time limits, cancellation and memory limits really end;
            "thread": on a thread, which cannot be ended, only asked to end. A task may have its own.
        grace: how long running jobs may continue after the first request to stop, in seconds or a timedelta.
        stop_grace: how long a handler has to end by itself after its time is over or its job was cancelled.
        tags: only jobs that have all of these.
        types: only these of the app's types; None is all.
        name: its assignee id in the store; host, process and a random part unless given.

    Raises:
        InvalidArgumentError: an argument is wrong, or a task cannot be run this way; nothing was started.
    """

    def __init__(
        self,
        app: App,
        concurrency: int = 4,
        prefetch: int = 0,
        *,
        isolation: Isolation = "process",
        grace: Duration = 30.0,
        stop_grace: Duration = 5.0,
        tags: Sequence[str] = (),
        types: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(app, App):
            raise InvalidArgumentError(f"app must be an App, got {shown(app)}", field="app", value=app)
        self.app = app
        self.concurrency = checked_whole("concurrency", concurrency, 1, MAX_SLOTS)
        self.prefetch = checked_whole("prefetch", prefetch, 0, MAX_PREFETCHED)
        self.isolation: Isolation = isolation
        self.grace = duration(grace, "grace").total_seconds()
        self.stop_grace = duration(stop_grace, "stop_grace").total_seconds()
        self.tags = arguments.tags(tags)
        self._tasks = checked_tasks(app, types, isolation)
        made_up = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.name = made_up if name is None else arguments.text("name", name, arguments.MAX_ID)
        self._origin = self._find_origin()
        self._processes: ProcessRunner | None = None
        self._control: SimpleQueue[BaseException | None] = SimpleQueue()
        self._running = threading.Lock()
        self._stops = 0
        self._slots: list[Slot] = []
        #: Slots of jobs that run in place of others, which wait for them.
        self._lent: list[Slot] = []
        self._lent_lock = threading.Lock()
        self._backlog = Backlog()
        self._intake = Intake(self._open_stream, self._backlog, self._control.put)
        self._is_draining = False
        self._capacity = self.concurrency + self.prefetch
        #: Jobs that were claimed beyond the slots.
        self._claimed_beyond = 0
        self._accepted_of: Counter[type] = Counter()
        #: Called when it begins to claim jobs, in each run.
        self.on_started: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.name} of {len(self._tasks)} types>"

    @property
    def types(self) -> tuple[str, ...]:
        """The types it claims."""
        return tuple(self._tasks)

    @property
    def completed(self) -> int:
        """How many completions the store has accepted from it in this run, or the last one."""
        return self._accepted_of[Completed]

    @property
    def failed(self) -> int:
        """How many failures of attempts the store has accepted from it in this run, or the last one."""
        return self._accepted_of[Failed]

    def _isolation_of(self, task: Task[Any, Any]) -> Isolation:
        return task.isolation or self.isolation

    def _find_origin(self) -> Origin | None:
        """Return where the tasks that run in processes are imported from, if there are any."""
        forked = [task for task in self._tasks.values() if self._isolation_of(task) == "process"]
        return self._origin_of(forked) if forked else None

    def _origin_of(self, tasks: list[Task[Any, Any]]) -> Origin:
        return find_origin(self.app, tasks)

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False) -> None:
        """Claim and run jobs until it is stopped; in the main thread, SIGTERM and SIGINT stop it.

        Args:
            until_idle: return when no job of its types is ready, running or waiting for a retry.

        Raises:
            BackendError: the store failed for good.
        """
        setup = sys.modules.get("penstock.isolation.setup")
        if setup is not None and setup.is_loading:
            raise InvalidArgumentError(
                "a child process imports the module that starts its worker; the module must do that only "
                'under `if __name__ == "__main__":`',
                field="worker",
            )
        if not self._running.acquire(blocking=False):
            raise InvalidArgumentError("this worker runs already", field="worker")
        try:
            with stopping_on_signals(self.stop):
                self._run(until_idle)
        finally:
            with contextlib.suppress(Empty):
                while True:  # requests to stop that came too late do not stop the next run
                    self._control.get_nowait()
            self._running.release()

    def stop(self) -> None:
        """Request a stop, from any thread or a signal handler: the first one drains, the second one ends at once."""
        self._control.put(None)

    def _run(self, until_idle: bool) -> None:
        queue = self._queue = self.app.queue
        client = self.app.client()
        if isinstance(client, QueueClient):
            client.is_new_store = False  # what is submitted here is claimed here
        self._stops, self._is_draining = 0, False
        self._backlog = Backlog()
        self._intake = Intake(self._open_stream, self._backlog, self._control.put, self._announce_start)
        self._reporter = Reporter(queue, self._control.put, self._backlog.__len__, self._capacity)
        self._accepted_of = self._reporter.accepted_of
        self._watch = Watch(self, queue, self.stop_grace)
        self._slots = [self._make_slot(number, self._backlog) for number in range(self.concurrency)]
        self._lent = []
        self._lending = Lending(self, queue)
        error: BaseException | None = None
        self._start_processes()
        self._log(
            "worker.started",
            "worker %s claims %s from %s",
            self.name,
            ", ".join(self._tasks),
            queue.backend.location,
            types=list(self._tasks),
            store=queue.backend.location,
        )
        try:
            with services(self.app, queue) as finish, self._capturing():
                self._reporter.start()
                self._watch.start()
                for slot in self._slots:
                    slot.thread.start()
                self._intake.start()
                try:
                    error = self._wait(until_idle)
                    if until_idle and error is None and not self._stops:
                        self._finish_callbacks(finish)
                finally:
                    self._shut_down()
        finally:
            self._end_processes()
        if error is not None:
            raise error

    def _make_slot(self, number: int, backlog: Backlog, on_end: Callable[[Slot], None] | None = None) -> Slot:
        return Slot(number, backlog, self._begin, self._finish, self._runner_for, self._store_output, on_end)

    def _wait(self, until_idle: bool) -> BaseException | None:
        """Wait for a reason to stop; return the error if it is one."""
        pause = POLL_SECONDS
        while True:
            try:
                error = self._control.get(timeout=pause if until_idle else None)
            except Empty:
                if self._is_surely_idle():
                    return None
                pause = min(pause * 1.2, MAX_POLL_SECONDS) if self._is_quiet() else POLL_SECONDS
                continue
            self._stops += 1
            return error

    def _finish_callbacks(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        except BackendError as error:  # they stay in the store, and another worker delivers them
            if not error.retryable:
                raise
            logger.log(retry_level(error), "callbacks are left to other workers: %s", error)

    def _announce_start(self) -> None:
        if self.on_started is not None:
            self.on_started()

    def _shut_down(self) -> None:
        end_at = time.monotonic() + self.grace
        self._is_draining = True
        self._lending.close()
        running = len(self.runs())
        self._log(
            "worker.stopping",
            "worker %s stops; %d jobs may finish within %g s",
            self.name,
            running,
            self.grace,
            running=running,
        )
        self._intake.stop()
        self._release(self._backlog.withdraw(), "the worker was stopped before the job was begun")
        self._backlog.end(len(self._slots))
        while self.runs() and self._stops < 2 and time.monotonic() < end_at:
            try:
                self._control.get(timeout=min(POLL_SECONDS, max(0.0, end_at - time.monotonic())))
                self._stops += 1
            except Empty:
                continue
        self._release_running()
        self._watch.stop()
        if not self._reporter.stop(FLUSH_SECONDS):
            logger.error("outcomes are left unreported; their jobs are reclaimed when this process is gone")
        for slot in (*self._slots, *self._lent):
            if slot.run is None:
                slot.thread.join(1.0)
        self._log("worker.stopped", "worker %s has stopped", self.name)

    def _log(self, event: str, text: str, *args: object, **fields: object) -> None:
        """Log something about the worker itself."""
        logger.info(text, *args, extra={"event": event, "worker": self.name, **fields})

    def _release_running(self) -> None:
        for run in self.runs():
            run.request_end(Reason.DRAINED)
            if self._isolation_of(run.task) == "thread" and run.settle():
                # Its thread cannot be ended: what it reports later is refused, because the attempt is over.
                self._report(run.job, Released("the worker was stopped while the job ran"))
        # Processes are killed, and their jobs released when they are gone: no other attempt may begin before.
        end_at = time.monotonic() + self.stop_grace + KILL_SECONDS
        while self.runs() and time.monotonic() < end_at:
            time.sleep(POLL_SECONDS)

    def _start_processes(self) -> None:
        """Start the template process before the first claim, so that no job is claimed that cannot be imported."""
        if self._origin is None:
            return
        from penstock.worker._processes import ProcessRunner  # noqa: PLC0415  # threads need none of it

        client = self.app.client()
        assert isinstance(client, QueueClient)  # noqa: S101  # app.queue was there
        self._processes = ProcessRunner(
            self._origin,
            client,
            self.stop_grace,
            self.concurrency,
            self._store_output,
            self._finish,
            self._control.put,
        )
        try:
            self._processes.start(
                [name for name, task in self._tasks.items() if self._isolation_of(task) == "process"]
            )
        except BaseException:
            self._end_processes()
            raise

    def _end_processes(self) -> None:
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    def _capturing(self) -> AbstractContextManager[None]:
        """Capture what handlers print, if any of them runs on a thread of this process."""
        is_needed = any(self._isolation_of(task) == "thread" for task in self._tasks.values())
        return capturing() if is_needed else contextlib.nullcontext()

    def _store_output(self, run: Run, text: str) -> None:
        """Store what a job printed, unless its attempt is over."""
        try:
            self._queue.save_output(run.job.id, text, attempt=run.job.attempt)
        except InvalidTransitionError:
            pass  # the attempt is over
        except PenstockError as error:
            logger.warning("what job %s printed was not stored: %s", run.job.id, error)

    # -- one job ------------------------------------------------------------------------------------------------

    def _open_stream(self) -> JobStream:
        return self.app.queue.stream_jobs(self.name, self.tags, self._capacity, types=tuple(self._tasks))

    def _begin(self, job: Job) -> Run | None:
        """Return the run of a job that a slot has taken; None if there is nothing to run."""
        if self._watch.cancelled and job.id in self._watch.cancelled:
            self._watch.cancelled.discard(job.id)
            self._report(job, Cancelled())
            return None
        task = self._tasks.get(job.type)
        if task is None:
            self._report(job, invalid(f"there is no handler for the type {shown(job.type)}", "no_handler"))
            return None
        if logger.isEnabledFor(logging.DEBUG):
            log_job(
                logging.DEBUG, "job.started", job, "%s %s, attempt %d, begins", job.type, job.id, job.attempt
            )
        run = Run(job, task, task.seconds_for(job), self._queue)
        run.lender = self._lending.lender(run)
        return run

    def _runner_for(self, task: Task[Any, Any]) -> Runner | None:
        """Return the runner of a task's jobs; None is the slot's own thread."""
        return self._processes if self._isolation_of(task) == "process" else None

    def _finish(self, run: Run, outcome: Outcome) -> None:
        """Pass an outcome to the reporter, unless the attempt was reported before."""
        if run.has_progress:
            self._flush(run)
        if not run.settle():
            self._reopen_slot(run)
            return
        if run.reason is Reason.LOST and (run.saw_request or not isinstance(outcome, Completed)):
            # A result from before the handler was asked to end counts, and the store decides about it.
            log_job(
                logging.WARNING,
                "job.lost",
                run.job,
                "the outcome of attempt %d of job %s is dropped: the job was reclaimed",
                run.job.attempt,
                run.job.id,
            )
            return
        outcome = judged(run, outcome, self._queue.backend.options.max_payload)
        seconds = time.monotonic() - run.started_at
        self._report(run.job, outcome, seconds)
        if (
            type(outcome) is not Failed
        ):  # what becomes of a failed job is known when the store has accepted the report
            log_success(run.job, outcome, seconds)

    def _report(self, job: Job, outcome: Outcome, seconds: float | None = None) -> None:
        """Pass an outcome to the reporter. However long the store is away, the job is not overdue any more."""
        if self._intake.stream is not None:
            self._intake.stream.finished(job)
        self._reporter.put(job, outcome, seconds)

    def _flush(self, run: Run) -> None:
        try:
            run.flush()
        except Exception as error:
            logger.warning("the last progress of job %s was not stored: %s", run.job.id, error)

    # -- called by the watch ------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Return the attempts in progress, without those that were reported already."""
        slots = (*self._slots, *self._lent) if self._lent else self._slots
        runs = [run for slot in slots if (run := slot.run) is not None and not run.is_settled]
        if self._processes is not None and self._processes.exiting:
            runs += [run for run in tuple(self._processes.exiting) if not run.is_settled and run not in runs]
        return runs

    def overdue(self, run: Run) -> None:
        """Report an attempt on a thread that did not end as timed out; a process is ended by its runner."""
        if self._isolation_of(run.task) == "process" or not run.settle():
            return
        for slot in (*self._slots, *self._lent):
            if slot.run is run:
                slot.is_stuck = True
                if slot.printed:
                    self._store_output(run, slot.printed)
        self._resize()
        if run.reason is Reason.CANCELLED:
            self._report(run.job, Cancelled())
        elif run.reason is not Reason.LOST:
            self._report(run.job, timed_out(run), time.monotonic() - run.started_at)
        log_job(
            logging.ERROR,
            "job.stuck",
            run.job,
            "job %s (%s) does not end (%s): its thread is stuck and its slot stays closed until it returns",
            run.job.id,
            run.job.type,
            run.reason,
        )

    def _reopen_slot(self, run: Run) -> None:
        """Open the slot of a stuck thread that has returned."""
        for slot in self._slots:
            if slot.is_stuck and slot.run is None and slot.thread is threading.current_thread():
                slot.is_stuck = False
                log_job(
                    logging.WARNING,
                    "job.unstuck",
                    run.job,
                    "the stuck thread of job %s has returned; its slot is open again",
                    run.job.id,
                )
                self._resize()

    @property
    def stuck(self) -> int:
        """How many slots are closed because their thread does not return."""
        return sum(slot.is_stuck for slot in self._slots)

    def _resize(self) -> None:
        stream = self._intake.stream
        if stream is not None and not self._is_draining:
            is_open = self.concurrency > self.stuck
            stream.resize(self._capacity - self.stuck if is_open else 0)

    def tidy(self) -> None:
        """Release prefetched jobs that wait for too long, and all of them if every slot is stuck."""
        self._lending.review()
        if self._intake.stream is not None and self._intake.stream.is_withheld:
            # It was declared unresponsive, but it runs.
            self._queue.heartbeat(self.name)
        if not len(self._backlog):
            self._watch.cancelled.clear()
            return
        if self._is_draining:
            return
        is_full = self.stuck == self.concurrency
        late = self._backlog.withdraw(None if is_full else PREFETCH_SECONDS)
        if late:
            if not is_full:
                # These jobs are not short, so prefetching does not help.
                self._capacity = self.concurrency
                self._resize()
            self._release(late, "the worker had no slot for the job")

    def _release(self, jobs: Sequence[Job], why: str) -> None:
        for job in jobs:
            self._report(job, Released(why))

    # -- called by lending --------------------------------------------------------------------------------------

    def has_idle_slot(self) -> bool:
        """Whether a slot is idle and the backlog has no job for it."""
        idle = sum(slot.run is None and not slot.is_stuck for slot in self._slots)
        return idle > len(self._backlog)

    def claim_one(self, *, job_ids: Collection[str] | None = None, key: Key | None = None) -> Job | None:
        """Claim a job beyond the slots, if this worker has a handler for it."""
        stream = self._intake.stream
        return None if stream is None or self._is_draining else stream.claim_beyond(job_ids=job_ids, key=key)

    def run_beside(self, job: Job, on_end: Callable[[], None]) -> None:
        """Run a claimed job beside the slots, in place of one that waits."""

        def ended(slot: Slot) -> None:
            with self._lent_lock:
                self._lent = [each for each in self._lent if each is not slot]
            on_end()

        self._claimed_beyond += 1
        backlog = Backlog()
        backlog.put([job])
        backlog.end(1)
        with self._lent_lock:
            slot = self._make_slot(self.concurrency + len(self._lent), backlog, ended)
            self._lent = [*self._lent, slot]
        slot.thread.start()

    def set_waiting(self, number: int) -> None:
        """Publish how many jobs wait for others."""
        stream = self._intake.stream
        if stream is not None and stream.is_open:
            stream.set_waiting(number)

    # -- until idle ---------------------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        return not len(self._backlog) and not self.runs() and self._reporter.is_idle

    def _is_idle(self) -> bool:
        """Whether no job of its types is ready, running or waiting for a retry, here or elsewhere."""
        before = self._activity()
        if not self._is_quiet():
            return False
        if self._queue.backend.runtime.has_work(tuple(self._tasks), self.tags):
            return False
        # What was received or reported during the query may have changed its answer.
        return self._is_quiet() and self._activity() == before

    def _is_surely_idle(self) -> bool:
        """Whether it is idle; False while the store does not answer."""
        try:
            return self._is_idle()
        except BackendError as error:
            if not error.retryable:
                raise
            logger.log(retry_level(error), "whether jobs are left is not known, which is retried: %s", error)
            return False

    def _activity(self) -> tuple[int, int, int]:
        return self._intake.received + self._claimed_beyond, self._reporter.accepted, self._reporter.refused
