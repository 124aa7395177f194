"""The descriptors that a supervisor waits on, and the one thread that does."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

from penstock.service import Service

__all__ = ["Reactor"]


class Reactor:
    """Calls back when descriptors are ready, from a thread of its own.

    Args:
        is_done: whether the thread may end; asked before every wait.
    """

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self._is_done = is_done
        self._selector = selectors.DefaultSelector()
        self._wake, self._wake_end = socket.socketpair()
        self._wake.setblocking(False)
        self._open: set[int] = {self._wake_end.fileno()}
        self.register(self._wake.fileno(), self._drain_wake)
        self._service = Service("processes", self._select, label="serving the processes of jobs")

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        self._service.start()

    def close(self, timeout: float) -> None:
        """Wait until the thread is done; then close every descriptor of this object."""
        with contextlib.suppress(OSError):
            self._wake_end.send(b"x")
        if self._service.join(timeout):
            self._open.clear()
            self._selector.close()
            self._wake.close()
            self._wake_end.close()

    def is_own_thread(self) -> bool:
        """Whether the calling thread is the reactor's own."""
        return self._service.is_current

    def descriptors(self) -> list[int]:
        """Return all descriptors that must not stay open in a process forked from this one."""
        return list(self._open)

    def register(self, descriptor: int, callback: Callable[[int], object]) -> None:
        """Call back, with the mask of events, when a descriptor can be read."""
        self._open.add(descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unregister(self, descriptor: int) -> None:
        """Forget a descriptor."""
        self._open.discard(descriptor)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def want_write(self, descriptor: int) -> None:
        """Call back also when a descriptor can be written."""
        self._modify(descriptor, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def want_read_only(self, descriptor: int) -> None:
        """Undo `want_write`."""
        self._modify(descriptor, selectors.EVENT_READ)

    def _modify(self, descriptor: int, events: int) -> None:
        with contextlib.suppress(KeyError):
            key = self._selector.get_key(descriptor)
            self._selector.modify(descriptor, events, key.data)

    def _select(self) -> None:
        if self._is_done():
            self._service.retire()
            return
        for key, mask in self._selector.select():
            key.data(mask)

    def _drain_wake(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
