"""The base classes of jobs, and the code of a job's process.

The framework sets status and description under the job's lock; hooks run before the status that they belong to becomes
final, so what they write is part of it:

    on_start, execute ── returned ──── on_end ── COMPLETED, 100, result
                    ├── stopped ────── on_stop ─ INTERRUPTED, "Stopped by user"
                    └── raised ─────── on_error ─ ERROR, the exception's text
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, Final

from penstock.errors import InvalidTransitionError, ProcessControlError, invalid
from penstock.isolation import (
    Channel,
    Ending,
    Interrupted,
    Limits,
    Supervisor,
)
from penstock.payloads.json import encode_json
from penstock.processes._running import STOPPED, RunningJob, own_supervisor
from penstock.processes._shared_state import SharedState
from penstock.processes.ipc import variables_of
from penstock.processes.types import (
    JobCommand,
    JobId,
    JobStatus,
    check_job_id,
    check_params,
    check_progress,
    check_seconds,
)

__all__ = ["QueueJobBase", "SimpleJob"]

STARTED: Final = "Started"
COMPLETED: Final = "Completed"
STOP_SECONDS: Final = 10.0
_MAX_TEXT: Final = 65536


class QueueJobBase(ABC):
    """A job of the process queue. Each run of an instance is a process of its own, forked from this one.

    Changes that a run makes to the instance stay in its process; the methods below report to the queue.

    Args:
        job_id: a UUID of version 4.
        params: the job's parameters; kept as `params`.
    """

    #: Whether a job that was stopped may be started again, from the beginning.
    supports_restart: ClassVar[bool] = False
    #: The limits of a job's process.
    limits: ClassVar[Limits] = Limits()

    def __init__(self, job_id: JobId, params: dict[str, Any] | None = None) -> None:
        self.job_id = check_job_id(job_id)
        self.params = check_params(params)
        self._state = SharedState()
        #: The variables shared with the job's process, as `penstock.processes.ipc` makes them.
        self.shared_state = variables_of(self._state)
        self._channel: Channel | None = None
        self._process: RunningJob | None = None
        self._is_interruptible = False
        self._has_looked = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.job_id}>"

    # -- what a job does ----------------------------------------------------------------------------------------

    @abstractmethod
    def execute(self) -> Any:
        """Do the work, in the job's process. The returned value, unless None, is the result."""
        raise NotImplementedError

    @abstractmethod
    def on_start(self) -> None:
        """Called first in the job's process, when the job is RUNNING."""
        raise NotImplementedError

    @abstractmethod
    def on_stop(self) -> None:
        """Called when the job was stopped, before it is INTERRUPTED."""
        raise NotImplementedError

    @abstractmethod
    def on_end(self) -> None:
        """Called when `execute` has returned, before the job is COMPLETED."""
        raise NotImplementedError

    @abstractmethod
    def on_error(self, exc: BaseException) -> None:
        """Called when something raised, before the job is in ERROR."""
        raise NotImplementedError

    # -- what a job says, in its process ------------------------------------------------------------------------

    def report_progress(self, percent: int, description: str | None = None) -> None:
        """Report progress from 0 to 100. A lower figure than before changes nothing; 100 is kept for the end.

        Raises:
            InvalidArgumentError: `percent` is not an integer from 0 to 100. Also a ValueError.
        """
        changes: dict[str, Any] = {"progress": min(check_progress(percent, "percent"), 99)}
        if description is not None:
            changes["description"] = _text(description)
        self._state.write(**changes)

    def set_description(self, text: str) -> None:
        """Report what the job is doing."""
        self._state.write(description=_text(text))

    def set_result(self, value: Any) -> None:
        """Store a result, whole or partial; it is kept however the job ends.

        Raises:
            InvalidArgumentError: it cannot be written as JSON.
        """
        encode_json(value, "result")
        self._state.write(result=value)

    @property
    def stop_requested(self) -> bool:
        """Whether the job should stop. A job that checks has the whole timeout of a stop to end by itself."""
        self._note_look()
        return self._state.command() in {JobCommand.STOP, JobCommand.DELETE}

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until the job should stop, at most `timeout` seconds; return whether it should."""
        if not self.stop_requested and self._channel is not None:
            self._channel.wait_cancelled(timeout)
        return self.stop_requested

    def _note_look(self) -> None:
        if self._channel is not None and not self._has_looked:
            self._has_looked = True
            self._state.write(has_checked=True)

    # -- the job's process, seen from its queue -----------------------------------------------------------------

    def start_process(self) -> RunningJob:
        """Start the job in a process forked from this one, and return it.

        Raises:
            InvalidJobStateError: it runs already, has ended, or was stopped and does not support a restart.
        """
        return self._start(own_supervisor(), lambda _ending: None)

    def stop_process(self, timeout: float | None = None) -> None:
        """Ask the job to stop and wait for its end, 10 s by default.

        Raises:
            ProcessControlError: it is still running then.
        """
        patience = check_seconds(STOP_SECONDS if timeout is None else timeout)
        process = self._running()
        process.ask_to_stop(JobCommand.STOP, timeout=None)
        process.join(patience)
        if process.is_alive():
            raise ProcessControlError(
                f"job {self.job_id} did not stop within {patience:g} s; terminate_process() ends it"
            )

    def terminate_process(self) -> None:
        """Kill the job's process with everything below it, and wait for its end."""
        process = self._process
        if process is not None and process.is_alive():
            process.kill()
            process.join(STOP_SECONDS)

    def _running(self) -> RunningJob:
        process = self._process
        if process is None or not process.is_alive():
            status = self._state.read().status
            raise InvalidTransitionError(
                f"job {self.job_id} is not running but {status.name}",
                job_id=self.job_id,
                status=status.name,
                verb="stop",
            )
        return process

    def check_start(self) -> None:
        """Raise InvalidJobStateError unless the job may be started now."""
        status = self._state.read().status
        is_alive = self._process is not None and self._process.is_alive()
        is_again = status is JobStatus.INTERRUPTED and self.supports_restart
        if is_alive or not (status is JobStatus.PENDING or is_again):
            why = "; it does not support a restart" if status is JobStatus.INTERRUPTED else ""
            raise InvalidTransitionError(
                f"job {self.job_id} cannot be started: it is {status.name}{why}",
                job_id=self.job_id,
                status=status.name,
                verb="start",
            )

    def _start(self, supervisor: Supervisor, on_end: Callable[[Ending], None]) -> RunningJob:
        self.check_start()
        self._state.begin(
            status=JobStatus.RUNNING,
            command=JobCommand.START,
            description=STARTED,
            result=None,
            has_checked=False,
        )
        try:
            self._state.share()
            self._process = RunningJob(self, supervisor, on_end)
        except BaseException as error:
            self._state.write(
                status=JobStatus.ERROR, description=_text(f"the process could not be started: {error}")
            )
            self._state.unshare()
            raise
        return self._process

    # -- in the job's process -----------------------------------------------------------------------------------

    def _run(self, channel: Channel) -> None:
        """Run the job from its start to its end."""
        self._channel = channel
        signal.signal(signal.SIGTERM, self._interrupt)
        status = JobStatus.COMPLETED
        try:
            self._is_interruptible = True
            self.on_start()
            value = self.execute()
            self._is_interruptible = False
            if value is not None:
                self.set_result(value)
            if self._is_stopped():
                status = self._stop()
            else:
                self.on_end()
        except Interrupted:
            status = self._stop()
        except BaseException as error:
            self._is_interruptible = False
            status = self._fail(error)
        self._finish(status)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_interruptible:
            self._is_interruptible = False
            raise Interrupted

    def _is_stopped(self) -> bool:
        return self._state.command() in {JobCommand.STOP, JobCommand.DELETE}

    def _stop(self) -> JobStatus:
        self._state.write(description=STOPPED)
        try:
            self.on_stop()
        except BaseException as error:  # it was stopped all the same, and the record says what went wrong
            self._state.write(description=_text(f"{STOPPED}; on_stop failed: {_error_text(error)}"))
        return JobStatus.INTERRUPTED

    def _fail(self, error: BaseException) -> JobStatus:
        self._state.write(description=_error_text(error))
        try:
            self.on_error(error)
        except BaseException as second:
            self._state.write(
                description=_text(f"{_error_text(error)}; on_error failed: {_error_text(second)}")
            )
        return JobStatus.ERROR

    def _finish(self, status: JobStatus) -> None:
        if status is JobStatus.COMPLETED:
            with self._state.lock:
                if not self._is_stopped():
                    described = self._state.read().description
                    self._state.write(
                        status=status,
                        progress=100,
                        description=COMPLETED if described == STARTED else described,
                    )
                    return
            status = self._stop()  # the command came while on_end ran; its caller expects an interruption
        self._state.write(status=status)


class SimpleJob(QueueJobBase):
    """A job that needs no hooks: only `execute` is to be written."""

    def on_start(self) -> None:
        """Do nothing; override it if there is something to do."""
        return

    def on_stop(self) -> None:
        """Do nothing; override it if there is something to do."""
        return

    def on_end(self) -> None:
        """Do nothing; override it if there is something to do."""
        return

    def on_error(self, exc: BaseException) -> None:  # noqa: ARG002 - for those who override it
        """Do nothing; override it if there is something to do."""
        return


def _text(text: object) -> str:
    """Return a text that both stores can keep, cut to a limit."""
    if not isinstance(text, str):
        raise invalid("description", "text", text)
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:_MAX_TEXT]


def _error_text(error: BaseException) -> str:
    """Return an exception as text, whatever its `__str__` does."""
    try:
        text = str(error)
    except BaseException as broken:  # the job failed; this must not hide it
        text = f"<no text: its __str__ raised {type(broken).__name__}>"
    name = type(error).__name__
    return _text(f"{name}: {text[:_MAX_TEXT]}" if text else name)
