"""The messages between a job's process and its supervisor, and their framing.

A frame is a length of four bytes and a body; a body is one message in MessagePack. Frames have a limit, so that neither
side ever holds more than it must because the other one is broken.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from penstock.errors import InvalidArgumentError

__all__ = [
    "MAX_FRAME",
    "Answer",
    "Cancel",
    "Changed",
    "Checkpoint",
    "Description",
    "Failure",
    "FrameReader",
    "Log",
    "Message",
    "Progress",
    "Request",
    "Result",
    "decode",
    "encode_frame",
    "frame",
]

#: A job has a payload, a result and a checkpoint, each of 16 MiB at the most; a message has one job and little else.
MAX_FRAME: Final = 49 * 1024 * 1024
_LENGTH: Final = 4


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message on the channel of a job."""


class Progress(_Message, frozen=True, tag=1):
    """Progress in percent; None leaves the description as it is."""

    percent: int
    description: str | None = None


class Description(_Message, frozen=True, tag=2):
    """The job's description of its progress."""

    text: str


class Checkpoint(_Message, frozen=True, tag=3):
    """Data for the next attempt."""

    data: bytes


class Result(_Message, frozen=True, tag=4):
    """The job succeeded."""

    data: bytes | None = None


class Failure(_Message, frozen=True, tag=5):
    """The job failed. `category` is a FailureCategory by its value; `retry_after` is in seconds."""

    message: str
    category: str
    code: str | None = None
    retry_after: float | None = None
    traceback: str = ""


class Log(_Message, frozen=True, tag=6):
    """A record of the job's log; `level` is logging's number, `created` its seconds, `fields` what `extra=` gave."""

    level: int
    text: str
    logger: str = "penstock.job"
    created: float = 0.0
    exception: str = ""
    fields: dict[str, str | int | float | bool | None] = {}


class Request(_Message, frozen=True, tag=7):
    """A question of the job; the `Answer` has the same number."""

    number: int
    verb: str
    body: bytes = b""


class Answer(_Message, frozen=True, tag=8):
    """The supervisor's answer to a `Request`; `error` is empty unless it was refused."""

    number: int
    body: bytes = b""
    error: str = ""


class Cancel(_Message, frozen=True, tag=9):
    """The job should end by itself; otherwise it is ended soon."""

    reason: str = ""


class Changed(_Message, frozen=True, tag=10):
    """Something in memory shared with the supervisor has changed."""


Message: TypeAlias = (
    Progress | Description | Checkpoint | Result | Failure | Log | Request | Answer | Cancel | Changed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_frame(message: Message) -> bytes:
    """Return a message as the bytes that are sent.

    Raises:
        InvalidArgumentError: the message is over the limit of a frame.
    """
    body = _encoder.encode(message)
    return frame(body)


def frame(body: bytes) -> bytes:
    """Return bytes with their length before them."""
    if len(body) > MAX_FRAME:
        raise InvalidArgumentError(
            f"a message has {len(body)} bytes; the limit is {MAX_FRAME}", field="message", value=len(body)
        )
    return len(body).to_bytes(_LENGTH, "little") + body


def decode(body: bytes) -> Message:
    """Return the message in the body of a frame; raises msgspec.DecodeError if it is none."""
    return _decoder.decode(body)


class FrameReader:
    """Assembles frames from the pieces that arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that are complete now.

        Raises:
            ValueError: a frame is announced that is over the limit; nothing of this stream can be trusted any more.
        """
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        start, end = 0, len(buffer)
        while end - start >= _LENGTH:
            size = int.from_bytes(buffer[start : start + _LENGTH], "little")
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes is announced; the limit is {MAX_FRAME}")
            if end - start - _LENGTH < size:
                break
            start += _LENGTH
            bodies.append(bytes(buffer[start : start + size]))
            start += size
        if start:
            del buffer[:start]
        return bodies
