"""Stores plain jobs (`Job.is_plain`) by one statement, without an explicit transaction."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.backends.engine.rows import encode_policy, encode_strings, encode_timeouts
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.shared_state import SharedState
from penstock.errors import JobExistsError, QueueBlockedError
from penstock.job import Job

__all__ = ["PlainRow", "plain_row", "store", "stored_by", "verdicts"]


class PlainRow(msgspec.Struct):
    """What a plain job does not leave at its default. The payload travels as base64 inside JSON."""

    id: str
    type: str
    tags: str
    priority: int
    max_attempts: int | None
    retry: str | None
    execution: int | None
    visibility: int | None
    lifetime: int | None
    payload: str = ""


def plain_row(job: Job, *, with_payload: bool = True) -> PlainRow:
    """Return a plain job as a row."""
    retry = job.retry
    execution, visibility, lifetime = encode_timeouts(job.timeouts)
    return PlainRow(
        job.id,
        job.type,
        encode_strings(job.tags),
        int(job.priority),
        None if retry is None else retry.max_attempts,
        None if retry is None else encode_policy(retry),
        execution,
        visibility,
        lifetime,
        base64.b64encode(bytes(job.payload)).decode() if with_payload else "",
    )


def store(
    connection: BoundedConnection, shared: SharedState, jobs: Sequence[Job], now: int | None, token: int
) -> tuple[bool, set[str], int]:
    """Store plain jobs; return whether the queue is open, the ids stored, and the time of it.

    `token` is stored with them: by it `stored_by` finds the rows of this call, and no others.
    """
    is_tagged = any(job.tags for job in jobs)
    if len(jobs) == 1:
        return _store_one(connection, shared, jobs[0], now, token, is_tagged=is_tagged)
    rows = [plain_row(job) for job in {job.id: job for job in reversed(jobs)}.values()]
    parameters = {
        "rows": msgspec.json.encode(rows[::-1]).decode(), "now": now, "is_long": False, "token": token
    }  # fmt: skip
    found = connection.execute(shared.enqueue_many(is_tagged=is_tagged), parameters).fetchone()
    is_open, stored, moment = found or (True, (), 0)
    return is_open, set(stored), moment


def _store_one(
    connection: BoundedConnection,
    shared: SharedState,
    job: Job,
    now: int | None,
    token: int,
    *,
    is_tagged: bool,
) -> tuple[bool, set[str], int]:
    parameters: dict[str, Any] = msgspec.structs.asdict(plain_row(job, with_payload=False))
    parameters["payload"] = bytes(job.payload)
    parameters["now"] = now
    parameters["token"] = token
    if connection.prepare_threshold is None:
        found = connection.execute(shared.enqueue(is_tagged=is_tagged), parameters).fetchone()
        is_open, is_stored, moment = found or (0, 0, 0)
    else:
        is_open, is_stored, moment = (
            int(field or 0) for field in shared.enqueue_prepared[is_tagged].run(connection, parameters)
        )
    return bool(is_open), {job.id} if is_stored else set(), moment or 0


def stored_by(
    connection: BoundedConnection, shared: SharedState, jobs: Sequence[Job], token: int
) -> set[str]:
    """Return the ids of those jobs that the call with this token has stored."""
    query = shared.sql.text(
        "SELECT id FROM {schema}.job WHERE id = ANY(%(ids)s::text[]) AND token = %(token)s::bigint"
    )
    found = connection.execute(query, {"ids": [job.id for job in jobs], "token": token})
    return {job_id for (job_id,) in found}


def verdicts(jobs: Sequence[Job], stored: set[str], *, is_open: bool) -> list[BaseException | None]:
    """Return for each job None, or why it was not stored. Of two jobs with one id only the first was."""
    found: list[BaseException | None] = []
    for job in jobs:
        if job.id in stored:
            stored = stored - {job.id}
            found.append(None)
        elif is_open:
            found.append(JobExistsError(job.id, [(0, job.id, "it is already stored")]))
        else:
            found.append(QueueBlockedError())
    return found
