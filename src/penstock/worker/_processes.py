"""Runs attempts in child processes.

A slot's thread launches the process and then waits: for requests of the job, which it answers, and for its end. Progress
is noted at once, on the supervisor's thread.

A process that has reported its outcome only has to exit. The slot does not wait for that: it takes the next job, and the
outcome is passed on when the process is gone. At most one such process per slot.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final

from penstock.app.client import QueueClient
from penstock.app.task import Task
from penstock.errors import InvalidArgumentError, PenstockError, ProcessControlError
from penstock.isolation import (
    Answer,
    Description,
    Ending,
    Failure,
    Grace,
    JobProcess,
    Limits,
    Log,
    Message,
    Progress,
    Request,
    Result,
    Setup,
    Supervisor,
)
from penstock.job import Job
from penstock.logs import job_fields
from penstock.outcome import Completed, Failed, Outcome, Released
from penstock.policy import FailureCategory
from penstock.worker import _protocol as protocol
from penstock.worker._lending import PipeLender, RunLender
from penstock.worker._requests import Requests
from penstock.worker.origin import WAY_OUT, Origin
from penstock.worker.run import Reason, Run
from penstock.worker.slots import timed_out

__all__ = ["ProcessRunner", "limits_of"]

logger = logging.getLogger("penstock.worker")

ENTRY: Final = "penstock.worker._child:run_job"
PREPARE: Final = "penstock.worker._child:prepare"
CHECK_SECONDS: Final = 60.0
#: How much of what a crashed job printed is reported with its failure.
MAX_REPORTED_OUTPUT: Final = 8_000
#: In the inbox of a slot: the job has reported its outcome.
REPORTED: Final = Request(-1, "reported")
#: In the inbox of a slot: the job has printed something.
PRINTED: Final = Request(-2, "printed")
NO_GRACE: Final = Grace(notice=0, term=0)
#: For a job of which another attempt may be running by now.
SHORT_GRACE: Final = Grace(notice=0, term=1)

_CODES: Final = {"memory": "out_of_memory", "processes": "too_many_processes"}


@functools.lru_cache(maxsize=1000)
def limits_of(task: Task[..., Any], seconds: float | None = None) -> Limits:
    """Return the limits of a task's jobs.

    Raises:
        InvalidArgumentError: a limit is wrong.
    """
    return Limits(**task.limits, seconds=seconds)


class ProcessRunner:
    """Runs attempts in processes forked from a template that has imported the app."""

    def __init__(
        self,
        origin: Origin,
        client: QueueClient,
        stop_grace: float,
        slots: int,
        on_output: Callable[[Run, str], None],
        on_end: Callable[[Run, Outcome], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._supervisor = Supervisor(
            Setup(
                entry=ENTRY, target=origin.target, prepare=PREPARE, main=origin.main, modules=origin.modules
            ),
            spares=min(slots, os.cpu_count() or 1),
            on_hazards=_warn,
        )
        self._requests = Requests(client)
        self._max_payload = client.queue.backend.options.max_payload
        self._grace = Grace(notice=stop_grace / 2, term=stop_grace / 2)
        self._slots = slots
        self._on_output = on_output
        self._on_end = on_end
        self._on_fatal = on_fatal
        #: Attempts that have reported their outcome, and whose process is exiting.
        self.exiting: set[Run] = set()

    def start(self, types: list[str]) -> None:
        """Start the template process and check that the app it has imported can run these types.

        Raises:
            ProcessControlError: it cannot import the app.
            InvalidArgumentError: the app that it imports has other tasks.
        """
        try:
            self._supervisor.start()
        except ProcessControlError as error:
            raise ProcessControlError(
                f"{str(error).rstrip()}\nA child process imports the app again. {WAY_OUT}"
            ) from None
        conversation = _Conversation(None)
        process = self._supervisor.launch(b"", conversation)
        if process.wait(CHECK_SECONDS) is None:
            process.kill()
        report = conversation.report
        if not isinstance(report, Result) or report.data is None:
            raise ProcessControlError(
                f"a child process cannot be started: {process.output.text()[-MAX_REPORTED_OUTPUT:]}"
            )
        missing = sorted(set(types) - set(protocol.decode_ids(report.data)))
        if missing:
            raise InvalidArgumentError(
                f"the app as imported by a child process has no handler for {', '.join(missing)}: they are defined "
                'only after the import, or in a module that it does not import. Use isolation="thread", or define them '
                "at the top level of a module",
                field="isolation",
                value="process",
            )

    def run(self, run: Run) -> Outcome | None:
        conversation = _Conversation(run)
        if isinstance(run.lender, RunLender):
            run.lender = PipeLender(run.lender)
        limits = limits_of(run.task, run.seconds)
        payload = protocol.encode_order(run.job, run.seconds, self._max_payload, logging.root.level)
        try:
            process = self._supervisor.launch(payload, conversation, limits=limits, grace=self._grace)
        except ProcessControlError as error:
            self._on_fatal(error)  # no job can be started any more: this one is released for another worker
            return Released(f"its process could not be started: {error}")
        run.interruptible(lambda: self._end(run, process))
        run.store_output = lambda: conversation.request_output(process)
        try:
            while (request := conversation.inbox.get()) is not None:
                if request is PRINTED:
                    # Here, because only one thread may store it: otherwise an older output could be stored last.
                    self._store_output(run, conversation, process)
                elif request is not REPORTED:
                    self._reply(run, request, process)
                elif self._is_quick(run, process):
                    self.exiting.add(run)
                    if conversation.detach(lambda: self._has_exited(run, conversation, process)):
                        return None
                    self.exiting.discard(run)
        except (
            BaseException
        ):  # a defect of ours; whatever is reported of this attempt, its code must have ended
            process.kill()
            process.wait(CHECK_SECONDS)
            raise
        finally:
            if isinstance(run.lender, PipeLender):
                run.lender.close()
        return self._close(run, conversation, process)

    def _is_quick(self, run: Run, process: JobProcess) -> bool:
        """Whether nothing of an attempt is left to be stored but its outcome."""
        return not process.output.total and not run.has_progress and len(self.exiting) < self._slots

    def _has_exited(self, run: Run, conversation: _Conversation, process: JobProcess) -> None:
        """Pass on the outcome of an attempt whose slot runs another one. Called on the supervisor's thread, which must not wait."""

        def report() -> None:
            self._on_end(run, self._close(run, conversation, process))
            self.exiting.discard(run)

        if process.output.total or run.has_progress:  # from something else than the handler, meanwhile
            # Not a service: one call to the store, seldom, which this thread must not wait for.
            threading.Thread(target=report, name="penstock-exiting", daemon=True).start()
        else:
            report()

    def _close(self, run: Run, conversation: _Conversation, process: JobProcess) -> Outcome:
        run.interruptible(None)
        run.store_output = None
        self._store_output(run, conversation, process)
        return _outcome(run, conversation.report, conversation.ending, process)

    def _store_output(self, run: Run, conversation: _Conversation, process: JobProcess) -> None:
        """Store what was printed, if there is more of it than before."""
        total = process.output.total
        if total != conversation.stored:
            conversation.stored = total
            self._on_output(run, process.output.text())
        conversation.is_requested = False

    def close(self) -> None:
        self._supervisor.close()

    def _end(self, run: Run, process: JobProcess) -> None:
        """End a process because of `run.reason`."""
        grace = {Reason.DRAINED: NO_GRACE, Reason.LOST: SHORT_GRACE}.get(
            run.reason or Reason.LOST, self._grace
        )
        process.end(grace, reason=str(run.reason))

    def _reply(self, run: Run, request: Request, process: JobProcess) -> None:
        """Answer a request of a job."""
        try:
            reply = protocol.Reply(self._requests.answer(run, request.verb, request.body))
        except (PenstockError, TimeoutError) as error:
            reply = protocol.reply_of(error)
        except Exception as error:  # the job asked for something impossible; its process must get the error
            logger.exception("a request of job %s failed", run.job.id)
            reply = protocol.reply_of(error)
        process.send(Answer(request.number, protocol.encode(reply)))


