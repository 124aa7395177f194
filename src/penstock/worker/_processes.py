"""Runs attempts in processes of their own, and serves what those ask for.

A slot's thread launches the process and then waits: for questions of the job, which it answers, and for its end. Progress
is taken down at once, on the supervisor's thread.

A process that has said how its job ended has nothing left to do but to go. The slot need not wait for that: it takes the
next job, and the outcome is reported when the process is gone. At most one such process a slot.
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

from penstock._client import QueueClient
from penstock._outcome import Completed, Failed, Outcome, Released
from penstock._process import (
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
from penstock.errors import InvalidArgumentError, PenstockError, ProcessControlError
from penstock.job import Job
from penstock.logs import job_fields
from penstock.policy import FailureCategory
from penstock.task import Task
from penstock.worker import _protocol as protocol
from penstock.worker._origin import WAY_OUT, Origin
from penstock.worker._run import Reason, Run
from penstock.worker._slots import timed_out

__all__ = ["ProcessRunner", "limits_of"]

logger = logging.getLogger("penstock.worker")

ENTRY: Final = "penstock.worker._child:run_job"
PREPARE: Final = "penstock.worker._child:prepare"
CHECK_SECONDS: Final = 60.0
#: How much of what a crashed job printed is told with its failure.
TOLD_OUTPUT: Final = 8_000
#: In the inbox of a slot: the job has said how it ended.
TOLD: Final = Request(-1, "told")
#: In the inbox of a slot: the job has printed something.
LOOK: Final = Request(-2, "look")
AT_ONCE: Final = Grace(notice=0, term=0)
#: For a job that somebody else may be running by now.
SOON: Final = Grace(notice=0, term=1)

_CODES: Final = {"memory": "out_of_memory", "processes": "too_many_processes"}


@functools.lru_cache(maxsize=1000)
def limits_of(task: Task[..., Any], seconds: float | None = None) -> Limits:
    """Return what a job of a task may use.

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
        self._client = client
        self._grace = Grace(notice=stop_grace / 2, term=stop_grace / 2)
        self._slots = slots
        self._on_output = on_output
        self._on_end = on_end
        self._on_fatal = on_fatal
        #: Attempts that have said how they ended, and whose process is on its way out.
        self.leaving: set[Run] = set()

    def start(self, types: list[str]) -> None:
        """Start the template and see that what it has imported can run these types.

        Raises:
            ProcessControlError: it cannot import the app.
            InvalidArgumentError: the app that it imports has other tasks.
        """
        try:
            self._supervisor.start()
        except ProcessControlError as error:
            raise ProcessControlError(
                f"{str(error).rstrip()}\nA process of a job imports the app again. {WAY_OUT}"
            ) from None
        conversation = _Conversation(None)
        process = self._supervisor.launch(b"", conversation)
        if process.wait(CHECK_SECONDS) is None:
            process.kill()
        told = conversation.told
        if not isinstance(told, Result) or told.data is None:
            raise ProcessControlError(
                f"a process of a job cannot be started: {process.output.text()[-TOLD_OUTPUT:]}"
            )
        missing = sorted(set(types) - set(protocol.decode_ids(told.data)))
        if missing:
            raise InvalidArgumentError(
                f"the app as imported by a process of a job has no handler for {', '.join(missing)}: they are defined "
                'only after the import, or in a module that it does not know. Use isolation="thread", or define them '
                "at the top level of a module",
                field="isolation",
                value="process",
            )

    def run(self, run: Run) -> Outcome | None:
        conversation = _Conversation(run)
        limits = limits_of(run.task, run.seconds)
        payload = protocol.encode_order(
            run.job, run.seconds, self._client.queue.backend.max_payload, logging.root.level
        )
        try:
            process = self._supervisor.launch(payload, conversation, limits=limits, grace=self._grace)
        except ProcessControlError as error:
            self._on_fatal(error)  # no job can be started any more, so this one is for another worker
            return Released(f"its process could not be started: {error}")
        run.interruptible(lambda: self._end(run, process))
        run.on_look = lambda: conversation.look(process)
        try:
            while (request := conversation.inbox.get()) is not None:
                if request is LOOK:
                    # Here, because only one thread may store it: else what came last could come first.
                    self._keep_output(run, conversation, process)
                elif request is not TOLD:
                    self._reply(run, request, process)
                elif self._is_quick(run, process):
                    self.leaving.add(run)
                    if conversation.leave(lambda: self._has_left(run, conversation, process)):
                        return None
                    self.leaving.discard(run)
        except (
            BaseException
        ):  # a fault of ours; whatever is reported of this attempt, its code must have ended
            process.kill()
            process.wait(CHECK_SECONDS)
            raise
        return self._close(run, conversation, process)

    def _is_quick(self, run: Run, process: JobProcess) -> bool:
        """Whether nothing of an attempt is left to be stored but its outcome."""
        return not process.output.total and not run.has_news and len(self.leaving) < self._slots

    def _has_left(self, run: Run, conversation: _Conversation, process: JobProcess) -> None:
        """Report an attempt whose slot is busy with another one. Called on the supervisor's thread, which must not wait."""

        def report() -> None:
            self._on_end(run, self._close(run, conversation, process))
            self.leaving.discard(run)

        if process.output.total or run.has_news:  # said by something else than the handler, meanwhile
            threading.Thread(target=report, name="penstock-leaving", daemon=True).start()
        else:
            report()

    def _close(self, run: Run, conversation: _Conversation, process: JobProcess) -> Outcome:
        run.interruptible(None)
        run.on_look = None
        self._keep_output(run, conversation, process)
        return _outcome(run, conversation.told, conversation.ending, process)

    def _keep_output(self, run: Run, conversation: _Conversation, process: JobProcess) -> None:
        """Store what was printed, if there is more of it than before."""
        total = process.output.total
        if total != conversation.kept:
            conversation.kept = total
            self._on_output(run, process.output.text())
        conversation.is_looking = False

    def close(self) -> None:
        self._supervisor.close()

    def _end(self, run: Run, process: JobProcess) -> None:
        """End a process because of `run.reason`."""
        grace = {Reason.DRAINED: AT_ONCE, Reason.LOST: SOON}.get(run.reason or Reason.LOST, self._grace)
        process.end(grace, reason=str(run.reason))

    def _reply(self, run: Run, request: Request, process: JobProcess) -> None:
        """Answer what a job asked."""
        try:
            reply = protocol.Reply(self._answer(run, request.verb, request.body))
        except (PenstockError, TimeoutError) as error:
            reply = protocol.reply_of(error)
        except Exception as error:  # the job asked for something impossible; its process must hear of it
            logger.exception("a request of job %s failed", run.job.id)
            reply = protocol.reply_of(error)
        process.send(Answer(request.number, protocol.encode(reply)))

    def _answer(self, run: Run, verb: str, body: bytes) -> bytes:
        client = self._client
        match verb:
            case "submit":
                return protocol.encode(client.submit(protocol.decode_submissions(body)))
            case "spawn":
                (submission,) = protocol.decode_submissions(body)
                return run.spawn(submission).encode()
            case "checkpoint":
                run.save_checkpoint(body)
                return b""
            case "get_job":
                return protocol.encode_job(client.get_job(body.decode()))
            case "get_output":
                return client.queue.get_output(body.decode()).encode()
            case "cancel":
                return b"1" if client.cancel(body.decode()) else b""
            case "wait":
                wish = protocol.decode_wait(body)
                try:
                    ended = client.wait(wish.job_id, min(wish.seconds, protocol.WAIT_SECONDS))
                    return protocol.encode_job(ended)
                except TimeoutError:
                    return b""
        raise InvalidArgumentError(f"a job cannot ask for {verb!r}", field="verb", value=verb)


