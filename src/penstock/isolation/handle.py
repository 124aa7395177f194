"""A child process as its supervisor sees it, and the link to its warden."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from penstock.errors import ProcessControlError
from penstock.isolation import system
from penstock.isolation.control import End, Locate, Signal, ToWarden
from penstock.isolation.endings import Ending
from penstock.isolation.limits import Grace, Limits, encode_limits
from penstock.isolation.messages import Cancel, FrameReader, Message, encode_frame, frame
from penstock.isolation.output import Output

__all__ = ["JobProcess", "WardenLink", "Watcher", "first_frames"]

logger = logging.getLogger("penstock")
STOP_SECONDS: Final = 5.0
NO_LIMITS: Final = Limits()
_encode = msgspec.msgpack.Encoder().encode


class Watcher(Protocol):
    """Receives the messages and the end of a job. Called on the supervisor's thread, so it must be quick and must not raise."""

    def received(self, process: JobProcess, message: Message) -> None:
        """Called with a message of the job."""
        ...

    def ended(self, process: JobProcess, ending: Ending) -> None:
        """Called when the process and all processes that it started have ended; no message follows."""
        ...


class JobProcess:
    """A job's process, as its supervisor sees it. Thread-safe.

    Attributes:
        output: what it wrote to stdout and stderr.
        ending: how it ended; None while it runs.
    """

    def __init__(
        self, number: int, warden: WardenLink, watcher: Watcher | None = None, limits: Limits = NO_LIMITS
    ) -> None:
        self.number = number
        self.known_pid: int | None = None
        self.output = Output(limits.output)
        self.ending: Ending | None = None
        #: None while the process waits for a job.
        self.watcher = watcher
        #: Whether the other end of its channel is closed.
        self.is_dead = False
        self._warden = warden
        self.channel_end = -1
        self.output_end = -1
        self.reader = FrameReader()
        self.unsent: deque[memoryview] = deque()
        self.lock = threading.Lock()
        self._done: threading.Event | None = None
        self._located: threading.Event | None = None

    def __repr__(self) -> str:
        state = self.ending.cause if self.ending else "running"
        return f"<JobProcess {self.number} pid {self.known_pid}: {state}>"

    def post(self, data: bytes) -> bool:
        """Send the process its job; False if it is gone, and the job has not begun."""
        with self.lock:
            if self.channel_end < 0:
                return False
            try:
                sent = os.write(self.channel_end, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.is_dead = True
                return False
            if sent < len(data):
                self.unsent.append(memoryview(data)[sent:])
                self._warden.want_write(self.channel_end)
        return True

    def send(self, message: Message) -> None:
        """Send the job a message; does nothing if it is gone. Never waits."""
        self.send_frame(encode_frame(message))

    def end(self, grace: Grace | None = None, *, reason: str = "") -> None:
        """End the process: notice (a `Cancel` with the reason), SIGTERM, SIGKILL, with the given grace between them."""
        with contextlib.suppress(OSError):
            self.send(Cancel(reason))
        grace = grace or Grace()
        self._warden.send(End(self.number, grace.notice, grace.term))

    def kill(self) -> None:
        """Kill the process and all below it, now."""
        self._warden.send(End(self.number, 0, 0))

    def signal(self, number: int) -> None:
        """Send a signal to the job's process group."""
        self._warden.send(Signal(self.number, number))

    def suspend(self) -> None:
        """Stop the processes of the job's group (SIGSTOP), and wait until the job's own has stopped.

        Raises:
            ProcessControlError: it does not stop.
        """
        self.signal(signal.SIGSTOP)
        until = time.monotonic() + STOP_SECONDS
        pid = self.pid
        while self.ending is None and not (pid and system.is_stopped(pid)):
            if time.monotonic() > until:
                raise ProcessControlError(f"process {pid} could not be stopped within {STOP_SECONDS:g} s")
            time.sleep(0.001)

    def resume(self) -> None:
        """Continue these processes (SIGCONT)."""
        self.signal(signal.SIGCONT)

    @property
    def pid(self) -> int | None:
        """The process's id; None if it has none, or for a watcher, which cannot wait for the answer."""
        if self.known_pid is None and self.ending is None and not self._warden.is_own_thread():
            with self.lock:
                if self._located is None:
                    self._located = threading.Event()
                located = self._located
            if self._warden.send(Locate(self.number)):
                located.wait(STOP_SECONDS)
        return self.known_pid

    def locate(self, pid: int) -> None:
        """Set the process's id."""
        self.known_pid = pid
        if self._located is not None:
            self._located.set()

    def wait(self, timeout: float | None = None) -> Ending | None:
        """Wait for the end and return it; None after `timeout` seconds. The watcher was called before."""
        with self.lock:
            if self.ending is None and self._done is None:
                self._done = threading.Event()
            done = self._done
        if done is not None:
            done.wait(timeout)
        return self.ending

    def send_frame(self, data: bytes) -> None:
        """Send bytes that are a frame already."""
        with self.lock:
            if self.channel_end < 0:
                return
            rest = memoryview(data)
            if not self.unsent:
                rest = rest[_write(self.channel_end, rest) :]
            if rest:
                self.unsent.append(rest)
                self._warden.want_write(self.channel_end)

    def flush(self) -> bool:
        """Send what could not be sent at once; whether all of it is sent now."""
        with self.lock:
            while self.unsent and self.channel_end >= 0:
                rest = self.unsent[0]
                rest = rest[_write(self.channel_end, rest) :]
                if rest:
                    self.unsent[0] = rest
                    return False
                self.unsent.popleft()
            return True

    def drain(self, until: float) -> None:
        """Wait until the process has closed its channel, which it does when it ends."""
        poll = select.poll()
        if self.channel_end >= 0:
            poll.register(self.channel_end, 0)  # a hang-up is reported in any case
            poll.poll(max(0.0, until - time.monotonic()) * 1000)

    def notify(self, message: Message) -> None:
        """Pass a message of the job to the watcher."""
        if self.watcher is None:
            return
        try:
            self.watcher.received(self, message)
        except Exception:  # the thread serves other jobs too
            logger.exception("the watcher of a job's process failed")

    def settle(self, ending: Ending) -> None:
        """Set how it ended: call the watcher, then wake the threads that wait."""
        try:
            if self.watcher is not None:
                self.watcher.ended(self, ending)
        except Exception:  # see above
            logger.exception("the watcher of a job's process failed")
        with self.lock:
            self.ending = ending
            done = self._done
            if self._located is not None:
                self._located.set()
        if done is not None:
            done.set()


class WardenLink:
    """A warden's process, and the jobs it has.

    Args:
        control: our end of its socket.
        want_write: called with a channel that is full.
        is_own_thread: whether the calling thread is the supervisor's own.
        wait: waits for the warden's process, once its socket is closed.
        mark: what stands in the environment of everything below it; empty if that is no mark.
    """

    def __init__(
        self,
        control: socket.socket,
        want_write: Callable[[int], None],
        is_own_thread: Callable[[], bool],
        wait: Callable[[], None],
        mark: str = "",
    ) -> None:
        self.want_write = want_write
        self.is_own_thread = is_own_thread
        self.control = control
        self.wait = wait
        self.mark = mark
        self.jobs: dict[int, JobProcess] = {}
        #: Processes that wait for a job.
        self.spares: dict[int, JobProcess] = {}
        #: How many more are being started.
        self.starting = 0
        self.is_lost = False
        self.sending = threading.Lock()

    # The first three are called with the supervisor's lock held: the thread that removes a process settles its ending.

    def assign(self, process: JobProcess, watcher: Watcher, limits: Limits) -> None:
        """Assign a job, and the watcher of its end, to a process."""
        self.spares.pop(process.number, None)
        process.watcher, process.output = watcher, Output(limits.output)
        self.jobs[process.number] = process

    def unassign(self, process: JobProcess) -> bool:
        """Make a process a spare again; return False if its ending was settled."""
        if self.jobs.pop(process.number, None) is None:
            return False
        process.watcher = None
        self.spares[process.number] = process
        return True

    def pop(self, number: int) -> JobProcess | None:
        """Return a process that has ended, with a job or without, and forget it."""
        return self.jobs.pop(number, None) or self.spares.pop(number, None)

    def send(self, packet: ToWarden, descriptors: Sequence[int] = ()) -> bool:
        """Send a packet; return False if the warden is gone."""
        data = _encode(packet)
        with self.sending:
            if self.is_lost:
                return False
            try:
                if descriptors:
                    socket.send_fds(self.control, [data], descriptors)
                else:
                    self.control.send(data)
            except OSError:
                return False
        return True


def first_frames(payload: bytes, limits: Limits) -> bytes:
    """Return what a process finds in its channel first: the limits that it sets itself, and its job.

    Raises:
        InvalidArgumentError: it is too large for a frame.
    """
    return frame(encode_limits(limits)) + frame(payload)


def _write(descriptor: int, data: memoryview) -> int:
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)  # the job is gone; its end is reported by the warden
