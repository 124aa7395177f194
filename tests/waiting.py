"""Waiting for what other threads and processes do: the one place where tests let time pass."""

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What is waited for takes milliseconds; only a test that fails, or a machine that is very busy, waits for long.
PATIENCE = 120.0


def until(condition: Callable[[], Any], what: str = "it", *, seconds: float = PATIENCE) -> Any:
    """Return the first true value of a condition, which is looked at often."""
    give_up_at, pause = time.monotonic() + seconds, 0.001
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"{what} did not happen within {seconds} s"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.02)
    return found


def throughout(seconds: float, check: Callable[[], object]) -> None:
    """Call what checks again and again for a while."""
    over_at = time.monotonic() + seconds
    while time.monotonic() < over_at:
        check()
        time.sleep(0.02)


def pass_time(seconds: float) -> None:
    """Let real time pass, where a lease, an outage or a loop of another thread goes by the clock of the machine."""
    time.sleep(seconds)


def freeze(pid: int) -> None:
    """Stop a process, and wait until it stands still: each of its threads stops when it comes to it."""
    os.kill(pid, signal.SIGSTOP)
    if Path("/proc/self/task").exists():
        until(
            lambda: all(_is_stopped(each) for each in Path(f"/proc/{pid}/task").iterdir()), "standing still"
        )
    else:
        import psutil

        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "standing still")


def _is_stopped(task: Path) -> bool:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # this thread has ended meanwhile
        return True
    return state in "TZX"


def read_soon(descriptor: int, seconds: float = PATIENCE) -> bytes:
    """Read what comes next from a pipe or a terminal; nothing when its other end is closed."""
    ready, _, _ = select.select([descriptor], [], [], seconds)
    assert ready, f"nothing came within {seconds} s"
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # how a terminal says that its other end is closed
        return b""
