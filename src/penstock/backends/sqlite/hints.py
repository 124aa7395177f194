"""A nudge from process to process: something was committed, look now.

A process that waits binds a datagram socket in a folder beside the store; one that commits sends an empty datagram to
each socket there. Nothing depends on it: a datagram that is lost, or a system without such sockets, costs the time until
the next look (`poll_seconds`).
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

__all__ = ["HintReceiver", "HintSender"]

_SUFFIX: Final = ".sock"
# How often a writer looks who waits. Whoever begins to wait in between misses a nudge and polls, as often as that.
_LOOK_EVERY: Final = 0.01


def _folder(path: str) -> Path:
    return Path(f"{Path(path).absolute()}-hints")


class HintSender:
    """Nudges every other process that waits at a store. Cheap while nobody does."""

    def __init__(self, path: str) -> None:
        self._folder = _folder(path)
        self._place = str(self._folder)
        self._seen: int | None = None
        self._look_at = 0.0
        self._names: list[str] = []
        self._descriptor: int | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def send(self, *, but: Collection[str]) -> None:
        """Nudge all sockets except those, never waiting, never failing."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._look()
        if not self._names:
            return
        with self._lock, contextlib.suppress(OSError):
            for name in self._names:
                if name not in but:
                    self._nudge(name)

    def _look(self) -> None:
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

    def _nudge(self, name: str) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.sendto(b"", _address(self._descriptor, name))
        except ConnectionRefusedError:
            # Its process is gone; nobody else will remove it.
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
        except OSError:
            return  # full: it has enough nudges to wake up


class HintReceiver:
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
        self._stopped = False
        self._thread = threading.Thread(target=self._receive, name="penstock-hints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped = True
        if os.getpid() != self._pid:  # a fork's child: socket and file are the parent's
            self._socket.close()
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        with contextlib.suppress(OSError):
            (self._folder / self.name).unlink()

    def _receive(self) -> None:
        while not self._stopped:
            try:
                self._socket.recv(1)
            except OSError:
                return
            if not self._stopped:
                self._callback()


def _address(folder: int | None, name: str) -> str:
    # By way of the folder's descriptor: an address holds only about 100 characters.
    return f"/proc/self/fd/{folder}/{name}"
