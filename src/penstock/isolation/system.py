"""The kernel's means for keeping processes together: prctl, pidfd, limits, and /proc.

Where a system lacks one of these the function does nothing, and what then rests on process groups alone is said in the
documentation.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import stat
import sys
from collections import Counter, defaultdict
from typing import Final

__all__ = [
    "Hazards",
    "become_subreaper",
    "close_on_parents_death",
    "die_with_parent",
    "family",
    "find_hazards",
    "has_no_child",
    "is_stopped",
    "marked",
    "parents",
    "sessions",
]

IS_LINUX: Final = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_KILL: Final = int(signal.SIGKILL)
PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

Hazards = tuple[str, ...]

# The whole program is there already; dlopen(None) finds it without loading anything. Nothing is asked of errno: to keep
# it would be more memory to touch in each job's process.
_library = ctypes.CDLL(None)
_prctl = _library.prctl if IS_LINUX else None
_waitpid = _library.waitpid
_NO_HANG: Final = int(os.WNOHANG)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends. Called by the child of a process with one thread."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, _KILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we could ask
        os._exit(0)


def become_subreaper() -> None:
    """Make this process the parent of whatever is orphaned below it."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_no_child() -> bool:
    """Whether this process has no child; those that have ended are waited for.

    As `os.waitpid`, but without an exception in the usual case that there is none.
    """
    while (found := _waitpid(-1, None, _NO_HANG)) > 0:
        continue
    return bool(found < 0)


def close_on_parents_death(parent: int) -> int | None:
    """Return a descriptor that becomes readable when the process `parent` ends; None where there is no such thing."""
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):
        return None
    return descriptor


def parents() -> dict[int, int]:
    """Return the parent of every process that can be seen, zombies left out."""
    return {pid: parent for pid, (parent, _) in _processes().items()}


def sessions(leaders: set[int]) -> set[int]:
    """Return the processes in the sessions that these have, or had, made."""
    return {pid for pid, (_, session) in _processes().items() if session in leaders} if IS_LINUX else set()


def _processes() -> dict[int, tuple[int, int]]:
    """Return parent and session of every process that can be seen, zombies left out."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # pid (name) state ppid pgrp session …: the name may hold anything, also ") Z 1".
                fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
                if fields[0] not in {b"Z", b"X"}:
                    found[int(name)] = int(fields[1]), int(fields[3])
    return found


def family(heads: set[int], parent_of: dict[int, int]) -> set[int]:
    """Return the processes below `heads`, themselves included if they live."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, parent in parent_of.items():
        children[parent].append(pid)
    found: set[int] = set()
    waiting = [pid for pid in heads if pid in parent_of]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children[pid]
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; true where that cannot be seen."""
    if not IS_LINUX:
        return True
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except (OSError, IndexError):
        return False


def kill_all(pids: set[int], number: int = signal.SIGKILL) -> None:
    """Signal processes that may be gone already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def marked(mark: str) -> set[int]:
    """Return the processes whose environment, as it was when they were started, holds a text."""
    found: set[int] = set()
    sought = mark.encode()
    if IS_LINUX:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError):
                    if sought in _read(f"/proc/{name}/environ"):
                        found.add(int(name))
    return found


def running() -> int:
    """Return how many threads there are on this machine; 0 where that is unknown. Cheap."""
    try:
        return int(_read("/proc/loadavg").split()[3].partition(b"/")[2])
    except (OSError, IndexError, ValueError):
        return 0


def own_memory(pid: int) -> int:
    """Return the bytes of a process's memory that no file backs; 0 if it has ended."""
    try:
        fields = _read(f"/proc/{pid}/statm").split()
        return (int(fields[1]) - int(fields[2])) * PAGE
    except (OSError, IndexError, ValueError):
        return 0


def data_size() -> int:
    """Return what the kernel counts against RLIMIT_DATA for this process."""
    with contextlib.suppress(OSError):
        for line in _read("/proc/self/status").splitlines():
            if line.startswith(b"VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def unbuffered(descriptor: int) -> io.TextIOWrapper:
    """Return a text stream that keeps nothing back: what a job has printed is there even if it crashes."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        raw, encoding="utf-8", errors="backslashreplace", write_through=True
    )  # as python -u does


def find_hazards(kept: set[int]) -> Hazards:
    """Return what makes forking this process unsafe: threads, sockets, stores. `kept` are descriptors of our own.

    A library that knows about fork ends its threads before one (OpenBLAS does, so numpy and scipy are safe), so one fork
    is tried first. A thread that is still there may hold a lock of its library, which would stay locked in every job:
    OpenMP's pool, for one, blocks the first job that uses it.
    """
    import threading  # noqa: PLC0415 - if it was not imported, there are no threads and jobs are forked faster

    trial = os.fork()
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    found = [f"thread {thread.name!r}" for thread in threads]
    if IS_LINUX:
        found += _native_threads({thread.native_id for thread in threads})
        found += [
            text
            for descriptor in _descriptors()
            if descriptor not in kept and (text := _described(descriptor))
        ]
    return tuple(found)


def _native_threads(known: set[int | None]) -> list[str]:
    """Return the threads of this process that libraries have started, by the names that the kernel shows."""
    names: Counter[str] = Counter()
    for task in map(int, os.listdir("/proc/self/task")):
        if task not in known and task != os.getpid():
            with contextlib.suppress(OSError):  # it has just ended
                names[_read(f"/proc/self/task/{task}/comm").decode(errors="replace").strip()] += 1
    return [
        f"thread {name!r} of a library" if number == 1 else f"{number} threads {name!r} of a library"
        for name, number in sorted(names.items())
    ]


def _descriptors() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))


def _described(descriptor: int) -> str:
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return ""  # it was the one that listed the others
    if stat.S_ISSOCK(mode):
        return f"socket (descriptor {descriptor})"
    if target in {"anon_inode:[eventpoll]", "anon_inode:[io_uring]"}:
        return f"event loop (descriptor {descriptor})"
    if stat.S_ISREG(mode):
        with contextlib.suppress(OSError):
            if os.pread(descriptor, 16, 0) == b"SQLite format 3\0":
                return f"SQLite store {target} (descriptor {descriptor})"
    return ""


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, 65536):
            pieces.append(piece)
            if len(piece) < 65536:
                break
        return b"".join(pieces)
    finally:
        os.close(descriptor)
