"""Whose turn it is to write, among processes on one file.

SQLite lets waiting writers poll for its lock, and whoever polls at the right moment wins; under load one process can
starve for seconds. Here writers queue instead, at two byte locks of a file beside the store:

    wait     held by the one process that is next
    write    held by the process that writes

A process takes `wait`, then `write`, then lets go of `wait`. One that has just written finds `wait` taken by somebody
else and has to queue up like all others. Only the one that is next watches closely: it yields for up to a millisecond
before it sleeps, because a late hand-over would cost as much as a commit. The kernel frees the locks of a process that
dies. SQLite's own lock stays the truth; this one only decides the order, so a store opened by other means is merely less
fair.

The locks belong to the process, not to a descriptor, so all stores of a process on one file share one `Turns`.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import ClassVar, Final

from penstock.errors import BackendError

try:
    import fcntl
except ImportError:  # Windows: SQLite's own lock alone decides
    fcntl = None  # type: ignore[assignment]

__all__ = ["Turns"]

_WAIT: Final = 0
_WRITE: Final = 1
CLOSE_WATCH: Final = 0.001
SHORTEST_PAUSE: Final = 0.0002
LONGEST_PAUSE: Final = 0.002


class Turns:
    """The turns of this process on one file. Use as `acquire` … `release`, from any thread."""

    _shared: ClassVar[dict[tuple[int, int], Turns]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity
        self._users = 0
        self._mutex = threading.Lock()

    @classmethod
    def open(cls, path: str) -> Turns | None:
        """Return the turns at a store's file; None where the system has no such locks."""
        if fcntl is None:
            return None
        lock_file = f"{path}-lock"
        with cls._shared_lock:
            # Looked up without opening: closing a second descriptor would drop the locks this process holds.
            turns = cls._shared.get(_identity(lock_file))
            if turns is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                try:
                    descriptor = os.open(lock_file, flags, 0o600)
                except OSError as error:
                    raise BackendError(f"{lock_file} cannot be opened: {error.strerror}") from error
                identity = _identity(lock_file)
                turns = cls._shared[identity] = cls(descriptor, identity)
            turns._users += 1
            return turns

    def close(self) -> None:
        with self._shared_lock:
            self._users -= 1
            if self._users == 0:
                self._shared.pop(self._identity, None)
                os.close(self._descriptor)

    @classmethod
    def forget_all(cls) -> None:
        """Forget what belongs to the parent; for a child just forked."""
        cls._shared = {}
        cls._shared_lock = threading.Lock()

    def acquire(self, timeout: float) -> bool:
        """Wait for this process's turn, at most `timeout` seconds; False if it did not come."""
        deadline = time.monotonic() + timeout
        if not self._mutex.acquire(timeout=timeout):
            return False
        try:
            if self._wait_for(_WAIT, deadline, patience=0.0):
                try:
                    if self._wait_for(_WRITE, deadline, patience=CLOSE_WATCH):
                        return True
                finally:
                    self._unlock(_WAIT)
        except BaseException:
            self._mutex.release()
            raise
        self._mutex.release()
        return False

    def release(self) -> None:
        self._unlock(_WRITE)
        self._mutex.release()

    def _wait_for(self, byte: int, deadline: float, *, patience: float) -> bool:
        """Try for a lock until the deadline: yielding for `patience` seconds, then sleeping longer and longer."""
        if self._try(byte):
            return True
        sleepless_until = time.monotonic() + patience
        pause = SHORTEST_PAUSE
        while (now := time.monotonic()) < deadline:
            if now < sleepless_until:
                os.sched_yield()
            else:
                time.sleep(min(pause, deadline - now))
                pause = min(pause * 2, LONGEST_PAUSE)
            if self._try(byte):
                return True
        return False

    def _try(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)


def _identity(path: str) -> tuple[int, int]:
    try:
        about = Path(path).stat()
    except FileNotFoundError:
        return (-1, -1)
    return (about.st_dev, about.st_ino)
