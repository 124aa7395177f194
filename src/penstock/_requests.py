"""What callers of a queue say beside the fields of a job, and what they get back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypedDict

import msgspec

from penstock.backends.base import Backend, UnsetType
from penstock.errors import InvalidArgumentError, PenstockError, shown
from penstock.job import Job, Key, Priority, distinct
from penstock.policy import RetryPolicy, Timeouts
from penstock.scope import shielded

__all__ = ["SpawnOptions", "labels", "stored_jobs"]

logger = logging.getLogger("penstock")


class SpawnOptions(TypedDict, total=False):
    """The arguments that `Queue.spawn` has in common with `Queue.submit`."""

    tags: Sequence[str] | Mapping[str, str]
    priority: Priority | int
    key: Key | str | Sequence[str] | None
    run_at: datetime | None
    delay: timedelta | float | None
    after: Sequence[str]
    after_any: Sequence[str]
    retry: RetryPolicy | UnsetType | None
    timeouts: Timeouts | UnsetType
    idempotency_key: str | None
    correlation_id: str | None
    callback_url: str | None
    held: bool


def stored_jobs(backend: Backend, requests: Sequence[Job], ids: Sequence[str]) -> list[Job]:
    """Return jobs that were just stored under these ids, as they are now.

    They are stored: whoever is told otherwise would submit them again. So no scope ends this, and if the store cannot
    answer, or somebody has deleted a job since, the request itself is the answer.
    """
    found: dict[str, Job] = {}
    try:
        with shielded():
            found = backend.get_jobs(ids)
    except PenstockError as error:
        logger.warning("jobs were stored, but could not be read: %s", error)
    return [
        found.get(job_id) or msgspec.structs.replace(request, id=job_id)
        for request, job_id in zip(requests, ids, strict=True)
    ]


def labels(tags: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """Return tags as they are stored; a mapping becomes "key=value" labels."""
    if not isinstance(tags, Mapping):
        return distinct("tags", tags)
    found = []
    for name, value in tags.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"tags must map strings to strings, got {shown((name, value))}", field="tags", value=name
            )
        found.append(f"{name.replace(chr(92), chr(92) * 2).replace('=', chr(92) + '=')}={value}")
    return tuple(found)