class _Conversation:
    """Receives the messages of one job's process; passes its requests and its end to the slot's thread."""

    def __init__(self, run: Run | None) -> None:
        self._run = run
        #: Requests; REPORTED when the job has reported its outcome, None when its process has ended.
        self.inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._on_end: Callable[[], None] | None = None
        #: The outcome that the job has reported.
        self.report: Result | Failure | None = None
        self.ending = Ending(status=None)
        self._has_ended = False
        #: How many bytes of output are stored, and whether the slot has been asked to store more.
        self.stored = 0
        self.is_requested = False

    def request_output(self, process: JobProcess) -> None:
        """Request that the slot stores the output, if there is new output."""
        if process.output.total != self.stored and not self.is_requested:
            self.is_requested = True
            self.inbox.put(PRINTED)

    def detach(self, on_end: Callable[[], None]) -> bool:
        """Call a function at the end, instead of adding None to the inbox; return False if it has ended already."""
        with self._lock:
            if not self._has_ended:
                self._on_end = on_end
            return not self._has_ended

    def received(self, process: JobProcess, message: Message) -> None:  # noqa: ARG002  # a Watcher's
        run = self._run
        if isinstance(message, Result | Failure):
            self.report = message
            self.inbox.put(REPORTED)
        elif run is None:
            return
        elif isinstance(message, Progress):
            run.progress(min(max(message.percent, 0), 100), message.description)
        elif isinstance(message, Description):
            run.progress(run.percent, message.text)
        elif isinstance(message, Request):
            self.inbox.put(message)
        elif isinstance(message, Log):
            _log(run.job, message)

    def ended(self, process: JobProcess, ending: Ending) -> None:  # noqa: ARG002  # a Watcher's
        with self._lock:
            self.ending = ending
            self._has_ended = True
            on_end = self._on_end
        if on_end is None:
            self.inbox.put(None)
        else:
            on_end()


