"""The two pipes of a job's process: its channel, for messages in both ways, and what it prints.

The reactor's thread reads both as they fill, and passes messages to the watcher of the job.
"""

from __future__ import annotations

import os
import selectors
import socket
from typing import Final

import msgspec

from penstock.isolation.handle import JobProcess
from penstock.isolation.messages import Failure, Result, decode
from penstock.isolation.reactor import Reactor

__all__ = ["JobPipes"]

PIECE: Final = 65536


class JobPipes:
    """Opens, reads and closes the pipes of job processes."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor

    def open(self, process: JobProcess) -> tuple[int, int]:
        """Make channel and output of a process; returns the ends for it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        readable, writable = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(readable, False)
        process.channel_end, process.output_end = ours.detach(), readable
        self._reactor.register(process.channel_end, lambda mask: self._on_channel(process, mask))
        self._reactor.register(readable, lambda _mask: self._read_output(process))
        return theirs.detach(), writable

    def drain(self, process: JobProcess) -> None:
        """Read what an ended process has left in its pipes, and close them."""
        while process.channel_end >= 0 and self._read_channel(process):
            continue
        while self._read_output(process):
            continue
        self.close(process)

    def close(self, process: JobProcess) -> None:
        """Close our ends, if they are open."""
        self._close_channel(process)
        self._close_output(process)

    def _on_channel(self, process: JobProcess, mask: int) -> None:
        """Read from a job's channel, and send what waits for room."""
        if mask & selectors.EVENT_WRITE and process.flush():
            self._reactor.want_read_only(process.channel_end)
        if mask & selectors.EVENT_READ:
            self._read_channel(process)

    def _read_channel(self, process: JobProcess) -> bool:
        """Read one piece of a job's channel; return False if there is nothing to read now, or ever again."""
        data = _read_piece(process.channel_end)
        if data is None:
            return False
        if data:
            try:
                messages = [decode(body) for body in process.reader.feed(data)]
            except (ValueError, msgspec.DecodeError):
                process.kill()  # it wrote something that is no message
            else:
                for message in messages:
                    if isinstance(message, Result | Failure):
                        # What it printed before is in the pipe by now, and the watcher may need it at the end.
                        # Once: what it left running may print for ever.
                        self._read_output(process)
                    process.notify(message)
                return True
        self._close_channel(process)
        return False

    def _read_output(self, process: JobProcess) -> bool:
        if process.output_end < 0:
            return False
        data = _read_piece(process.output_end)
        if data is None:
            return False
        if data:
            process.output.add(data)
            return True
        self._close_output(process)
        return False

    def _close_channel(self, process: JobProcess) -> None:
        process.is_dead = True
        with process.lock:
            descriptor, process.channel_end = process.channel_end, -1
        self._drop(descriptor)

    def _close_output(self, process: JobProcess) -> None:
        with process.lock:
            descriptor, process.output_end = process.output_end, -1
        self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        if descriptor >= 0:
            self._reactor.unregister(descriptor)
            os.close(descriptor)


def _read_piece(descriptor: int) -> bytes | None:
    """Return what can be read now; None if that is nothing, and empty bytes at the end."""
    try:
        return os.read(descriptor, PIECE)
    except BlockingIOError:
        return None
    except OSError:
        return b""
