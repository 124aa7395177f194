"""Whose turn it is to write, among processes on one file.

SQLite lets waiting writers poll for its lock, and whoever polls at the right moment wins; under load one process can
starve for seconds. Here writers queue instead, at two byte locks of a file beside the store:

    wait     held by the one process that is next
    write    held by the process that writes

A process takes `wait`, then `write`, then lets go of `wait`. One that has just written finds `wait` taken by somebody
else and has to queue up like all others. The kernel frees the locks of a process that dies. SQLite's own lock stays the
truth; this one only decides the order, so a store opened by other means is merely less fair.

The locks belong to the process, not to a descriptor, so all stores of a process on one file share one `Turns`.
"""

from __future__ import annotations

import os
import queue
import threading
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


class Turns:
    """The turns of this process on one file. Use as `acquire` … `release`, from any thread."""

    _shared: ClassVar[dict[tuple[int, int], Turns]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity
        self._users = 0
        self._mutex = threading.Lock()
        self._orders: queue.SimpleQueue[_Order | None] | None = None

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
                if self._orders is not None:
                    self._orders.put(None)
                os.close(self._descriptor)

    @classmethod
    def forget_all(cls) -> None:
        """Forget what belongs to the parent; for a child just forked."""
        cls._shared = {}
        cls._shared_lock = threading.Lock()

    def acquire(self, timeout: float) -> bool:
        """Wait for this process's turn, at most `timeout` seconds; False if it did not come."""
        if not self._mutex.acquire(timeout=timeout):
            return False
        try:
            if self._try_at_once() or self._order(timeout):
                return True
        except BaseException:
            self._mutex.release()
            raise
        self._mutex.release()
        return False

    def release(self) -> None:
        self._unlock(_WRITE)
        self._mutex.release()

    def _try_at_once(self) -> bool:
        try:
            self._lock(_WAIT, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            self._lock(_WRITE, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            self._unlock(_WAIT)
        return True

    def _order(self, timeout: float) -> bool:
        """Have a thread wait in the kernel's queue, which knows no time limit, and wait for that thread."""
        if self._orders is None:
            self._orders = queue.SimpleQueue()
            threading.Thread(
                target=self._serve, args=(self._orders,), name="penstock-turns", daemon=True
            ).start()
        order = _Order()
        self._orders.put(order)
        return order.wait(timeout)

    def _serve(self, orders: queue.SimpleQueue[_Order | None]) -> None:
        while (order := orders.get()) is not None:
            if order.is_abandoned():
                continue
            try:
                self._lock(_WAIT, fcntl.LOCK_EX)
                self._lock(_WRITE, fcntl.LOCK_EX)
                self._unlock(_WAIT)
            except OSError:  # closed meanwhile
                continue
            if not order.fulfil():
                self._unlock(_WRITE)

    def _lock(self, byte: int, operation: int) -> None:
        fcntl.lockf(self._descriptor, operation, 1, byte)

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, byte)


def _identity(path: str) -> tuple[int, int]:
    try:
        about = Path(path).stat()
    except FileNotFoundError:
        return (-1, -1)
    return (about.st_dev, about.st_ino)


class _Order:
    """A wish for a turn that may be given up before it is fulfilled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._abandoned = False

    def wait(self, timeout: float) -> bool:
        if self._ready.wait(timeout):
            return True
        with self._lock:
            self._abandoned = not self._ready.is_set()
            return not self._abandoned

    def fulfil(self) -> bool:
        with self._lock:
            if not self._abandoned:
                self._ready.set()
            return not self._abandoned

    def is_abandoned(self) -> bool:
        return self._abandoned
