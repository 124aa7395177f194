"""The job's end of its channel: messages between the code in a job's process and its supervisor."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from penstock.errors import PenstockError
from penstock.isolation.messages import Answer, Cancel, FrameReader, Message, Request, decode, encode_frame

__all__ = [
    "Channel",
    "Interrupted",
    "RequestRefusedError",
    "SupervisorGoneError",
    "ignore_termination",
    "raise_when_terminated",
]

_PIECE = 65536


class Interrupted(BaseException):
    """SIGTERM reached the job's process, in its main thread."""


class SupervisorGoneError(Exception):
    """The other end of the channel is closed."""


class RequestRefusedError(PenstockError):
    """The supervisor refused a request of the job."""

    code = "request_refused"


# Through the module below `signal`: its enums are many pages that each job's process would have to copy.
_set_handler: Callable[[int, object], object] = _signal.signal
_TERMINATE: Final = int(signal.SIGTERM)
_DEFAULT: Final = int(signal.SIG_DFL)
_IGNORE: Final = int(signal.SIG_IGN)


def raise_when_terminated() -> None:
    """Let SIGTERM raise `Interrupted` once, so that `finally` blocks run; a second one ends the process."""
    _set_handler(_TERMINATE, _interrupt)


def ignore_termination() -> None:
    """Ignore SIGTERM from now on."""
    _set_handler(_TERMINATE, _IGNORE)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _set_handler(_TERMINATE, _DEFAULT)
    raise Interrupted


class Channel:
    """Messages to and from the supervisor. Thread-safe; requests of several threads take turns."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._reader = FrameReader()
        self._bodies: list[bytes] = []
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._requests = 0
        self._answer: Answer | None = None
        self._is_broken = False
        #: Why the job should end; None while it need not.
        self.cancel_reason: str | None = None

    def body(self) -> bytes:
        """Wait for the body of the next frame: the limits of the job, then its payload.

        Raises:
            SupervisorGoneError: there will be none.
        """
        while not self._bodies:
            if not self._receive(None):
                raise SupervisorGoneError("the supervisor is gone")
        return self._bodies.pop(0)

    def send(self, message: Message) -> None:
        """Send a message; waits while the supervisor is busy.

        Raises:
            InvalidArgumentError: it is too large for a frame.
            BrokenPipeError: the supervisor is gone.
        """
        data = memoryview(encode_frame(message))
        with self._sending:
            while data:
                data = data[os.write(self.descriptor, data) :]

    def request(self, verb: str, body: bytes = b"") -> bytes:
        """Ask the supervisor something and wait for the answer.

        Raises:
            RequestRefusedError: the supervisor refused it; the text is its reason.
        """
        with self._receiving:
            self._requests += 1
            self._answer = None
            self.send(Request(self._requests, verb, body))
            while True:
                if self._take() is None and not self._receive(None):
                    raise BrokenPipeError("the supervisor is gone")
                answer = self._answer
                if answer is not None and answer.number == self._requests:
                    break
        if answer.error:
            raise RequestRefusedError(answer.error)
        return answer.body

    @property
    def is_cancelled(self) -> bool:
        """Whether the job should end."""
        return self.wait_cancelled(0)

    def wait_cancelled(self, timeout: float | None) -> bool:
        """Wait until the job should end, at most `timeout` seconds; return whether it should."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.cancel_reason is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            # A thread that waits for an answer reads the notice as well.
            if not self._receiving.acquire(timeout=-1 if left is None else left):
                break
            try:
                if (
                    self._take() is None
                    and not self._receive(left)
                    and (timeout is not None or self._is_broken)
                ):
                    break
            finally:
                self._receiving.release()
        return self.cancel_reason is not None

    def _take(self) -> Message | None:
        """Handle the next message that has arrived; None if there is none."""
        if not self._bodies:
            return None
        message = decode(self._bodies.pop(0))
        if isinstance(message, Cancel):
            self.cancel_reason = message.reason
        elif isinstance(message, Answer):
            self._answer = message
        return message

    def _receive(self, timeout: float | None) -> bool:
        """Read what arrives within `timeout` seconds; False if nothing did."""
        if timeout is not None:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            if not poll.poll(timeout * 1000):
                return False
        data = b"" if self._is_broken else os.read(self.descriptor, _PIECE)
        if not data:
            self._is_broken = True
            return False
        self._bodies += self._reader.feed(data)
        return True
