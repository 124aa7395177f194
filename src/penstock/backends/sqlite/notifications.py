"""Notifications between processes on one file: a commit was made, so streams poll now.

A process that waits binds a datagram socket in a folder beside the store; one that commits sends an empty datagram to
each socket there. Correctness never depends on them: a lost datagram, or a system without such sockets, costs the time
until the next poll (`poll_seconds`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from penstock.service import Service

__all__ = ["Listener", "Notifier"]

_SUFFIX: Final = ".sock"
# How often a writer lists the listeners. A listener that starts in between misses notifications for that long.
_LIST_SECONDS: Final = 0.01


def _folder(path: str) -> Path:
    return Path(f"{Path(path).absolute()}-hints")


class Notifier:
    """Notifies every other process that listens at a store; cheap without listeners."""

    def __init__(self, path: str) -> None:
        self._folder = _folder(path)
        self._place = str(self._folder)
        self._seen: int | None = None
        self._list_at = 0.0
        self._names: list[str] = []
        self._descriptor: int | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def send(self, *, but: Collection[str]) -> None:
        """Notify all sockets except those in `but`; never blocks, never raises."""
        now = time.monotonic()
        if now >= self._list_at:
            self._list_at = now + _LIST_SECONDS
            self._list()
        if not self._names:
            return
        with self._lock, contextlib.suppress(OSError):
            for name in self._names:
                if name not in but:
                    self._notify(name)

    def _list(self) -> None:
        try:
            changed = os.stat(self._place).st_mtime_ns  # noqa: PTH116  # often: half the time of Path.stat
        except OSError:
            self._names = []
            return
        if changed != self._seen:
            with self._lock, contextlib.suppress(OSError):
                self._names = [each.name for each in self._folder.iterdir() if each.name.endswith(_SUFFIX)]
                self._seen = changed

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._socket = self._descriptor = None

    def _notify(self, name: str) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.sendto(b"", _address(self._descriptor, name))
        except ConnectionRefusedError:
            # Its process has ended without removing its socket.
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
        except OSError:
            return  # its buffer is full, so it will wake anyway


class Listener:
    """Calls back when another process has committed."""

    def __init__(self, path: str, callback: Callable[[], None]) -> None:
        self._pid = os.getpid()
        self.name = f"{self._pid}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        self._folder = _folder(path)
        self._callback = callback
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.bind(_address(descriptor, self.name))
        finally:
            os.close(descriptor)
        self._service = Service(
            "listen", self._receive, interrupt=self._interrupt, label="receiving a notification"
        )
        self._service.start()

    def close(self) -> None:
        if os.getpid() != self._pid:  # a fork's child: socket and file are the parent's
            self._socket.close()
            return
        self._service.stop()
        self._socket.close()
        with contextlib.suppress(OSError):
            (self._folder / self.name).unlink()

    def _interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> None:
        try:
            self._socket.recv(1)
        except OSError:
            self._service.retire()
        if not self._service.is_stopping:
            self._callback()


def _address(folder: int | None, name: str) -> str:
    # By way of the folder's descriptor: an address holds only about 100 characters.
    return f"/proc/self/fd/{folder}/{name}"
