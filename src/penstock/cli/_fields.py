"""Jobs and journal rows as JSON fields, derived from the structs."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.job import Job, JournalEntry

__all__ = ["bytes_fields", "job_fields", "journal_fields", "picked", "seconds_since"]

_BYTES: Final = ("payload", "result", "checkpoint")


def bytes_fields(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes for JSON: text if they are UTF-8, else base64; `<name>_encoding` is the encoding."""
    if data is None:
        return {name: None, f"{name}_encoding": None}
    try:
        return {name: data.decode(), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def job_fields(job: Job, *, with_contents: bool = True) -> dict[str, Any]:
    """Return a job for JSON: the fields of `Job`, with its retry policy and timeouts as flat fields.

    Args:
        job: the job.
        with_contents: include payload, result and checkpoint.
    """
    fields = msgspec.structs.asdict(job)
    retry, timeouts = fields.pop("retry"), fields.pop("timeouts")
    contents = {name: fields.pop(name) for name in _BYTES}
    fields |= {
        "priority": int(job.priority),
        "max_attempts": None if retry is None else retry.max_attempts,
        "execution_timeout": timeouts.execution,
        "visibility_timeout": timeouts.visibility,
        "lifetime": timeouts.lifetime,
    }
    if with_contents:
        for name, data in contents.items():
            fields |= bytes_fields(name, data)
    return fields


def journal_fields(entry: JournalEntry) -> dict[str, Any]:
    """Return a journal row for JSON: the fields of `JournalEntry`."""
    return msgspec.structs.asdict(entry) | {"priority": int(entry.priority)}


def picked(struct: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Return some of the fields of a struct."""
    return {name: getattr(struct, name) for name in names}


def seconds_since(moment: datetime | None, now: datetime) -> float | None:
    """Return the seconds that have passed since a time; 0 if clocks disagree."""
    return None if moment is None else max(0.0, (now - moment).total_seconds())
