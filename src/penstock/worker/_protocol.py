"""Requests of a child process to its worker, and the replies with their answers and errors."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import msgspec

from penstock import errors
from penstock.errors import PenstockError
from penstock.job import Job, Key

__all__ = [
    "Order",
    "Reply",
    "Submission",
    "WaitFor",
    "WaitForAny",
    "decode_ids",
    "decode_job",
    "decode_jobs",
    "decode_order",
    "decode_reply",
    "decode_submission",
    "decode_wait",
    "decode_wait_any",
    "encode",
    "encode_job",
    "encode_jobs",
    "encode_order",
    "error_of",
    "reply_of",
]

#: How long the worker waits for a job's end before the child process has to ask again.
WAIT_SECONDS: Final = 0.25

#: How many jobs, and bytes of jobs, one answer holds.
MAX_JOBS: Final = 1_000
MAX_BYTES: Final = 8 * 1024 * 1024

_BUILT_IN_BACKOFFS: Final = ("constant", "linear", "exponential")


class Order(msgspec.Struct, frozen=True, array_like=True):
    """A job to run.

    Attributes:
        seconds: how long it may take.
        max_payload: how large its result may be.
        log_level: the lowest level of records that the worker's log shows.
    """

    job: Job
    seconds: float
    max_payload: int
    log_level: int = logging.WARNING


class Submission(msgspec.Struct, frozen=True, array_like=True):
    """Jobs to store; the delay counts from the store's now, which their process does not know."""

    jobs: list[Job]
    delay: timedelta | None = None


class WaitFor(msgspec.Struct, frozen=True, array_like=True):
    """Request for a job's end; the answer may take so many seconds."""

    job_id: str
    seconds: float


class WaitForAny(msgspec.Struct, frozen=True, array_like=True):
    """Request for those of some jobs that have ended; the answer may take so many seconds if none has."""

    job_ids: list[str]
    seconds: float


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """An answer, or the error that a verb raised: the name of its class, its text and its plain facts."""

    body: bytes = b""
    error: str = ""
    message: str = ""
    facts: dict[str, Any] = {}


def encode(value: Any) -> bytes:
    """Return anything of this module, or made of plain values, as bytes."""
    return msgspec.msgpack.encode(value)


def encode_order(job: Job, seconds: float, max_payload: int, log_level: int = logging.WARNING) -> bytes:
    """Return what a job's process is started with."""
    return _encoder.encode(Order(_portable(job), seconds, max_payload, log_level))


def encode_job(job: Job) -> bytes:
    """Return a job as an answer."""
    return _encoder.encode(_portable(job))


def encode_jobs(jobs: Iterable[Job]) -> bytes:
    """Return jobs as an answer: the first ones, as many as fit into one message, and at least one."""
    chosen: list[Job] = []
    size = 0
    for job in jobs:
        size += (
            len(job.payload) + len(job.result or b"") + len(job.checkpoint or b"") + len(job.error_message)
        )
        if chosen and (size > MAX_BYTES or len(chosen) >= MAX_JOBS):
            break
        chosen.append(_portable(job))
    return _encoder.encode(chosen)


def _portable(job: Job) -> Job:
    """Return a job that any process can read."""
    if job.retry is not None and job.retry.backoff not in _BUILT_IN_BACKOFFS:
        # A custom backoff is a name that the other process may not have; only the worker needs the policy.
        return msgspec.structs.replace(job, retry=None)
    return job


def _read(kind: type, value: Any) -> Any:
    return Key(*value) if kind is Key else value


_encoder = msgspec.msgpack.Encoder()
decode_order = msgspec.msgpack.Decoder(Order, dec_hook=_read).decode
decode_job = msgspec.msgpack.Decoder(Job, dec_hook=_read).decode
decode_submission = msgspec.msgpack.Decoder(Submission, dec_hook=_read).decode
decode_wait = msgspec.msgpack.Decoder(WaitFor).decode
decode_wait_any = msgspec.msgpack.Decoder(WaitForAny).decode
decode_jobs = msgspec.msgpack.Decoder(list[Job], dec_hook=_read).decode
decode_ids = msgspec.msgpack.Decoder(list[str]).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def reply_of(error: BaseException) -> Reply:
    """Return an error as it crosses the pipe."""
    name = type(error).__name__ if isinstance(error, PenstockError | TimeoutError) else "PenstockError"
    text = str(error) if name != "PenstockError" else f"{type(error).__name__}: {error}"
    facts = {
        key: value
        for key, value in getattr(error, "_facts", {}).items()
        if value is None or isinstance(value, str | int | float | bool)
    }
    return Reply(error=name, message=text[:4000], facts=facts)


def error_of(reply: Reply) -> BaseException:
    """Return the error of a reply: one of ours, by a name from a closed list."""
    if reply.error == "TimeoutError":
        return TimeoutError(reply.message)
    kind = getattr(errors, reply.error, None) if reply.error in errors.__all__ else None
    return errors.rebuild(kind or PenstockError, reply.message, dict(reply.facts))
