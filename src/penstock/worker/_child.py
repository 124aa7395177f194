"""In the process of a job: run the handler, and talk to the worker over the pipe. Imported by the template, before any job.

There is no store here. Whatever needs one is a request to the worker, which has it.
"""

from __future__ import annotations

import _socket  # and not `socket`, which may be patched: then this would start an event loop
import importlib
import logging
import os
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock._client import set_child_client
from penstock._execution import execute
from penstock._lazy import asyncio
from penstock._outcome import Completed, Failed, invalid, too_large
from penstock._process.channel import Channel, Interrupted, ignore_termination, raise_when_terminated
from penstock._process.messages import Failure, Log, Progress, Result, frame
from penstock._tracing import flush, is_on, stamp
from penstock.app import App
from penstock.context import JobContext
from penstock.context import logger as job_logger
from penstock.errors import InvalidArgumentError, shown
from penstock.job import Job
from penstock.logs import STANDARD
from penstock.policy import FailureCategory
from penstock.task import Submission
from penstock.worker import _protocol as protocol

__all__ = ["prepare", "run_job"]

REHEARSALS = 20
LONGEST_LOG = 10_000
LONGEST_FIELD = 1_000


def run_job(app: App, payload: bytes, channel: Channel) -> None:
    """Run one job to its end. The entry of a worker's template."""
    if not payload:  # the worker asks what it may expect
        channel.send(Result(protocol.encode(sorted(app.tasks))))
        return
    order = protocol.decode_order(payload)
    job, pid = order.job, os.getpid()
    attempt = _Attempt(channel, order.seconds)
    set_child_client(_PipeClient(channel))
    _send_logs_through(channel, order.log_level)
    task = app.tasks.get(job.type)
    outcome: Completed | Failed
    if task is None:
        outcome = invalid(f"there is no handler for the type {shown(job.type)}", "no_handler")
    else:
        raise_when_terminated()
        try:
            outcome = execute(task, job, lambda: JobContext(job, attempt), app.middlewares, attempt.run_async)
        except Interrupted:
            outcome = Failed(message="terminated", category=FailureCategory.SYSTEM, code="terminated")
        if (
            os.getpid() != pid
        ):  # a child that the handler forked has come out of it too; it has nothing to say
            os._exit(0)
        ignore_termination()  # what is left is to say how it ended
    _tell(channel, outcome, attempt, order.max_payload)
    flush()


def _tell(channel: Channel, outcome: Completed | Failed, attempt: _Attempt, max_payload: int) -> None:
    if isinstance(outcome, Completed):
        if attempt.was_told:
            channel.send(
                Failure("the handler stopped early", FailureCategory.CANCELLED.value, "stopped_early")
            )
            return
        if outcome.result is None or len(outcome.result) <= max_payload:
            channel.send(Result(outcome.result))
            return
        outcome = too_large(len(outcome.result), max_payload)
    pause = None if outcome.retry_after is None else outcome.retry_after.total_seconds()
    channel.send(Failure(outcome.message, outcome.category.value, outcome.code, pause))


