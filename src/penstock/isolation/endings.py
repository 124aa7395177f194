"""The end of a process, and its cause as text."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["Ending", "describe", "out_of_memory_kills"]

_WORDS: Final = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGABRT: "abort()",
    signal.SIGBUS: "a bus error",
    signal.SIGFPE: "an arithmetic error",
    signal.SIGILL: "an illegal instruction",
}

#: Why the warden itself ended a job.
REASONS: Final = {
    "time": "it ran longer than its limit",
    "memory": "it used more memory than its limit",
    "processes": "it had more processes than its limit",
    "request": "it was ended on request",
    "parent": "its worker is gone",
}


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job's process. When it is reported, nothing that the process started is alive.

    Attributes:
        status: the status of `waitpid`; None if the process that would have waited has ended, too.
        reason: why it was ended: "time", "memory", "processes" or "request"; empty if it ended by itself.
        is_clean: the entry returned, and all its messages were sent.
        cause: the above as text.
        left: how many processes the job left behind; they were killed.
        max_rss: its peak resident memory, in bytes.
        memory_ran_out: it was killed, and the kernel's out-of-memory killer has killed a process meanwhile.
    """

    status: int | None
    reason: str = ""
    is_clean: bool = False
    cause: str = ""
    left: int = 0
    max_rss: int = 0
    memory_ran_out: bool = False

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if a signal ended it or it is unknown."""
        if self.status is None or not os.WIFEXITED(self.status):
            return None
        return os.WEXITSTATUS(self.status)

    @property
    def signal(self) -> int | None:
        """The signal that ended it, if one did."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return os.WTERMSIG(self.status)


def describe(status: int | None, reason: str, *, memory_ran_out: bool) -> str:
    """Return the cause of an end as text."""
    why = f" because {REASONS.get(reason, reason)}" if reason else ""
    if status is None:
        return "the process is gone together with the one that watched it"
    if not os.WIFSIGNALED(status):
        return f"process exited with code {os.WEXITSTATUS(status)}{why}"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if reason:
        return f"process was ended by {name}{why}"
    if number == signal.SIGKILL:
        by = (
            "the kernel's out-of-memory killer"
            if memory_ran_out
            else "another process, perhaps the kernel's out-of-memory killer"
        )
        return f"process was killed ({name}), probably by {by}"
    words = _WORDS.get(signal.Signals(number)) if name.startswith("SIG") else None
    return f"process died of {words} ({name})" if words else f"process was ended by {name}"


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory; 0 where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
