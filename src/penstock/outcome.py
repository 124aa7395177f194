"""Outcomes of attempts as values, and the conversion of any exception into one.

Texts are bounded and safe: an exception may be unable to print itself, or have a message of 100 MB, or be one of a chain
of thousands.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Final

import msgspec

from penstock.durations import duration
from penstock.policy import FailureCategory, PermanentError, TemporaryError

__all__ = ["Cancelled", "Completed", "Failed", "Outcome", "Released", "failure_of", "invalid", "too_large"]

MESSAGE_LIMIT: Final = 4_000
TRACE_LIMIT: Final = 16_000
CODE_LIMIT: Final = 200
MAX_FRAMES: Final = 25
MAX_CAUSES: Final = 5
MAX_PER_GROUP: Final = 10


class Completed(msgspec.Struct, frozen=True, tag="completed", gc=False):
    """The handler returned; `result` is JSON, or None."""

    result: bytes | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The attempt failed. `message` has the traceback after an empty line."""

    message: str
    category: FailureCategory = FailureCategory.TEMPORARY
    code: str | None = None
    retry_after: timedelta | None = None


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """The job was cancelled, and its code has ended, or cannot report any more."""

    message: str = "cancelled"


class Released(msgspec.Struct, frozen=True, tag="released"):
    """The job is released; the attempt does not count."""

    message: str


Outcome = Completed | Failed | Cancelled | Released


def invalid(message: str, code: str) -> Failed:
    """Return the failure for an invalid payload or result, which no retry can cure."""
    return Failed(message=message[:MESSAGE_LIMIT], category=FailureCategory.PERMANENT, code=code)


def too_large(size: int, limit: int) -> Failed:
    """Return the failure of a result that the store would refuse."""
    return invalid(f"the result has {size} bytes; the limit is {limit}", "result_too_large")


def failure_of(error: BaseException) -> Failed:
    """Return the failure that an exception of a handler means."""
    category, code, retry_after = _classify(error)
    summary = _text(error) if isinstance(error, TemporaryError | PermanentError) else _summary(error)
    return Failed(
        message=f"{summary or _name(error)}\n\n{_trace(error)}",
        category=category,
        code=code,
        retry_after=retry_after,
    )


def _classify(error: BaseException) -> tuple[FailureCategory, str | None, timedelta | None]:
    if isinstance(error, PermanentError):
        return FailureCategory.PERMANENT, _code(error), None
    if isinstance(error, TemporaryError):
        return FailureCategory.TEMPORARY, _code(error), _pause(error)
    if isinstance(error, MemoryError):
        return FailureCategory.SYSTEM, "out_of_memory", None
    if isinstance(error, SystemExit):
        return FailureCategory.SYSTEM, "system_exit", None
    if isinstance(error, KeyboardInterrupt):
        return FailureCategory.SYSTEM, "keyboard_interrupt", None
    if isinstance(error, Exception) or _is_cancelled_task(error):
        return FailureCategory.TEMPORARY, _name(error)[:CODE_LIMIT], None
    return FailureCategory.SYSTEM, _name(error)[:CODE_LIMIT], None


def _is_cancelled_task(error: BaseException) -> bool:
    """Whether the error is `asyncio.CancelledError`; asyncio is not imported for the question."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def _code(error: TemporaryError | PermanentError) -> str | None:
    code: Any = getattr(error, "code", None)
    return _clean(code[:CODE_LIMIT]) or None if isinstance(code, str) else None


def _pause(error: TemporaryError) -> timedelta | None:
    pause: Any = getattr(error, "retry_after", None)
    try:
        return None if pause is None else duration(pause, "retry_after")
    except Exception:  # the attribute holds no duration; the policy's delay is used then
        return None


def _name(error: BaseException) -> str:
    return _clean(type(error).__name__)


def _summary(error: BaseException) -> str:
    text = _text(error)
    return f"{_name(error)}: {text}" if text else _name(error)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
        if type(text) is not str:
            text = str.__str__(text)
    except BaseException as fault:  # the text of a failure must not become a second one
        return f"(its text cannot be shown: {type(fault).__name__})"
    if len(text) > MESSAGE_LIMIT:
        text = f"{text[:MESSAGE_LIMIT]}… ({len(text)} characters)"
    return _clean(text)


def _clean(text: str) -> str:
    """Return a text that every store can keep."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "backslashreplace").decode("utf-8")


def _trace(error: BaseException) -> str:
    lines: list[str] = []
    room = TRACE_LIMIT
    for line in _trace_lines(error):
        room -= len(line)
        if room < 0:
            lines.append("… (cut)\n")
            break
        lines.append(line)
    return _clean("".join(lines)).rstrip("\n")


def _trace_lines(error: BaseException) -> Iterator[str]:
    """Yield the error's own traceback first, then those of its causes, so that the less useful part is cut."""
    seen: set[int] = set()
    current: BaseException | None = error
    for number in range(MAX_CAUSES):
        if current is None or id(current) in seen:
            return
        seen.add(id(current))
        if number:
            yield "\nCaused by:\n"
        yield "Traceback (most recent call last):\n"
        yield from _frames(current.__traceback__)
        yield f"{_summary(current)}\n"
        if isinstance(current, BaseExceptionGroup):
            for each in current.exceptions[:MAX_PER_GROUP]:
                yield f"  | {_summary(each)}\n"
        cause = current.__cause__
        if cause is None and not current.__suppress_context__:
            cause = current.__context__
        current = cause


def _frames(trace: TracebackType | None) -> Iterator[str]:
    try:
        summary = traceback.extract_tb(trace, limit=-MAX_FRAMES)
        yield from traceback.format_list([frame for frame in summary if not _is_ours(frame.filename)])
    except Exception as fault:  # a source file that cannot be read, a name that is no text
        yield f"  (its frames cannot be shown: {type(fault).__name__})\n"


def _is_ours(filename: str) -> bool:
    """Whether a frame only says how the handler was called."""
    return filename.endswith(("penstock/app/execution.py", "penstock\\app\\execution.py"))
