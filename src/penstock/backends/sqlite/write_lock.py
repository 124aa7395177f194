"""A fair write lock among processes on one file.

SQLite lets waiting writers poll for its lock, and the one that polls at the right moment wins; under load one process
can starve for seconds. Here writers queue instead, at the bytes of a file beside the store, each of which is a lock:

    byte 0       locked by the process that writes
    byte 1 … 8   the queue: the process at 1 is next, new ones enter at 8 and move up

A process that reaches byte 0 has a time slice, its turn. During its turn it may lock byte 0 repeatedly without queueing,
because a change of the writing process is expensive: all cached pages of the next one are stale. After that it queues up
again. The next process polls every millisecond, and takes over early if byte 0 is free twice in a row, which means that
the writer is idle and not just between two commits. The end of the turn is written to the file, so that the next process
polls closely only then and does not take CPU time from the writer before. The file also says whether the writer makes
one commit after the other; if not, the second poll follows at once, without a sleep, because a process probably waits for
what was just committed. The kernel releases the locks of a process that dies.
SQLite's own lock still guarantees exclusion; this one only decides the order. A store opened by other means is merely
less fair, and a process that has waited too long, because a frozen process is queued before it, writes without a turn.

The locks belong to the process, not to a descriptor, so all stores of a process on one file share one `WriteLock`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar, Final

from penstock.errors import BackendError
from penstock.scope import CancelScope

try:
    import fcntl
except ImportError:  # Windows: SQLite's own lock alone decides
    fcntl = None  # type: ignore[assignment]

__all__ = ["WriteLock"]

# When the turn ends, and whether its process makes one commit after the other.
_NOTE: Final = struct.Struct("=d?")
# A lock as the kernel of Linux describes it: type, origin, start, length, holder.
_LOCK: Final = struct.Struct("@hhqqi0q")
_CAN_ASK: Final = sys.platform == "linux"

_WRITE: Final = 0
_LAST: Final = 8
TURN_SECONDS: Final = 0.025
POLL_SECONDS: Final = 0.001
QUEUE_POLL_SECONDS: Final = 0.005
CLOSE_POLL_SECONDS: Final = 0.0001
# A process that returns sooner than this makes one commit after the other, and should not be interrupted.
BUSY_GAP_SECONDS: Final = 0.002
# How long after the end of a turn its last commit may take before close polling stops.
LAST_COMMIT_SECONDS: Final = 0.005
MUTEX_POLL_SECONDS: Final = 0.05
MAX_WAIT_SECONDS: Final = 1.0


class WriteLock:
    """The write lock of this process on one file. Use as `acquire` … `release`, from any thread."""

    _shared: ClassVar[dict[tuple[int, int], WriteLock]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity
        self._users = 0
        self._mutex = threading.RLock()
        self._is_stuck = False
        self._ends_at = 0.0
        self._released_at = 0.0
        self._is_busy = False

    @classmethod
    def open(cls, path: str) -> WriteLock | None:
        """Return the write lock of a store's file; None where the system has no such locks."""
        if fcntl is None:
            return None
        lock_file = f"{path}-lock"
        with cls._shared_lock:
            # Looked up without opening: closing a second descriptor would drop the locks this process holds.
            lock = cls._shared.get(_identity(lock_file))
            if lock is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                try:
                    descriptor = os.open(lock_file, flags, 0o600)
                except OSError as error:
                    raise BackendError(f"{lock_file} cannot be opened: {error.strerror}") from error
                about = os.fstat(descriptor)
                identity = (about.st_dev, about.st_ino)
                lock = cls._shared[identity] = cls(descriptor, identity)
            lock._users += 1
            return lock

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

    def acquire(self, deadline: float, scope: CancelScope | None) -> bool:
        """Wait for this process's turn, for half of the time until `deadline`; False if it did not come.

        A `scope` that ends meanwhile ends the wait.
        """
        try:
            if not self._mutex.acquire(blocking=False) and not self._enter(deadline, scope):
                return False
            now = time.monotonic()
            if now < self._ends_at and self._try(_WRITE):
                if not self._is_busy and now - self._released_at < BUSY_GAP_SECONDS:
                    self._note(is_busy=True)
                return True
            if self._queue_up(deadline, scope):
                return True
        except BaseException:
            self.release()
            raise
        self.release()
        return False

    def _enter(self, deadline: float, scope: CancelScope | None) -> bool:
        """Wait for the other store objects of this process."""
        while not self._mutex.acquire(timeout=max(0.0, min(MUTEX_POLL_SECONDS, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or (scope is not None and scope.cancelled):
                return False
        return True

    def _queue_up(self, deadline: float, scope: CancelScope | None) -> bool:
        began = time.monotonic()
        # Half of the time for the turn, the rest for SQLite's own lock: if a frozen process is queued, the
        # others still write, and if it is frozen while it writes, they fail in time.
        deadline = began if self._is_stuck else (began + deadline) / 2
        for place in range(_LAST, _WRITE - 1, -1):
            if not self._wait_for(place, deadline, scope):
                # After one long wait, do not wait again until a turn is free at once.
                self._is_stuck = self._is_stuck or time.monotonic() - began >= MAX_WAIT_SECONDS
                return False
            if place < _LAST:
                self._unlock(place + 1)
        self._is_stuck = False
        self._ends_at = time.monotonic() + TURN_SECONDS
        self._note(is_busy=False)
        return True

    def _note(self, *, is_busy: bool) -> None:
        """Publish the end and the kind of this turn for the next process."""
        self._is_busy = is_busy
        with contextlib.suppress(OSError):  # a full or failing disk: the next process polls anyway
            os.pwrite(self._descriptor, _NOTE.pack(self._ends_at, is_busy), 0)

    def release(self) -> None:
        """Release the turn, or the place in the queue, if this thread has one; else do nothing.

        The mutex knows its owner: an interruption (Ctrl-C) may come before a flag could be set.
        """
        while self._mutex._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - what Condition uses
            self._released_at = time.monotonic()
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, _LAST + 1, _WRITE)
            self._mutex.release()

    def _wait_for(self, place: int, deadline: float, scope: CancelScope | None) -> bool:
        """Try for a lock until the deadline."""
        was_free = False
        while True:
            is_free = self._try(place)
            now = time.monotonic()
            left, is_busy = (0.0, False) if place else self._expected(now)
            if is_free and (was_free or left <= 0):
                return True
            if is_free:
                self._unlock(place)
            if now >= deadline or (scope is not None and scope.cancelled):
                return False
            was_free = is_free
            if is_free and not is_busy and self._stays_free(place):
                continue
            if place > _WRITE + 1:
                pause = QUEUE_POLL_SECONDS
            elif is_free or (place == _WRITE and -LAST_COMMIT_SECONDS < left <= 0):
                pause = CLOSE_POLL_SECONDS
            else:
                pause = POLL_SECONDS if left <= 0 else min(POLL_SECONDS, left)
            time.sleep(min(pause, deadline - now))

    def _stays_free(self, place: int) -> bool:
        """Watch a byte briefly without locking it, and without sleeping, which would take far longer."""
        if not _CAN_ASK:
            return False
        end = time.monotonic() + CLOSE_POLL_SECONDS
        question = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        while time.monotonic() < end:
            answer = fcntl.fcntl(self._descriptor, fcntl.F_GETLK, question)
            if _LOCK.unpack(answer)[0] != fcntl.F_UNLCK:
                return False
        return True

    def _expected(self, now: float) -> tuple[float, bool]:
        """Return the seconds left of the current turn, at most 0 if it is over, and whether it is busy."""
        try:
            written = os.pread(self._descriptor, _NOTE.size, 0)
        except OSError:
            return 0.0, False
        if len(written) < _NOTE.size:
            return 0.0, False
        # Monotonic time is one for all processes of a machine; what lies too far ahead was written before a reboot.
        ends_at, is_busy = _NOTE.unpack(written)
        left = ends_at - now
        return (left if left <= TURN_SECONDS else 0.0), is_busy

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