def _log(job: Job, message: Log) -> None:
    """Log in this process what a job has logged in its own."""
    target = logging.getLogger(message.logger)
    if target.isEnabledFor(message.level):
        record = logging.makeLogRecord(
            {
                **message.fields,
                "name": message.logger,
                "levelno": message.level,
                "levelname": logging.getLevelName(message.level),
                "msg": "%s",
                "args": (message.text,),
                "created": message.created,
                "msecs": message.created % 1 * 1000,
                "exc_text": message.exception or None,
                "event": message.fields.get("event", "job.log"),
                **job_fields(job),
            }
        )
        target.handle(record)


def _outcome(run: Run, report: Result | Failure | None, ending: Ending, process: JobProcess) -> Outcome:
    """Return the outcome of an attempt, from its report and from how its process ended."""
    if ending.left:
        logger.warning("job %s left %d processes behind; they were killed", run.job.id, ending.left)
    if ending.reason == "time":
        run.request_end(Reason.TIMEOUT)
        return timed_out(run)
    if ending.reason in _CODES:
        return Failed(message=ending.cause, category=FailureCategory.SYSTEM, code=_CODES[ending.reason])
    if isinstance(report, Result):
        return Completed(report.data)
    if isinstance(report, Failure):
        pause = None if report.retry_after is None else timedelta(seconds=report.retry_after)
        return Failed(
            message=report.message,
            category=FailureCategory(report.category),
            code=report.code,
            retry_after=pause,
        )
    output = process.output.text()[-MAX_REPORTED_OUTPUT:].strip()
    return Failed(
        message=f"{ending.cause}\n\nOutput:\n{output}" if output else ending.cause,
        category=FailureCategory.SYSTEM,
        code="out_of_memory" if ending.memory_ran_out else "crashed",
    )


def _warn(hazards: Any) -> None:
    logger.warning(
        "importing the app leaves %s open, which a fork must not copy, so each job imports the app for itself, "
        "which is slower. Open it where it is used, not at import.",
        ", ".join(hazards),
    )