class _Conversation:
    """Hears from one job's process; its requests and its end go to the slot's thread."""

    def __init__(self, run: Run | None) -> None:
        self._run = run
        #: Requests; TOLD when the job has said how it ended, None when its process has.
        self.inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._on_end: Callable[[], None] | None = None
        #: How the job itself says that it ended.
        self.told: Result | Failure | None = None
        self.ending = Ending(status=None)
        self._has_ended = False
        #: How many bytes of output are stored, and whether the slot has been asked to store more.
        self.kept = 0
        self.is_looking = False

    def look(self, process: JobProcess) -> None:
        """Have the slot store what was printed, if there is something new."""
        if process.output.total != self.kept and not self.is_looking:
            self.is_looking = True
            self.inbox.put(LOOK)

    def leave(self, on_end: Callable[[], None]) -> bool:
        """Have a function called at the end, instead of telling it to the inbox; False if it was told already."""
        with self._lock:
            if not self._has_ended:
                self._on_end = on_end
            return not self._has_ended

    def received(self, process: JobProcess, message: Message) -> None:  # noqa: ARG002  # a Watcher's
        run = self._run
        if isinstance(message, Result | Failure):
            self.told = message
            self.inbox.put(TOLD)
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
    """Log here what a job has logged there."""
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


def _outcome(run: Run, told: Result | Failure | None, ending: Ending, process: JobProcess) -> Outcome:
    """Return how an attempt ended, by what its process said and how it went."""
    if ending.left:
        logger.warning("job %s left %d processes behind; they were killed", run.job.id, ending.left)
    if ending.reason == "time":
        run.ask_to_end(Reason.TIMEOUT)
        return timed_out(run)
    if ending.reason in _CODES:
        return Failed(message=ending.cause, category=FailureCategory.SYSTEM, code=_CODES[ending.reason])
    if isinstance(told, Result):
        return Completed(told.data)
    if isinstance(told, Failure):
        pause = None if told.retry_after is None else timedelta(seconds=told.retry_after)
        return Failed(
            message=told.message, category=FailureCategory(told.category), code=told.code, retry_after=pause
        )
    output = process.output.text()[-TOLD_OUTPUT:].strip()
    return Failed(
        message=f"{ending.cause}\n\nOutput:\n{output}" if output else ending.cause,
        category=FailureCategory.SYSTEM,
        code="out_of_memory" if ending.memory_ran_out else "crashed",
    )


def _warn(hazards: Any) -> None:
    logger.warning(
        "importing the app leaves %s open; a fork must not copy that, so each job imports the app for itself, "
        "which is slower. Open it where it is used, not at import.",
        ", ".join(hazards),
    )
