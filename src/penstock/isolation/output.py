"""The output of a job: the beginning and the end are kept, the middle of very much is counted and left out."""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["DEFAULT_LIMIT", "Output"]

#: Bytes that are kept unless a task says otherwise.
DEFAULT_LIMIT: Final = 65536


class Output:
    """Bytes that a job wrote to stdout and stderr, in the order in which they came. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._lock = threading.Lock()
        #: How many bytes were written in all.
        self.total = 0

    def add(self, data: bytes | memoryview) -> None:
        """Add what was read."""
        with self._lock:
            self.total += len(data)
            room = self._head_limit - len(self._head)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            if len(data) >= self._tail_limit:
                self._tail[:] = data[len(data) - self._tail_limit :]
            elif data:
                self._tail += data
                if len(self._tail) > 2 * self._tail_limit:  # not at each small piece
                    del self._tail[: -self._tail_limit]

    def text(self) -> str:
        """Return what is kept, as text; whatever is not UTF-8 is shown escaped."""
        with self._lock:
            head, total = bytes(self._head), self.total
            tail = bytes(self._tail[-self._tail_limit :]) if self._tail_limit else b""
        left_out = total - len(head) - len(tail)
        gap = f"\n… {left_out} bytes left out …\n".encode() if left_out else b""
        return (head + gap + tail).decode("utf-8", "backslashreplace")
