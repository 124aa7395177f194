"""The worker: jobs come by a stream, slots run them, a reporter tells the store, a watch keeps the limits.

    stream ──intake──▶ backlog ──▶ slots ──▶ reporter ──▶ store
                                    ▲
                                  watch: time limits, cancellations, lost jobs, progress

What the store decides: who has a job, and whether a report still counts (every one names its attempt). What the worker
may only assume: that it still has the job. So a handler whose attempt is over is told to end, whatever it does then.

Stopping: no new jobs; those that no slot has taken go back; running ones may finish within the grace; what is left then
goes back uncounted. A second request to stop is the end of the grace.
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
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from penstock._client import QueueClient
from penstock._outcome import Cancelled, Completed, Failed, Outcome, Released, invalid
from penstock.app import App
from penstock.errors import (
    BackendError,
    InvalidArgumentError,
    InvalidTransitionError,
    PenstockError,
    QueueClosedError,
    shown,
)
from penstock.job import Job
from penstock.logs import job_fields
from penstock.policy import duration
from penstock.stream import JobStream
from penstock.task import ISOLATIONS, Isolation, Task
from penstock.worker._capture import capturing
from penstock.worker._origin import Origin, find_origin
from penstock.worker._reports import Reporter
from penstock.worker._run import Reason, Run
from penstock.worker._services import services
from penstock.worker._signals import stopping_on_signals
from penstock.worker._slots import Backlog, Runner, Slot, judged, timed_out
from penstock.worker._watch import Watch

if TYPE_CHECKING:
    from penstock.worker._processes import ProcessRunner

__all__ = ["Worker"]

logger = logging.getLogger("penstock.worker")

LOOK_SECONDS: Final = 0.02
FLUSH_SECONDS: Final = 10.0
REOPEN_SECONDS: Final = 1.0
KILL_SECONDS: Final = 10.0
#: How long a prefetched job may wait for a slot before another worker gets its chance.
PREFETCH_SECONDS: Final = 5.0
#: Characters of a result in the log.
SHOWN_RESULT: Final = 80
MOST_SLOTS: Final = 1_000
MOST_PREFETCHED: Final = 100_000


class Worker:
    """Runs an app's jobs.

    Args:
        app: whose handlers.
        concurrency: how many jobs run at a time.
        prefetch: how many more are taken ahead of a free slot, for very short jobs; they count as RUNNING.
        isolation: "process": each job in a process of its own, which time limits, cancellation and memory limits really
            end; "thread": on a thread, where nothing can be ended, only told to end. A task may decide for itself.
        grace: how long running jobs may go on after the first request to stop, in seconds or a timedelta.
        stop_grace: how long a handler has to end by itself after its time is over or its job was cancelled.
        tags: only jobs that have all of these.
        types: only these of the app's types; None is all.
        name: by which the store knows it; host, process and a random part unless given.

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
        grace: timedelta | float = 30.0,
        stop_grace: timedelta | float = 5.0,
        tags: Sequence[str] = (),
        types: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(app, App):
            raise InvalidArgumentError(f"app must be an App, got {shown(app)}", field="app", value=app)
        self.app = app
        self.concurrency = checked_whole("concurrency", concurrency, 1, MOST_SLOTS)
        self.prefetch = checked_whole("prefetch", prefetch, 0, MOST_PREFETCHED)
        self.isolation: Isolation = isolation
        self.grace = duration(grace, "grace").total_seconds()
        self.stop_grace = duration(stop_grace, "stop_grace").total_seconds()
        self.tags = checked_texts("tags", tags)
        self._tasks = checked_tasks(app, types, isolation)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._origin = self._find_origin()
        self._processes: ProcessRunner | None = None
        self._control: SimpleQueue[BaseException | None] = SimpleQueue()
        self._running = threading.Lock()
        self._stops = 0
        self._slots: list[Slot] = []
        self._backlog = Backlog()
        self._stream: JobStream | None = None
        self._is_draining = False
        self._capacity = self.concurrency + self.prefetch
        self._taken = 0
        self._accepted_of: Counter[type] = Counter()

    def __repr__(self) -> str:
        return f"<Worker {self.name} of {len(self._tasks)} types>"

    @property
    def types(self) -> tuple[str, ...]:
        """The types it takes."""
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
        """Return where those tasks come from that are run in processes, if there are any."""
        forked = [task for task in self._tasks.values() if self._isolation_of(task) == "process"]
        return self._origin_of(forked) if forked else None

    def _origin_of(self, tasks: list[Task[Any, Any]]) -> Origin:
        return find_origin(self.app, tasks)

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False) -> None:
        """Take and run jobs until told to stop; in the main thread, SIGTERM and SIGINT tell so.

        Args:
            until_idle: return when no job of its types is ready, running or waiting for a retry.

        Raises:
            BackendError: the store failed for good.
        """
        setup = sys.modules.get("penstock._process.setup")
        if setup is not None and setup.is_loading:
            raise InvalidArgumentError(
                "a process of a job imports the module that starts its worker; the module must do that only "
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
                while True:  # requests to stop that came too late are not for the next run
                    self._control.get_nowait()
            self._running.release()

    def stop(self) -> None:
        """Ask it to stop, from any thread or a signal handler: the first time it drains, the second time it ends at once."""
        self._control.put(None)

    def _run(self, until_idle: bool) -> None:
        queue = self._queue = self.app.queue
        self._stops, self._is_draining = 0, False
        self._backlog = Backlog()
        self._reporter = Reporter(queue, self._control.put, self._backlog.__len__, self._capacity)
        self._accepted_of = self._reporter.accepted_of
        self._watch = Watch(self, queue, self.stop_grace)
        self._slots = [
            Slot(number, self._backlog, self._begin, self._finish, self._runner_for, self._keep_output)
            for number in range(self.concurrency)
        ]
        error: BaseException | None = None
        self._start_processes()
        self._log(
            "worker.started", "worker %s takes %s", self.name, ", ".join(self._tasks), types=list(self._tasks)
        )
        try:
            with services(self.app, queue) as finish, self._capturing():
                self._open_stream()
                self._reporter.start()
                self._watch.start()
                for slot in self._slots:
                    slot.thread.start()
                intake = threading.Thread(target=self._take_in, name="penstock-intake", daemon=True)
                intake.start()
                try:
                    error = self._wait(until_idle)
                    if until_idle and error is None and not self._stops:
                        finish()
                finally:
                    self._shut_down(intake)
        finally:
            self._end_processes()
        if error is not None:
            raise error

    def _wait(self, until_idle: bool) -> BaseException | None:
        """Wait for a reason to stop; return the error that is one."""
        pause = LOOK_SECONDS
        while True:
            try:
                error = self._control.get(timeout=pause if until_idle else None)
            except Empty:
                if self._is_idle():
                    return None
                pause = min(pause * 1.2, 0.25) if self._is_quiet() else LOOK_SECONDS
                continue
            self._stops += 1
            return error

    def _shut_down(self, intake: threading.Thread) -> None:
        end_at = time.monotonic() + self.grace
        self._is_draining = True
        running = len(self.runs())
        self._log(
            "worker.stopping",
            "worker %s stops; %d jobs may finish within %g s",
            self.name,
            running,
            self.grace,
            running=running,
        )
        if self._stream is not None:
            self._stream.close()
        intake.join()
        self._give_back(self._backlog.withdraw(), "the worker was stopped before the job was begun")
        self._backlog.end(len(self._slots))
        while self.runs() and self._stops < 2 and time.monotonic() < end_at:
            try:
                self._control.get(timeout=min(LOOK_SECONDS, max(0.0, end_at - time.monotonic())))
                self._stops += 1
            except Empty:
                continue
        self._hand_back_running()
        self._watch.stop()
        if not self._reporter.stop(FLUSH_SECONDS):
            logger.error("outcomes are left unreported; their jobs come back when this process is gone")
        for slot in self._slots:
            if slot.run is None:
                slot.thread.join(1.0)
        self._log("worker.stopped", "worker %s has stopped", self.name)

    def _log(self, event: str, text: str, *args: object, **fields: object) -> None:
        """Log something about the worker itself."""
        logger.info(text, *args, extra={"event": event, "worker": self.name, **fields})

    def _hand_back_running(self) -> None:
        for run in self.runs():
            run.ask_to_end(Reason.DRAINED)
            if self._isolation_of(run.task) == "thread" and run.settle():
                # Its thread cannot be ended: what it reports later is refused, because the attempt is over.
                self._reporter.put(run.job, Released("the worker was stopped while the job ran"))
        # Processes are killed, and handed back when they are gone: nobody else may begin before.
        end_at = time.monotonic() + self.stop_grace + KILL_SECONDS
        while self.runs() and time.monotonic() < end_at:
            time.sleep(LOOK_SECONDS)

    def _start_processes(self) -> None:
        """Start the template before the first claim, so that no job waits for what cannot be imported."""
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
            self._keep_output,
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
        """Collect what handlers print, if any of them runs on a thread of this process."""
        is_needed = any(self._isolation_of(task) == "thread" for task in self._tasks.values())
        return capturing() if is_needed else contextlib.nullcontext()

    def _keep_output(self, run: Run, text: str) -> None:
        """Store what a job printed, unless it lost the job."""
        try:
            self._queue.save_output(run.job.id, text, attempt=run.job.attempt)
        except InvalidTransitionError:
            pass  # another attempt has the job by now
        except PenstockError as error:
            logger.warning("what job %s printed was not stored: %s", run.job.id, error)

    # -- the way of a job ---------------------------------------------------------------------------------------

    def _open_stream(self) -> None:
        self._stream = self.app.queue.stream_jobs(
            self.name, self.tags, self._capacity, types=tuple(self._tasks)
        )

    def _take_in(self) -> None:
        """Put what the stream brings into the backlog; open it anew when the store was away for long."""
        while not self._is_draining:
            stream = self._stream
            assert stream is not None  # noqa: S101  # opened before this thread was started
            try:
                for batch in stream:
                    self._taken += len(batch)
                    self._backlog.put(batch)
            except BackendError as error:
                if not error.retryable:
                    self._control.put(error)
                    return
                logger.warning("the store was away for too long; it is tried again: %s", error)
                if not self._reopen_stream():
                    return
            except BaseException as error:  # whatever ended it, the worker must know
                self._control.put(error)
                return
            else:
                if not self._is_draining:  # somebody closed the queue under us
                    self._control.put(QueueClosedError("the queue of the worker was closed"))
                return

    def _reopen_stream(self) -> bool:
        while not self._is_draining:
            time.sleep(REOPEN_SECONDS)
            try:
                self._open_stream()
            except BackendError as error:
                logger.warning("the store is still away: %s", error)
            except Exception as error:
                self._control.put(error)
                return False
            else:
                return True
        return False

    def _begin(self, job: Job) -> Run | None:
        """Make a run of a job that a slot has taken; None if there is nothing to run."""
        if self._watch.cancelled and job.id in self._watch.cancelled:
            self._watch.cancelled.discard(job.id)
            self._reporter.put(job, Cancelled())
            return None
        task = self._tasks.get(job.type)
        if task is None:
            self._reporter.put(
                job, invalid(f"there is no handler for the type {shown(job.type)}", "no_handler")
            )
            return None
        if logger.isEnabledFor(logging.DEBUG):
            _log_job(
                logging.DEBUG, "job.started", job, "%s %s, attempt %d, begins", job.type, job.id, job.attempt
            )
        return Run(job, task, task.seconds_for(job), self._queue)

    def _runner_for(self, task: Task[Any, Any]) -> Runner | None:
        """Return what runs a task's jobs elsewhere; None is the slot's own thread."""
        return self._processes if self._isolation_of(task) == "process" else None

    def _finish(self, run: Run, outcome: Outcome) -> None:
        """Hand an outcome to the reporter, unless the attempt was given up before."""
        if run.has_news:
            self._flush(run)
        if not run.settle():
            self._came_back(run)
            return
        if run.reason is Reason.LOST:
            _log_job(
                logging.WARNING,
                "job.lost",
                run.job,
                "what attempt %d of job %s did is dropped: it had lost the job",
                run.job.attempt,
                run.job.id,
            )
            return
        outcome = judged(run, outcome, self._queue.backend.max_payload)
        self._reporter.put(run.job, outcome)
        if logger.isEnabledFor(logging.INFO):
            _log_end(run, outcome)

    def _flush(self, run: Run) -> None:
        try:
            run.flush()
        except Exception as error:
            logger.warning("the last progress of job %s was not stored: %s", run.job.id, error)

    # -- what the watch asks for --------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Return the attempts that are under way; those that were given up are not."""
        runs = [run for slot in self._slots if (run := slot.run) is not None and not run.is_settled]
        if self._processes is not None and self._processes.leaving:
            runs += [run for run in tuple(self._processes.leaving) if not run.is_settled and run not in runs]
        return runs

    def overdue(self, run: Run) -> None:
        """Give up an attempt on a thread that did not end; a process is ended by its runner."""
        if self._isolation_of(run.task) == "process" or not run.settle():
            return
        for slot in self._slots:
            if slot.run is run:
                slot.is_stuck = True
                if slot.printed:
                    self._keep_output(run, slot.printed)
        self._resize()
        if run.reason is Reason.CANCELLED:
            self._reporter.put(run.job, Cancelled())
        elif run.reason is not Reason.LOST:
            self._reporter.put(run.job, timed_out(run))
        _log_job(
            logging.ERROR,
            "job.stuck",
            run.job,
            "job %s (%s) does not end (%s): its thread is stuck and its slot stays closed until it returns",
            run.job.id,
            run.job.type,
            run.reason,
        )

    def _came_back(self, run: Run) -> None:
        """Open the slot of a stuck thread that has returned after all."""
        for slot in self._slots:
            if slot.is_stuck and slot.run is None and slot.thread is threading.current_thread():
                slot.is_stuck = False
                _log_job(
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
        stream = self._stream
        if stream is not None and not self._is_draining:
            is_open = self.concurrency > self.stuck
            stream.resize(self._capacity - self.stuck if is_open else 0)

    def tidy(self) -> None:
        """Give others a chance at prefetched jobs that wait for too long, and at all if every slot is stuck."""
        if not len(self._backlog):
            self._watch.cancelled.clear()
            return
        if self._is_draining:
            return
        is_shut = self.stuck == self.concurrency
        late = self._backlog.withdraw(None if is_shut else PREFETCH_SECONDS)
        if late:
            if not is_shut:
                # These jobs are not short, so taking more ahead does nobody good.
                self._capacity = self.concurrency
                self._resize()
            self._give_back(late, "the worker had no slot for the job")

    def _give_back(self, jobs: Sequence[Job], why: str) -> None:
        for job in jobs:
            self._reporter.put(job, Released(why))

    # -- until idle ---------------------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        return not len(self._backlog) and not self.runs() and self._reporter.is_idle

    def _is_idle(self) -> bool:
        """Whether no job of its types is ready, running or waiting for a retry, here or elsewhere."""
        before = self._activity()
        if not self._is_quiet():
            return False
        if self._queue.backend.has_work(tuple(self._tasks), self.tags):
            return False
        # What was taken or reported while the store was asked may have changed its answer.
        return self._is_quiet() and self._activity() == before

    def _activity(self) -> tuple[int, int, int]:
        return self._taken, self._reporter.accepted, self._reporter.refused


def _log_end(run: Run, outcome: Outcome) -> None:
    words = {Completed: "completed", Failed: "failed", Cancelled: "cancelled", Released: "handed back"}
    if not logger.isEnabledFor(logging.INFO):
        return
    seconds = time.monotonic() - run.started_at
    facts: dict[str, object] = {"seconds": round(seconds, 6)}
    detail = _shown_result(outcome)
    if isinstance(outcome, Failed):
        detail = f" ({outcome.category}): {outcome.message.partition(chr(10))[0][:200]}"
        facts |= {"category": str(outcome.category), "code": outcome.code}
    _log_job(
        logging.INFO,
        _EVENTS[type(outcome)],
        run.job,
        "%s %s, attempt %d, %s after %.3f s%s",
        run.job.type,
        run.job.id,
        run.job.attempt,
        words[type(outcome)],
        seconds,
        detail,
        **facts,
    )


_EVENTS: Final = {
    Completed: "job.completed",
    Failed: "job.failed",
    Cancelled: "job.cancelled",
    Released: "job.released",
}


def _log_job(level: int, event: str, job: Job, text: str, *args: object, **fields: object) -> None:
    """Log something about a job; `penstock.logs.EVENTS` says what each event means."""
    logger.log(level, text, *args, extra={"event": event, **job_fields(job), **fields})


def _shown_result(outcome: Outcome) -> str:
    """Return a result as a log shows it: short, and not at all if there is none or it says nothing."""
    if not isinstance(outcome, Completed) or outcome.result in (None, b"", b"null"):
        return ""
    text = (outcome.result or b"")[: SHOWN_RESULT + 1].decode(errors="replace")
    return f": {text if len(text) <= SHOWN_RESULT else text[:SHOWN_RESULT] + '…'}"


def checked_whole(field: str, value: object, least: int, most: int) -> int:
    """Return a whole number within limits, or refuse it."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgumentError(
            f"{field} must be a whole number from {least} to {most}, got {shown(value)}",
            field=field,
            value=value,
        )
    return value


def checked_texts(field: str, value: Sequence[str]) -> tuple[str, ...]:
    """Return a sequence of texts; refuse what is one text, or holds something else."""
    if isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise InvalidArgumentError(
            f"{field} must be a sequence of strings, got {shown(value)}", field=field, value=value
        )
    return tuple(value)


def checked_tasks(app: App, types: Sequence[str] | None, isolation: Isolation) -> dict[str, Task[..., Any]]:
    """Return the tasks of these types, or of all; refuse those that cannot be run the way they are to be run."""
    if isolation not in ISOLATIONS:
        raise InvalidArgumentError(
            f"isolation must be one of {', '.join(ISOLATIONS)}, got {shown(isolation)}",
            field="isolation",
            value=isolation,
        )
    wanted = _wanted(app, types)
    for task in wanted.values():
        refused = [name for name in task.limits if name != "output"]
        if (task.isolation or isolation) == "thread" and refused:
            raise InvalidArgumentError(
                f"{task.type} has limits ({', '.join(refused)}), which only hold for a process of its own: "
                'run it with isolation="process", or drop them',
                field="isolation",
                value="thread",
            )
    return wanted


def _wanted(app: App, types: Sequence[str] | None) -> dict[str, Task[..., Any]]:
    if types is None:
        wanted = dict(app.tasks)
    else:
        names = checked_texts("types", types)
        unknown = [name for name in names if name not in app.tasks]
        if unknown:
            raise InvalidArgumentError(
                f"the app has no handler for {', '.join(map(shown, unknown))} (it has {', '.join(app.tasks) or 'none'})",
                field="types",
                value=unknown,
            )
        wanted = {name: app.tasks[name] for name in names}
    if types is not None and not wanted:
        raise InvalidArgumentError(
            "types is empty: name at least one, or leave it out for all", field="types", value=types
        )
    if not wanted:
        raise InvalidArgumentError(
            "the app has no handlers: decorate a function with @app.job, in a module that is imported",
            field="app",
        )
    return wanted
