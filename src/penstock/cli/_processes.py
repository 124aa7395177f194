"""`--processes N`: as many workers, each a process of its own, that end together.

The parent runs no jobs. It passes signals on and starts a worker again that died; workers hand back what they run and
end when the parent is gone, because their stdin ends then.
"""

from __future__ import annotations

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

MOST_PROCESSES: Final = 256
LOOK_SECONDS: Final = 0.1
#: A worker that dies sooner than this after its start is not started again: it would do so for ever.
SHORTEST_LIFE: Final = 5.0
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def run_processes(number: int) -> NoReturn:
    """Run so many workers with this process's own arguments until they have ended, and exit as the worst of them."""
    if not 1 <= number <= MOST_PROCESSES:
        raise InvalidArgumentError(
            f"--processes must be from 1 to {MOST_PROCESSES}, got {shown(number)}",
            field="processes",
            value=number,
        )
    workers = _Workers(number)
    for each in STOPPING:
        signal.signal(each, workers.pass_on)
    sys.exit(workers.run())


class _Workers:
    def __init__(self, number: int) -> None:
        self._number = number
        self._workers: dict[subprocess.Popen[bytes], float] = {}
        self._is_stopping = False
        self._worst = 0

    def run(self) -> int:
        for _ in range(self._number):
            self._start()
        while self._workers:
            time.sleep(LOOK_SECONDS)
            for worker, since in list(self._workers.items()):
                if worker.poll() is not None:
                    self._ended(worker, time.monotonic() - since)
        return self._worst

    def pass_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # a signal handler's
        self._is_stopping = True
        for worker in list(self._workers):
            worker.send_signal(number)

    def _start(self) -> None:
        # A group of its own: Ctrl-C reaches the parent alone, which passes it on once.
        worker = subprocess.Popen(  # noqa: S603  # this very program again
            [sys.executable, "-m", "penstock", *sys.argv[1:], "--processes", "1", "--stop-on-eof"],
            stdin=subprocess.PIPE,
            process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._workers[worker] = time.monotonic()
        if self._is_stopping:  # the signal came while this one was being started
            worker.terminate()

    def _ended(self, worker: subprocess.Popen[bytes], seconds: float) -> None:
        del self._workers[worker]
        if worker.stdin is not None:
            worker.stdin.close()
        # A worker that is stopped before it has begun has nothing to do but die of the signal.
        if worker.returncode == 0 or (self._is_stopping and -worker.returncode in STOPPING):
            return
        if self._is_stopping or seconds < SHORTEST_LIFE:
            self._worst = max(self._worst, worker.returncode if worker.returncode > 0 else 1)
            return
        logger.warning("worker process %d died (%d); another one is started", worker.pid, worker.returncode)
        self._start()
