"""State that a job and its queue share: five variables and one lock per job.

The variables lie in memory (a file without a name) that both processes have; the lock is a lock of that file, which the
kernel releases when its holder dies. So a job that is killed in the middle of a write does not block its queue: its lock
is free, and the unfinished change is invisible, because one small write at the end makes a change valid.

    header:  status, command, progress, flags, generation, where the text is
    text:    description and result as JSON, alternating between two places

The file is a descriptor of this process, so a job has one only while it has a process: before and after, its state is an
ordinary object (see `SharedState.share` and `SharedState.unshare`).
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import struct
import tempfile
import threading
import time
import weakref
from multiprocessing import reduction
from typing import Any, Final, NamedTuple, Self

from penstock.errors import ProcessControlError
from penstock.payloads.json import decode_json, encode_json
from penstock.processes.types import JobCommand, JobStatus

__all__ = ["LOCK_SECONDS", "JobLock", "SharedState", "Snapshot"]

LOCK_SECONDS: Final = 10.0
_HEADER: Final = struct.Struct("<iiiiQQQ")  # status, command, progress, flags, generation, text at, text size
_TEXT_AT: Final = 64
_HAS_CHECKED: Final = 1


class Snapshot(NamedTuple):
    """All variables at one moment."""

    status: JobStatus
    command: JobCommand
    progress: int
    description: str | None
    result: Any
    has_checked: bool
    generation: int


_NEW: Final = Snapshot(JobStatus.PENDING, JobCommand.NONE, 0, None, None, has_checked=False, generation=0)


class SharedState:
    """The variables of one job. Passed to another process by fork while they are shared, or by multiprocessing."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor: int | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._kept = _NEW
        self.lock = JobLock()
        if descriptor is not None:
            self._use(descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        with self.lock:
            return _rebuild, (reduction.DupFd(self.share()),)

    def share(self) -> int:
        """Move the variables into a file that other processes can have, unless they are there, and return it."""
        with self.lock:
            if self._descriptor is None:
                descriptor = _new_file()
                _write_snapshot(descriptor, self._kept)
                self._use(descriptor)
            assert self._descriptor is not None  # noqa: S101 - for the type checker
            return self._descriptor

    def unshare(self) -> None:
        """Keep the variables in this process alone, and close the file. Their other process has ended."""
        with self.lock:
            if self._descriptor is not None and self._closer is not None:
                self._kept = self._read()
                with self.lock.closing:
                    self._descriptor = self.lock.descriptor = None
                    self._closer()

    def _use(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closer = weakref.finalize(self, _close, descriptor, os.getpid())
        self.lock.move(descriptor)

    def read(self) -> Snapshot:
        """Return all variables as they are together."""
        with self.lock:
            return self._read()

    def write(self, **changes: Any) -> Snapshot:
        """Change variables, all at once, and return what they are now. Progress is not lowered."""
        with self.lock:
            now = self._read()
            changes["progress"] = max(now.progress, changes.get("progress", 0))
            return self._write(now._replace(**changes))

    def begin(self, **changes: Any) -> Snapshot:
        """Begin a run: change variables, and set progress to 0."""
        with self.lock:
            return self._write(self._read()._replace(progress=0, **changes))

    def generation(self) -> int:
        """Return a number that is another one after every change."""
        return self._peek().generation

    def command(self) -> JobCommand:
        """Return the command alone; quick."""
        return JobCommand(self._peek().command)

    def _peek(self) -> Snapshot | _Header:
        """Return the variables but for the texts. One read of the header is whole without the file's lock."""
        with self.lock.closing:  # the whole lock may be waited for, up to 10 s
            return self._kept if self._descriptor is None else _read_header(self._descriptor)

    def _read(self) -> Snapshot:
        if self._descriptor is not None:
            return _read_snapshot(self._descriptor)
        return self._kept._replace(
            result=copy.deepcopy(self._kept.result)
        )  # each read gives its own, as from a file

    def _write(self, wanted: Snapshot) -> Snapshot:
        if self._descriptor is None:
            encode_json(wanted.description, "description")
            result = decode_json(encode_json(wanted.result, "result"))  # a tuple becomes a list, as in a file
            self._kept = wanted._replace(result=result, generation=self._kept.generation + 1)
        else:
            _write_snapshot(self._descriptor, wanted)
        return wanted


class _Header(NamedTuple):
    """The beginning of a state's file."""

    status: int
    command: int
    progress: int
    flags: int
    generation: int
    text_at: int
    text_size: int


def _read_header(descriptor: int) -> _Header:
    return _Header(*_HEADER.unpack(os.pread(descriptor, _HEADER.size, 0)))


def _read_snapshot(descriptor: int) -> Snapshot:
    header = _read_header(descriptor)
    text = os.pread(descriptor, header.text_size, header.text_at)
    description, result = decode_json(text) if text else (None, None)
    return Snapshot(
        JobStatus(header.status),
        JobCommand(header.command),
        header.progress,
        description,
        result,
        bool(header.flags & _HAS_CHECKED),
        header.generation,
    )


def _write_snapshot(descriptor: int, wanted: Snapshot) -> None:
    is_new = os.fstat(descriptor).st_size == 0
    *_, generation, at, size = (wanted.generation, _TEXT_AT, 0) if is_new else _read_header(descriptor)
    old = os.pread(descriptor, size, at) if size else b""
    description = encode_json(wanted.description, "description")
    text = b"[%b,%b]" % (description, encode_json(wanted.result, "result"))
    if text != old:
        # Beside the old text, so that it is whole until the header says otherwise.
        at = _TEXT_AT if len(text) <= at - _TEXT_AT else at + size
        view = memoryview(text)
        while view:
            done = os.pwrite(descriptor, view, at + len(text) - len(view))
            view = view[done:]
    flags = _HAS_CHECKED if wanted.has_checked else 0
    header = _HEADER.pack(
        wanted.status, wanted.command, wanted.progress, flags, generation + 1, at, len(text)
    )
    os.pwrite(descriptor, header, 0)


class JobLock:
    """One lock for all threads and processes that share a job's state. Reentrant; freed if its holder dies.

    Without a descriptor it is one for threads alone.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        #: Held while the descriptor is closed or read without the lock.
        self.closing = threading.Lock()
        self._threads = threading.RLock()
        self._depth = 0
        _locks.add(self)

    def move(self, descriptor: int) -> None:
        """Lock this file from now on. Called by the holder, or before anything else has the lock."""
        self.descriptor = descriptor
        if self._depth:
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)  # a new file: nothing else can have it

    def acquire(self, timeout: float = LOCK_SECONDS) -> bool:
        """Acquire the lock; False if that was not possible in time."""
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
        """Release the lock."""
        self._depth -= 1
        if self._depth == 0 and self.descriptor is not None:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, 0)
        self._threads.release()

    def _try(self) -> bool:
        if self.descriptor is None:
            return True
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _after_fork(self) -> None:
        """Free the lock in a child: the thread that held it is in another process."""
        self.closing = threading.Lock()
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
        raise TypeError("pass the whole state of a job: its lock is part of it")


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
