"""Capture of the output of jobs on threads: kept with each job, and written to the original stream as well.

`sys.stdout` and `sys.stderr` are one for all threads. While a worker runs jobs on threads, they are replaced by a stream
that finds the job of the calling code in a context variable, which coroutines and `asyncio.to_thread` inherit. Threads that
a handler starts by itself do not, and neither do processes and code that writes to descriptors.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from penstock.isolation.output import Output

__all__ = ["Capture", "capturing"]


class Capture:
    """Collects what one job after another prints."""

    __slots__ = ("_limit", "_output")

    def __init__(self) -> None:
        self._limit = 0
        self._output: Output | None = None

    def begin(self, limit: int) -> None:
        """Collect for another job, in the calling thread and what it awaits: so many bytes at the most."""
        self._limit, self._output = limit, None
        _current.set(self)

    def add(self, text: str) -> None:
        output = self._output
        if output is None:  # few jobs print anything
            output = self._output = Output(self._limit)
        output.add(text.encode("utf-8", "backslashreplace"))

    def text(self) -> str:
        """Return what was printed so far; empty if nothing was."""
        return "" if self._output is None else self._output.text()


_current: contextvars.ContextVar[Capture | None] = contextvars.ContextVar("penstock_capture", default=None)


class _Stream:
    """Replaces a stream: what a job writes is collected, and everything is passed on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        capture = _current.get()
        if capture is not None and isinstance(text, str):
            capture.add(text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


_lock = threading.Lock()
_users = 0


@contextmanager
def capturing() -> Iterator[None]:
    """Collect what jobs print while the block runs; several workers of one process share it."""
    global _users  # noqa: PLW0603  # as sys.stdout is
    with _lock:
        _users += 1
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, _Stream):
                setattr(sys, name, _Stream(stream))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if not _users and isinstance(stream, _Stream):  # otherwise other code has replaced it
                    setattr(sys, name, stream._stream)  # noqa: SLF001  # of this module
