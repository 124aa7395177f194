"""State that a job and its queue share: five variables and one lock a job.

The variables lie in memory (a file without a name) that both processes have; the lock is a lock of that file, which the
kernel takes away from a process that dies. So a job that is killed in the middle of anything leaves a queue that goes
on: nobody waits for its lock, and what it had half written is not seen, because one small write at the end makes a change
valid.

    header:  status, command, progress, flags, generation, where the text is
    text:    description and result as JSON, alternating between two places
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any, Final, NamedTuple, Self

from penstock._json import decode_json, encode_json
from penstock.errors import InvalidArgumentError, ProcessControlError, shown
from penstock.processes.types import JobCommand, JobStatus

__all__ = [
    "JobLock",
    "SharedState",
    "SharedVariable",
    "create_job_shared_state",
    "get_manager",
    "with_job_lock",
]

LOCK_SECONDS: Final = 10.0
VARIABLES: Final = ("status", "command", "progress", "description", "result")
_HEADER: Final = struct.Struct("<iiiiQQQ")  # status, command, progress, flags, generation, text at, text size
_TEXT_AT: Final = 64
_HAS_LOOKED: Final = 1


class Snapshot(NamedTuple):
    """All variables at one moment."""

    status: JobStatus
    command: JobCommand
    progress: int
    description: str | None
    result: Any
    has_looked: bool
    generation: int


class SharedState:
    """The memory behind the variables of one job. Handed to another process by fork, or by multiprocessing."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _new_file() if descriptor is None else descriptor
        self.lock = JobLock(self.descriptor)
        weakref.finalize(self, _close, self.descriptor, os.getpid())
        if descriptor is None:
            os.pwrite(self.descriptor, _HEADER.pack(0, 0, 0, 0, 0, _TEXT_AT, 0), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (reduction.DupFd(self.descriptor),)

    def read(self) -> Snapshot:
        """Return all variables as they are together."""
        with self.lock:
            return self._read()

    def write(self, **changes: Any) -> Snapshot:
        """Change variables, all at once, and return what they are now."""
        with self.lock:
            now = self._read()._replace(**changes)
            self._write(now)
            return now

    def generation(self) -> int:
        """Return a number that is another one after every change."""
        return int(_HEADER.unpack(os.pread(self.descriptor, _HEADER.size, 0))[4])

    def command(self) -> JobCommand:
        """Return the command alone; quick."""
        return JobCommand(_HEADER.unpack(os.pread(self.descriptor, _HEADER.size, 0))[1])

    def _read(self) -> Snapshot:
        status, command, progress, flags, generation, at, size = _HEADER.unpack(
            os.pread(self.descriptor, _HEADER.size, 0)
        )
        description, result = decode_json(os.pread(self.descriptor, size, at)) if size else (None, None)
        return Snapshot(
            JobStatus(status),
            JobCommand(command),
            progress,
            description,
            result,
            bool(flags & _HAS_LOOKED),
            generation,
        )

    def _write(self, wanted: Snapshot) -> None:
        *_, generation, at, size = _HEADER.unpack(os.pread(self.descriptor, _HEADER.size, 0))
        old = os.pread(self.descriptor, size, at) if size else b""
        text = encode_json([wanted.description, wanted.result], "state")
        if text != old:
            # Beside the old text, so that it is whole until the header says otherwise.
            at = _TEXT_AT if len(text) <= at - _TEXT_AT else at + size
            view = memoryview(text)
            while view:
                done = os.pwrite(self.descriptor, view, at + len(text) - len(view))
                view = view[done:]
        flags = _HAS_LOOKED if wanted.has_looked else 0
        header = _HEADER.pack(
            wanted.status, wanted.command, wanted.progress, flags, generation + 1, at, len(text)
        )
        os.pwrite(self.descriptor, header, 0)


class JobLock:
    """One lock for all threads and processes that share a job's state. Reentrant; freed if its holder dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._threads = threading.RLock()
        self._depth = 0
        _locks.add(self)

    def acquire(self, timeout: float = LOCK_SECONDS) -> bool:
        """Take the lock; False if that was not possible in time."""
        until = time.monotonic() + timeout
        if not self._threads.acquire(timeout=timeout):
            return False
        if self._depth == 0:
            pause = 0.0002
            while not self._try():
                if time.monotonic() >= until:
                    self._threads.release()
                    return False
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
        self._depth += 1
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._depth -= 1
        if self._depth == 0:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, 0)
        self._threads.release()

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _after_fork(self) -> None:
        """Be free in a child: whoever had it is another process now."""
        self._threads = threading.RLock()
        self._depth = 0

    def __enter__(self) -> Self:
        if not self.acquire():
            raise ProcessControlError(
                f"the lock of a job was not free for {LOCK_SECONDS:g} s; is the process that has it stopped?"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("hand over the whole state of a job: its lock is part of it")


class SharedVariable:
    """One variable of a job's shared state: `.value` reads and writes it, under the job's lock."""

    def __init__(self, state: SharedState, name: str) -> None:
        self.state = state
        self.name = name

    @property
    def value(self) -> Any:
        """What the variable holds."""
        return getattr(self.state.read(), self.name)

    @value.setter
    def value(self, wanted: Any) -> None:
        self.state.write(**{self.name: _checked(self.name, wanted)})

    def get(self) -> Any:
        """Return what the variable holds."""
        return self.value

    def set(self, wanted: Any) -> None:
        """Change the variable."""
        self.value = wanted

    def __repr__(self) -> str:
        return f"<SharedVariable {self.name} = {shown(self.value)}>"


class _StateMutex:
    """The lock of a state, as an entry of its mapping; it can be handed over with the rest."""

    def __init__(self, state: SharedState) -> None:
        self.state = state

    def acquire(self, timeout: float = LOCK_SECONDS) -> bool:
        """See `JobLock.acquire`."""
        return self.state.lock.acquire(timeout)

    def release(self) -> None:
        """See `JobLock.release`."""
        self.state.lock.release()

    def __enter__(self) -> Self:
        self.state.lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class StateManager:
    """Makes the shared state of jobs. One a process; it needs no process of its own."""

    def new_state(self) -> SharedState:
        """Return memory for one more job."""
        return SharedState()


@functools.cache
def get_manager() -> StateManager:
    """Return this process's maker of shared states."""
    return StateManager()


def create_job_shared_state(manager: StateManager) -> dict[str, Any]:
    """Return the shared variables of a new job: status, command, progress, description, result, and its mutex.

    The mapping may be handed to any process, by fork or as an argument of a `multiprocessing.Process`.
    """
    if not isinstance(manager, StateManager):
        raise InvalidArgumentError(
            f"manager must come from get_manager(), got {shown(manager)}", field="manager", value=manager
        )
    state = manager.new_state()
    variables: dict[str, Any] = {name: SharedVariable(state, name) for name in VARIABLES}
    variables["mutex"] = _StateMutex(state)
    return variables


@contextlib.contextmanager
def with_job_lock(shared_state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Hold a job's mutex, so that what is read and written inside belongs together.

    Raises:
        ProcessControlError: the lock was not free for 10 s.
    """
    with shared_state["mutex"]:
        yield shared_state


def _checked(name: str, value: Any) -> Any:
    if name == "status":
        return JobStatus(value)
    if name == "command":
        return JobCommand(value)
    if name == "progress" and (type(value) is not int or not 0 <= value <= 100):
        raise InvalidArgumentError(
            f"progress must be an integer from 0 to 100, got {shown(value)}", field="progress", value=value
        )
    if name == "description" and not (value is None or isinstance(value, str)):
        raise InvalidArgumentError(
            f"description must be text or None, got {shown(value)}", field="description", value=value
        )
    return value


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-job", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _close(descriptor: int, pid: int) -> None:
    if pid == os.getpid():  # a child's copy of the object is not the one that opened it
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _rebuild(duplicate: Any) -> SharedState:
    return SharedState(duplicate.detach())


_locks: weakref.WeakSet[JobLock] = weakref.WeakSet()


def _free_locks() -> None:
    for lock in list(_locks):
        lock._after_fork()  # noqa: SLF001 - our own class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)