class _Attempt:
    """The attempt, as the handler's context sees it from inside the job's process."""

    def __init__(self, channel: Channel, seconds: float) -> None:
        self._channel = channel
        self._ends_at = time.monotonic() + seconds
        self.was_told = False

    @property
    def is_cancelled(self) -> bool:
        self.was_told = self.was_told or self._channel.is_cancelled
        return self.was_told

    @property
    def deadline(self) -> datetime | None:
        return datetime.now(UTC) + timedelta(seconds=self._ends_at - time.monotonic())

    def progress(self, percent: int, description: str | None) -> None:
        self._channel.send(Progress(percent, description))

    def save_checkpoint(self, data: bytes) -> None:
        _ask(self._channel, "checkpoint", data)

    def spawn(self, submission: Submission) -> str:
        with stamp([submission.type]) as trace:
            return _ask(self._channel, "spawn", protocol.encode([_marked(submission, trace)])).decode()

    def run_async(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine that is cancelled when the worker says that the job should end."""
        channel = self._channel

        async def watched() -> Any:
            loop, current = asyncio.get_running_loop(), asyncio.current_task()
            assert current is not None  # noqa: S101  # this is a task

            def look() -> None:
                if channel.is_cancelled:
                    loop.remove_reader(channel.descriptor)
                    current.cancel()

            loop.add_reader(channel.descriptor, look)
            try:
                return await coroutine
            finally:
                loop.remove_reader(channel.descriptor)

        return asyncio.run(watched())


class _PipeClient:
    """What tasks and handles talk to in the process of a job: its worker."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def submit(self, submissions: Sequence[Submission]) -> list[str]:
        with stamp([each.type for each in submissions]) as trace:
            marked = [_marked(each, trace) for each in submissions]
            return protocol.decode_ids(_ask(self._channel, "submit", protocol.encode(marked)))

    def get_job(self, job_id: str) -> Job:
        return protocol.decode_job(_ask(self._channel, "get_job", job_id.encode()))

    def get_output(self, job_id: str) -> str:
        return _ask(self._channel, "get_output", job_id.encode()).decode()

    def wait(self, job_id: str, timeout: float | None) -> Job:
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left = protocol.WAIT_SECONDS
            if give_up_at is not None:
                left = max(0.0, min(left, give_up_at - time.monotonic()))
            answer = _ask(self._channel, "wait", protocol.encode(protocol.WaitFor(job_id, left)))
            if answer:
                return protocol.decode_job(answer)
            if give_up_at is not None and time.monotonic() >= give_up_at:
                raise TimeoutError(f"job {job_id} has not ended within {timeout:g} s")

    async def wait_async(self, job_id: str) -> Job:
        return await asyncio.to_thread(self.wait, job_id, None)

    def cancel(self, job_id: str) -> bool:
        return bool(_ask(self._channel, "cancel", job_id.encode()))


def _marked(submission: Submission, trace: str | None) -> Submission:
    """Return a submission that remembers the trace of this process; the worker's is another."""
    return submission if trace is None else msgspec.structs.replace(submission, trace=trace)


def _ask(channel: Channel, verb: str, body: bytes) -> bytes:
    """Ask the worker; raises what the verb raised there."""
    try:
        reply = protocol.decode_reply(channel.request(verb, body))
    except OSError as error:
        raise InvalidArgumentError(f"the worker is gone: {error}", field="worker") from error
    if reply.error:
        raise protocol.error_of(reply)
    return reply.body


class _PipeHandler(logging.Handler):
    """Sends records to the worker's log: those of `context.log`, and all others if the app has no logging of its own."""

    #: Set in the process of a job; the template, which has no job, has nobody to send to.
    channel: Channel | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.channel is not None:
                self.channel.send(_log(record))
        except Exception:
            self.handleError(record)


def _log(record: logging.LogRecord) -> Log:
    trace = ""
    if record.exc_info:
        trace = logging.Formatter().formatException(record.exc_info)
    fields = {
        name: value if value is None or isinstance(value, bool | int | float) else str(value)[:LONGEST_FIELD]
        for name, value in record.__dict__.items()
        if name not in STANDARD or name == "event"
    }
    return Log(
        record.levelno,
        _clean(record.getMessage()[:LONGEST_LOG]),
        record.name,
        record.created,
        _clean(trace[-LONGEST_LOG:]),
        {_clean(name): _clean(value) if isinstance(value, str) else value for name, value in fields.items()},
    )


def _clean(text: str) -> str:
    """Return a text that can cross the pipe, which half of a surrogate cannot."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_logs: _PipeHandler | None = None


def _send_logs_through(channel: Channel, level: int) -> None:
    if _logs is None:
        _prepare_logs()
    assert _logs is not None  # noqa: S101  # just made
    _logs.channel = channel
    if _logs in logging.root.handlers and logging.root.level != level:
        logging.root.setLevel(level)


def _prepare_logs() -> None:
    # In the template, which has one thread, so that no lock is held at a fork; jobs need not touch logging then.
    global _logs  # noqa: PLW0603  # one process, one job
    _logs = _PipeHandler()
    job_logger.handlers[:] = [_logs]
    job_logger.propagate = False
    if not logging.root.handlers:
        logging.root.addHandler(_logs)
    if job_logger.level == logging.NOTSET:
        job_logger.setLevel(logging.INFO)


def prepare(app: App) -> None:
    """Do in the template what jobs of this app would do, and not what they would not: each fork pays for it."""
    _prepare_logs()
    if any(task.is_async for task in app.tasks.values()):
        importlib.import_module("asyncio")
    if not is_on():  # a rehearsal is nothing that anybody should see
        _rehearse()


def _rehearse() -> None:
    """Run an empty job a few times.

    The interpreter adapts code that is run repeatedly, and writes what it finds out into memory; so does each job's
    process for itself, page by page, unless it finds it there.
    """
    app = App()
    app.job(type="rehearsal")(_nothing)
    order = protocol.encode_order(
        Job(id="rehearsal", type="rehearsal", payload=b'{"number": 1}', attempt=1), 1.0, 1000
    )
    for _ in range(REHEARSALS):
        ours, theirs = _socket.socketpair()
        try:
            ours.sendall(frame(order))
            channel = Channel(theirs.fileno())
            run_job(app, channel.body(), channel)
        finally:
            ours.close()
            theirs.close()
    set_child_client(None)
    if _logs is not None:
        _logs.channel = None


def _nothing(number: int) -> None:
    """Be the job of a rehearsal."""
