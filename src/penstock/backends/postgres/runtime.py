"""What queues and workers ask for while they run, each one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.backends.engine.store import State
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.statements import NOW, Statements

__all__ = ["has_work", "next_due_at", "ready_filters", "states"]

_MAX_FILTERS: Final = 1_000
# Where work of some types can be, by the indexes of what is ready, due but not promoted yet, in flight, retried.
_WORK: Final = (
    "job.gate <= 0",
    "job.gate = 1 AND job.priority = ANY('{0,1,2,3,4}') AND job.due_at <= COALESCE(%(now)s::bigint, "
    + NOW
    + ")",
    "job.status IN ('running', 'cancelling')",
    "job.status IN ('failed_retry', 'unknown_retry') AND job.held = 0",
)
_HAS_TAGS: Final = " AND job.tags::jsonb ?& %(tags)s::text[]"
_STATES: Final = (
    "SELECT id, status, attempt, verb, due_at, owner, seq FROM {schema}.job WHERE id = ANY(%(ids)s::text[])"
)
_NEXT_DUE: Final = (
    "SELECT min(first.due_at) FROM generate_series(0, 4) AS level CROSS JOIN LATERAL ("
    "SELECT due_at FROM {schema}.job WHERE gate = 1 AND priority = level ORDER BY due_at, seq LIMIT 1) AS first"
)


def states(connection: BoundedConnection, sql: Statements, ids: Sequence[str]) -> dict[str, State]:
    """See `Store.states`."""
    found = connection.execute(sql.text(_STATES), {"ids": list(ids)}).fetchall()
    return {job_id: State(*values) for job_id, *values in found}


def next_due_at(connection: BoundedConnection, sql: Statements) -> int | None:
    """See `Store.next_due_at`."""
    found = connection.execute(sql.text(_NEXT_DUE)).fetchone()
    return None if found is None else found[0]


def has_work(
    connection: BoundedConnection,
    sql: Statements,
    *,
    types: Sequence[str],
    tags: Sequence[str],
    now: int | None,
) -> bool:
    """Whether a job of these types that has all tags is ready, due, in flight or waiting for a retry."""
    also = " AND job.type = ANY(%(types)s::text[])" + (_HAS_TAGS if tags else "")
    looks = " OR ".join(f"EXISTS (SELECT FROM {{schema}}.job WHERE {place}{also})" for place in _WORK)
    parameters: dict[str, Any] = {"types": list(types), "now": now}
    if tags:
        parameters["tags"] = list(tags)
    found = connection.execute(sql.text(f"SELECT {looks}"), parameters).fetchone()
    return found is not None and bool(found[0])


def ready_filters(
    connection: BoundedConnection, sql: Statements
) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the types and the tags of ready jobs; None if there are very many."""
    # One more than the most, and the null at the end of each chain.
    found = connection.execute(sql["ready_filters"], {"limit": _MAX_FILTERS + 2}).fetchone() or ([], [])
    types, tags = (frozenset(each for each in values if each is not None) for values in found)
    return None if max(len(types), len(tags)) > _MAX_FILTERS else (types, tags)
