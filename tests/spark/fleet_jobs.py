"""The app that fleets of tests run: executors import it by its name."""

import os
import signal
from pathlib import Path

from tests.waiting import until

import penstock
from penstock import RetryPolicy, TemporaryError

__all__ = ["app", "double", "kill_its_process_once", "never", "wait_for"]

app = penstock.App()


@app.job
def double(number: int) -> int:
    return 2 * number


@app.job(retry=RetryPolicy(max_attempts=2, initial_delay=0))
def never() -> None:
    raise TemporaryError("not today")


@app.job
def wait_for(file: str, folder: str) -> int:
    """Leave the own pid in a folder, and wait for a file."""
    (Path(folder) / str(os.getpid())).touch()
    until(Path(file).exists, seconds=300)
    return os.getpid()


@app.job
def kill_its_process_once(marker: str) -> str:
    """End the process that it runs in, as the system does when memory is short."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "the second time"
