"""`penstock worker --processes N`: N worker processes that end together.

The parent runs no jobs. It forwards signals, and replaces a worker that has ended, with a growing pause while starts fail.
When the parent ends, the stdin of its workers is closed, and they release their jobs and end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Final, NoReturn

from penstock.errors import InvalidArgumentError, shown

__all__ = ["run_processes"]

logger = logging.getLogger("penstock.worker")

MAX_PROCESSES: Final = 256
POLL_SECONDS: Final = 0.1
#: A worker that ends sooner than this counts as one that could not start.
MIN_LIFE: Final = 5.0
#: The pause after the first failed start; it doubles with each further one in a row.
FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0
#: Failed starts in a row after which a worker process counts as unable to start.
MAX_FAILURES: Final = 3
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_processes(number: int, *, until_idle: bool = False) -> NoReturn:
    """Run worker processes with the arguments of this process until they end, and exit with the highest exit code.

    Args:
        number: how many.
        until_idle: whether a worker that exits with 0 is done; otherwise it is replaced.
    """
    if not 1 <= number <= MAX_PROCESSES:
        raise InvalidArgumentError(
            f"--processes must be from 1 to {MAX_PROCESSES}, got {shown(number)}",
            field="processes",
            value=number,
        )
    parent = _Parent(number, until_idle)
    for each in STOP_SIGNALS:
        signal.signal(each, parent.forward)
    sys.exit(parent.run())


class _Parent:
    """Keeps N worker processes running until it is stopped, all workers are done, or no worker can start."""

    def __init__(self, number: int, until_idle: bool) -> None:
        self._processes = [_WorkerProcess() for _ in range(number)]
        self._until_idle = until_idle
        self._is_stopping = False
        self._has_ever_started = False

    def run(self) -> int:
        while not self._is_over():
            for process in self._processes:
                self._tend(process)
            time.sleep(POLL_SECONDS)
        # A worker process that waited for its next start when the stop came is not a failure.
        codes = [process.code for process in self._processes if process.is_done or not self._is_stopping]
        return max(codes, default=0)

    def forward(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # a signal handler's
        """Forward a signal to every worker."""
        self._is_stopping = True
        for process in self._processes:
            process.send(number)

    def _tend(self, process: _WorkerProcess) -> None:
        if process.worker is not None:
            self._has_ever_started |= process.is_started()
            if process.worker.poll() is not None:
                self._ended(process, process.clear())
        elif time.monotonic() >= process.start_at and not self._stays_empty(process):
            self._start(process)

    def _stays_empty(self, process: _WorkerProcess) -> bool:
        """Whether a worker process is not started again: for good, or until another one has started."""
        is_hopeless = process.failures >= MAX_FAILURES and not self._has_ever_started
        return process.is_done or self._is_stopping or is_hopeless

    def _start(self, process: _WorkerProcess) -> None:
        try:
            process.start()
        except OSError as error:
            self._failed(process, f"a worker process could not be started: {error}", 1)
            return
        if self._is_stopping:  # the signal came during the start
            process.send(signal.SIGTERM)

    def _ended(self, process: _WorkerProcess, code: int) -> None:
        """Handle the end of a worker: replace it, unless the parent stops or the worker is done."""
        # A worker that is stopped before it has started ends by the signal, which is no failure.
        is_success = code == 0 or (self._is_stopping and -code in STOP_SIGNALS)
        if self._is_stopping or (is_success and self._until_idle):
            process.is_done, process.code = True, 0 if is_success else _positive(code)
        elif process.has_started and time.monotonic() - process.since >= MIN_LIFE:
            process.failures = 0
            logger.warning("worker process %d ended (%s); a new one is started", process.pid, _named(code))
        else:
            when = "soon after its start" if process.has_started else "while it started"
            self._failed(process, f"worker process {process.pid} ended {when} ({_named(code)})", code)

    def _failed(self, process: _WorkerProcess, message: str, code: int) -> None:
        process.failures += 1
        process.code = _positive(code or 1)
        if self._until_idle and process.failures >= MAX_FAILURES:
            process.is_done = True
            logger.error("%s; it is not started again after %d failures", message, process.failures)
            return
        pause = min(FIRST_PAUSE * 2 ** (process.failures - 1), MAX_PAUSE)
        process.start_at = time.monotonic() + pause
        logger.error("%s; a new one is started in %g s", message, pause)

    def _is_over(self) -> bool:
        if any(process.worker is not None for process in self._processes):
            return False
        if self._is_stopping or all(process.is_done for process in self._processes):
            return True
        is_hopeless = all(process.failures >= MAX_FAILURES for process in self._processes)
        if is_hopeless and not self._has_ever_started:
            logger.error(
                "no worker process could be started: all %d failed %d times in a row; the lines above say why",
                len(self._processes),
                MAX_FAILURES,
            )
            return True
        return False


class _WorkerProcess:
    """One of the N worker processes, started again when it ends."""

    def __init__(self) -> None:
        self.worker: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.since = 0.0
        #: Starts that failed in a row.
        self.failures = 0
        self.start_at = 0.0
        self.is_done = False
        #: The exit code of the last worker; 0 while one runs.
        self.code = 0
        #: Whether the current or last worker has begun to claim jobs.
        self.has_started = False
        self._started: int | None = None

    def start(self) -> None:
        """Start a worker, which writes to a pipe when it begins to claim jobs."""
        started, theirs = os.pipe()
        arguments = ["--processes", "1", "--stop-on-eof", "--started-fd", str(theirs)]
        try:
            os.set_blocking(started, False)
            # In a process group of its own: Ctrl-C reaches only the parent, which forwards it once.
            self.worker = subprocess.Popen(  # noqa: S603  # this very program again
                [sys.executable, "-m", "penstock", *sys.argv[1:], *arguments],
                stdin=subprocess.PIPE,
                process_group=0,
                pass_fds=(theirs,),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except BaseException:
            os.close(started)
            raise
        finally:
            os.close(theirs)
        self.pid, self.since = self.worker.pid, time.monotonic()
        self._started, self.has_started, self.code = started, False, 0

    def is_started(self) -> bool:
        """Whether the worker has begun to claim jobs."""
        if not self.has_started and self._started is not None:
            with contextlib.suppress(BlockingIOError):
                self.has_started = os.read(self._started, 1) != b""
        return self.has_started

    def send(self, number: int) -> None:
        """Send a signal to the worker, if there is one."""
        worker = self.worker
        if worker is not None:
            worker.send_signal(number)

    def clear(self) -> int:
        """Remove a worker that has ended, and return its exit code."""
        worker, self.worker = self.worker, None
        assert worker is not None  # noqa: S101  # the caller has seen it
        self.is_started()  # it may have started and ended since the last poll
        if self._started is not None:
            os.close(self._started)
            self._started = None
        if worker.stdin is not None:
            worker.stdin.close()
        return int(worker.returncode)


def _positive(code: int) -> int:
    """Return the parent's exit code for that of a worker; a signal is 1."""
    return code if code >= 0 else 1


def _named(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
