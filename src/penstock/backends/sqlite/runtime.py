"""What queues and workers ask for while they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw
import msgspec

from penstock.backends.engine.store import State
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.statements import statement
from penstock.backends.sqlite.tags import rarest_tag

__all__ = ["has_work", "next_due_at", "ready_filters", "states"]

_READY_TYPES: Final = statement(
    "distinct_values", column="type", source="job INDEXED BY job_ready_type WHERE gate = 0"
)
_READY_TAGS: Final = statement("distinct_values", column="tag", source="ready_tag WHERE true")
_MAX_FILTERS: Final = 1_000
# Where work of some types can be, by the indexes of what is ready, due but not promoted yet, in flight, retried.
_OF_TYPES: Final = " AND job.type IN (SELECT value FROM json_each(:types)){tagged} LIMIT 1"
_WORK: Final = tuple(
    f"SELECT 1 FROM {source}{_OF_TYPES}"
    for source in (
        "job INDEXED BY job_ready_type WHERE gate = 0",
        "job INDEXED BY job_delayed WHERE gate = 1 AND priority IN (0, 1, 2, 3, 4) AND due_at <= :now",
        "job INDEXED BY job_assignee WHERE status IN ('running', 'cancelling')",
        "job INDEXED BY job_retrying WHERE status = 'failed_retry' AND held = 0",
        "job INDEXED BY job_retrying WHERE status = 'unknown_retry' AND held = 0",
    )
)
_READY_WITH_TAG: Final = f"SELECT 1 FROM ready_tag CROSS JOIN job ON job.seq = ready_tag.seq WHERE ready_tag.tag = :rarest{_OF_TYPES}"
#: Released jobs, by their own index.
_NEXT_DUE: Final = "SELECT " + ", ".join(
    f"(SELECT min(due_at) FROM job INDEXED BY job_delayed WHERE gate = 1 AND priority = {level})"
    for level in range(5)
)


def states(cursor: apsw.Cursor, ids: Sequence[str]) -> dict[str, State]:
    """See `Store.states`."""
    query = (
        "SELECT id, status, attempt, verb, due_at, owner, seq FROM job"
        " WHERE id IN (SELECT value FROM json_each(?))"
    )
    found = fetch(cursor, query, (msgspec.json.encode(ids).decode(),))
    return {job_id: State(*values) for job_id, *values in found}


def next_due_at(cursor: apsw.Cursor) -> int | None:
    """See `Store.next_due_at`."""
    (found,) = fetch(cursor, _NEXT_DUE)
    return min((due_at for due_at in found if due_at is not None), default=None)


def ready_filters(cursor: apsw.Cursor) -> tuple[frozenset[str], frozenset[str]] | None:
    """See `Runtime.ready_filters`."""
    types, tags = _distinct(cursor, _READY_TYPES), _distinct(cursor, _READY_TAGS)
    return None if types is None or tags is None else (types, tags)


def _distinct(cursor: apsw.Cursor, query: str) -> frozenset[str] | None:
    found = fetch(cursor, query, (_MAX_FILTERS + 1,))
    return None if len(found) > _MAX_FILTERS else frozenset(value for (value,) in found)


def has_work(cursor: apsw.Cursor, types: Sequence[str], tags: Sequence[str], now: int) -> bool:
    """Whether a job of these types that has all tags is ready, due, in flight or waiting for a retry."""
    parameters: dict[str, Any] = {"types": msgspec.json.encode(types).decode(), "now": now}
    queries, tagged = _WORK, ""
    if tags:
        # What is due or in flight is little; what is ready may be a crowd, which its rarest tag narrows.
        queries = (_READY_WITH_TAG, *_WORK[1:])
        parameters["rarest"] = rarest_tag(cursor, tags, "ready_tag")
        for number, tag in enumerate(tags):
            tagged += (
                f" AND EXISTS (SELECT 1 FROM job_tag AS t WHERE t.tag = :tag{number} AND t.seq = job.seq)"
            )
            parameters[f"tag{number}"] = tag
    return any(
        fetch(
            cursor,
            query.format(tagged=tagged),
            {name: value for name, value in parameters.items() if f":{name}" in query + tagged},
        )
        for query in queries
    )
