"""The child process of a job: runs the handler and sends requests to the worker over a pipe. The template imports it.

There is no store here. Everything that needs one is a request to the worker.
"""

from __future__ import annotations

import _socket  # and not `socket`, which may be patched: then this would start an event loop
import contextlib
import importlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec

from penstock._lazy import asyncio
from penstock.app import App
from penstock.app.client import set_child_client
from penstock.app.context import JobContext
from penstock.app.context import logger as job_logger
from penstock.app.execution import execute
from penstock.errors import InvalidArgumentError, PenstockError, shown
from penstock.isolation.channel import Channel, Interrupted, ignore_termination, raise_when_terminated
from penstock.isolation.messages import Failure, Log, Progress, Result, frame
from penstock.job import Job
from penstock.logs import STANDARD
from penstock.outcome import Completed, Failed, invalid, too_large
from penstock.policy import FailureCategory
from penstock.tracing import flush, is_on, stamp
from penstock.worker import _protocol as protocol

__all__ = ["prepare", "run_job"]

REHEARSALS = 20
MAX_LOG = 10_000
MAX_FIELD = 1_000


def run_job(app: App, payload: bytes, channel: Channel) -> None:
    """Run one job to its end. The entry of a worker's template."""
    if not payload:  # the worker asks which types there are
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
        if os.getpid() != pid:  # a child that the handler forked, which has returned too: it reports nothing
            os._exit(0)
        ignore_termination()  # only the report is left
    _report(channel, outcome, attempt, order.max_payload)
    flush()


def _report(channel: Channel, outcome: Completed | Failed, attempt: _Attempt, max_payload: int) -> None:
    if isinstance(outcome, Completed):
        if attempt.saw_request:
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
        self.saw_request = False

    @property
    def is_cancelled(self) -> bool:
        self.saw_request = self.saw_request or self._channel.is_cancelled
        return self.saw_request

    @property
    def deadline(self) -> datetime | None:
        return datetime.now(UTC) + timedelta(seconds=self._ends_at - time.monotonic())

    def progress(self, percent: int, description: str | None) -> None:
        self._channel.send(Progress(percent, description))

    def save_checkpoint(self, data: bytes) -> None:
        _ask(self._channel, "checkpoint", data)

    def spawn(self, job: Job, delay: timedelta | None) -> str:
        return _submitted(self._channel, "spawn", [job], delay)[0]

    def run_async(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine that is cancelled when the worker asks the job to end."""
        channel = self._channel

        async def watched() -> Any:
            loop, current = asyncio.get_running_loop(), asyncio.current_task()
            assert current is not None  # noqa: S101  # this is a task

            def check() -> None:
                if channel.is_cancelled:
                    loop.remove_reader(channel.descriptor)
                    current.cancel()

            loop.add_reader(channel.descriptor, check)
            try:
                return await coroutine
            finally:
                loop.remove_reader(channel.descriptor)

        return asyncio.run(watched())


class _PipeClient:
    """The client of tasks and handles in a child process: its worker."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def submit(self, jobs: Sequence[Job], delay: timedelta | None = None) -> list[str]:
        return _submitted(self._channel, "submit", jobs, delay)

    def get_job(self, job_id: str) -> Job:
        return protocol.decode_job(_ask(self._channel, "get_job", job_id.encode()))

    def get_output(self, job_id: str) -> str:
        return _ask(self._channel, "get_output", job_id.encode()).decode()

    def wait(self, job_id: str, timeout: float | None) -> Job:
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left = protocol.WAIT_SECONDS
            if ends_at is not None:
                left = max(0.0, min(left, ends_at - time.monotonic()))
            answer = _ask(self._channel, "wait", protocol.encode(protocol.WaitFor(job_id, left)))
            if answer:
                return protocol.decode_job(answer)
            if ends_at is not None and time.monotonic() >= ends_at:
                raise TimeoutError(
                    f"job {job_id} has not ended within {timeout:g} s; it goes on{self.explain(job_id)}"
                )

    async def wait_async(self, job_id: str) -> Job:
        return await asyncio.to_thread(self.wait, job_id, None)

    def cancel(self, job_id: str) -> bool:
        return bool(_ask(self._channel, "cancel", job_id.encode()))

    def watch(self, job_ids: Sequence[str], wake: Callable[[], None]) -> _PipeWatch:  # noqa: ARG002  # it polls
        return _PipeWatch(self._channel, job_ids)

    def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        found: dict[str, Job] = {}
        wanted = list(job_ids)
        while wanted:
            jobs = protocol.decode_jobs(_ask(self._channel, "get_jobs", protocol.encode(wanted)))
            if not jobs:
                break
            found |= {job.id: job for job in jobs}
            wanted = wanted[wanted.index(jobs[-1].id) + 1 :]
        return found

    def explain(self, job_id: str) -> str:
        return _ask(self._channel, "explain", job_id.encode()).decode()


class _PipeWatch:
    """Several jobs that are waited for over the pipe, by repeated requests to the worker."""

    is_polled = True

    def __init__(self, channel: Channel, job_ids: Sequence[str]) -> None:
        self._channel = channel
        self._unfinished = dict.fromkeys(job_ids)

    def take(self) -> list[str]:
        if not self._unfinished:
            return []
        request = protocol.WaitForAny(list(self._unfinished), protocol.WAIT_SECONDS)
        ended = protocol.decode_ids(_ask(self._channel, "wait_any", protocol.encode(request)))
        for job_id in ended:
            self._unfinished.pop(job_id, None)
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._unfinished:  # the worker lends the slot of a job that waits
            with contextlib.suppress(PenstockError):
                _ask(self._channel, "wait_over", protocol.encode(list(self._unfinished)))


def _submitted(channel: Channel, verb: str, jobs: Sequence[Job], delay: timedelta | None) -> list[str]:
    """Request that the worker stores jobs with the trace of this process; return their ids."""
    with stamp([job.type for job in jobs]) as trace:
        marked = [job if trace is None else msgspec.structs.replace(job, trace=trace) for job in jobs]
        body = protocol.encode(protocol.Submission(marked, delay))
        return protocol.decode_ids(_ask(channel, verb, body))


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

    #: Set in a child process; the template process has no job and sends nothing.
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
        name: value if value is None or isinstance(value, bool | int | float) else str(value)[:MAX_FIELD]
        for name, value in record.__dict__.items()
        if name not in STANDARD or name == "event"
    }
    return Log(
        record.levelno,
        _clean(record.getMessage()[:MAX_LOG]),
        record.name,
        record.created,
        _clean(trace[-MAX_LOG:]),
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
    """Do in the template process what jobs of this app would do, and nothing else: each fork pays for it."""
    _prepare_logs()
    if any(task.is_async for task in app.tasks.values()):
        importlib.import_module("asyncio")
    if not is_on():  # a rehearsal must not be traced
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
    """Do nothing: the job of a rehearsal."""
