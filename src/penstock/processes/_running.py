"""The process of a job of the process queue, as its queue sees it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.isolation import Cancel, Ending, Grace, JobProcess, Message, Supervisor
from penstock.processes.types import FINAL, JobCommand, JobStatus

if TYPE_CHECKING:
    from penstock.processes.jobs import QueueJobBase

__all__ = ["STOPPED", "RunningJob", "own_supervisor"]

STOPPED: Final = "Stopped by user"
#: A job that has never checked whether it should stop is interrupted after this time instead of the whole timeout.
UNCHECKED_SECONDS: Final = 1.0
KILL_SECONDS: Final = 2.0


class RunningJob:
    """The process of a job, with the names of `multiprocessing.Process`."""

    def __init__(self, job: QueueJobBase, supervisor: Supervisor, on_end: Callable[[Ending], None]) -> None:
        self.job = job
        self._on_end = on_end
        self._wanted = ""
        self.process: JobProcess = supervisor.fork(job._run, self, limits=job.limits)  # noqa: SLF001 - ours

    @property
    def name(self) -> str:
        """The job's class and id."""
        return f"{type(self.job).__name__}-{self.job.job_id}"

    @property
    def pid(self) -> int | None:
        """The process's id; None if it could not be started."""
        return self.process.pid

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        ending = self.process.ending
        if ending is None:
            return None
        if ending.signal is not None:
            return -ending.signal
        return ending.exit_code if ending.exit_code is not None else 1

    @property
    def output(self) -> str:
        """The output of the process on stdout and stderr; the middle of a long one is left out."""
        return self.process.output.text()

    def is_alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self.process.ending is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        self.process.wait(timeout)

    def terminate(self) -> None:
        """Let SIGTERM interrupt the job; it is killed if it has not ended 2 s later."""
        self.process.end(Grace(notice=0, term=KILL_SECONDS))

    def kill(self) -> None:
        """Kill the process and everything below it."""
        self._wanted = self._wanted or "killed"
        self.process.kill()

    def ask_to_stop(self, command: JobCommand, timeout: float | None) -> bool:
        """Send the job a command; with a timeout, end its process soon after that.

        Returns whether the command came in time: a job that has ended already takes none.
        """
        state = self.job._state  # noqa: SLF001 - ours
        with state.lock:
            now = state.read()
            if now.status is not JobStatus.RUNNING:
                return False
            state.write(command=command)
        self.process.resume()  # a suspended job could not notice
        if timeout is None:
            with contextlib.suppress(OSError):
                self.process.send(Cancel(STOPPED))
            return True
        notice = timeout if now.has_checked else min(UNCHECKED_SECONDS, timeout / 2)
        self.process.end(Grace(notice=notice, term=max(KILL_SECONDS, timeout - notice)), reason=STOPPED)
        return True

    def received(self, process: JobProcess, message: Message) -> None:
        """Ignore messages: a job of the process queue reports through shared memory."""

    def ended(self, _process: JobProcess, ending: Ending) -> None:
        """Write the end that the job could not write itself, then call back."""
        state = self.job._state  # noqa: SLF001 - ours
        with state.lock:
            now = state.read()
            if now.status not in FINAL:
                if now.command in {JobCommand.STOP, JobCommand.DELETE}:
                    text = f"{STOPPED}; it did not end by itself and was killed"
                    state.write(status=JobStatus.INTERRUPTED, description=text)
                elif self._wanted:
                    state.write(status=JobStatus.INTERRUPTED, description="Terminated")
                else:
                    state.write(status=JobStatus.ERROR, description=ending.cause)
            state.unshare()  # what it holds stays readable, without a descriptor
        self._on_end(ending)


_supervisor: tuple[int, Supervisor] | None = None
_supervisor_lock = threading.Lock()


def own_supervisor() -> Supervisor:
    """Return the supervisor of jobs that are started without a queue."""
    global _supervisor  # noqa: PLW0603 - one a process
    with _supervisor_lock:
        if _supervisor is None or _supervisor[0] != os.getpid():
            _supervisor = os.getpid(), Supervisor()
        return _supervisor[1]
