"""What claim, complete, enqueue and save write, stated once for all stores.

`decisions` says what a verb does to one row. Claims, completions and plain submissions are too frequent to read each row,
decide and write it back: each store does them in one statement. This module holds the columns of these statements, and of
the journal rows beside them, as SQL that both databases understand; the stores render their statements from it.

In an expression `job` is the row before the step, and a name in braces is a value that the store fills in. A column that
only one store has (PostgreSQL's `late` and `token`) stands in the statement of that store, beside what comes from here.

`tests/backends/test_hot_verbs.py` compares what the statements store with what the decisions say, on every store.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

__all__ = [
    "ATTEMPT_END",
    "CLAIM",
    "COMPLETE",
    "ENQUEUE",
    "FIRST_ENTRY",
    "PLAIN_FIELDS",
    "SAVE",
    "SAVED",
    "STEP_ENTRY",
    "assignments",
    "expressions",
    "is_constant",
    "value_of",
]

#: What a journaled step may change. Everything else is fixed when the job is stored, or has a statement of its own.
SAVED: Final = (
    "tags",
    "priority",
    "order_at",
    "status",
    "closed",
    "gate",
    "unmet",
    "n",
    "attempt",
    "lost_attempt",
    "retry_count",
    "failures",
    "assignee_id",
    "assigned_at",
    "owner",
    "lease_until",
    "deadline_at",
    "due_at",
    "ready_at",
    "started_at",
    "attempt_started_at",
    "last_retry_at",
    "finalized_at",
    "updated_at",
    "progress",
    "error_message",
    "error_category",
    "error_code",
    "correlation_id",
    "callback_url",
    "verb",
    "from_status",
)
_BEGINS: Final = "{verb} IN ('claim', 'restart')"
#: The general path: a row as the decisions left it. `attempt_ready_at` is no part of `Row`: `ready_at` may already be that
#: of the next attempt when the journal asks for it. A description is changed by its own verb, and ends with its attempt.
SAVE: Final = {
    **{name: f"{{{name}}}" for name in SAVED},
    "attempt_ready_at": f"CASE WHEN {_BEGINS} THEN {{ready_at}} ELSE job.attempt_ready_at END",
    "description": f"CASE WHEN {_BEGINS} AND job.attempt > 0 THEN NULL ELSE job.description END",
}

#: A claim of a ready job: `decisions.start`. A ready job is not closed.
CLAIM: Final = {
    "from_status": "job.status",
    "status": "'running'",
    "verb": "'claim'",
    "n": "job.n + 1",
    "updated_at": "{now}",
    "gate": "NULL",
    "attempt": "job.attempt + 1",
    "assignee_id": "{assignee_id}",
    "assigned_at": "{now}",
    "attempt_started_at": "{now}",
    "attempt_ready_at": "job.ready_at",
    "started_at": "COALESCE(job.started_at, {now})",
    "progress": "0",
    "description": "CASE WHEN job.attempt = 0 THEN job.description END",
    "owner": "{owner}",
    "lease_until": "CASE WHEN {owner} IS NULL THEN {now} + job.visibility END",
    "deadline_at": "{now} + job.execution",
}

#: A report that completes a job in flight: `decisions.complete`. Such a job has begun and is not in the ready set, so
#: `started_at`, `ready_at` and `gate` stay as they are.
COMPLETE: Final = {
    "from_status": "job.status",
    "status": "'completed'",
    "verb": "'complete'",
    "n": "job.n + 1",
    "updated_at": "{now}",
    "finalized_at": "{now}",
    "closed": "1",
    "owner": "NULL",
    "lease_until": "NULL",
    "deadline_at": "NULL",
}

#: A new plain job (`Job.is_plain`): `rows.row_of`, in the ready set. Columns that are left out are NULL.
ENQUEUE: Final = {
    "seq": "{seq}",
    "id": "{id}",
    "type": "{type}",
    "tags": "{tags}",
    "priority": "{priority}",
    "max_attempts": "{max_attempts}",
    "retry": "{retry}",
    "execution": "{execution}",
    "visibility": "{visibility}",
    "lifetime": "{lifetime}",
    "expires_at": "{now} + {lifetime}",
    "order_at": "{now}",
    "created_at": "{now}",
    "updated_at": "{now}",
    "ready_at": "{now}",
    "gate": "0",
    "status": "'initial_pending'",
    "closed": "0",
    "unmet": "0",
    "fan": "0",
    "held": "0",
    "depth": "1",
    "n": "1",
    "attempt": "0",
    "retry_count": "0",
    "failures": "0",
    "progress": "0",
    "error_message": "''",
    "after": "'[]'",
    "after_any": "'[]'",
    "verb": "'enqueue'",
}

_ENTRY: Final = {
    "job_seq": "seq",
    "job_id": "id",
    "recorded_at": "updated_at",
    "n": "n",
    "type": "type",
    "verb": "verb",
    "status": "status",
    "attempt": "attempt",
    "retry_count": "retry_count",
    "failures": "failures",
    "max_attempts": "max_attempts",
    "priority": "priority",
    "key": "key",
    "tags": "tags",
    "idempotency_key": "idempotency_key",
    "assignee_id": "assignee_id",
    "due_at": "due_at",
    "error_category": "error_category",
    "error_code": "error_code",
    "error_message": "error_message",
    "progress": "progress",
}
#: The first journal row of a job: each column, and the column of the new job that it repeats.
FIRST_ENTRY: Final = {**_ENTRY, "after": "after", "after_any": "after_any", "parent_id": "parent_id"}
#: Every later row: each column, and the column of the changed job that it repeats.
STEP_ENTRY: Final = {**_ENTRY, "from_status": "from_status"}
#: What a row that ends an attempt has beside, of the job before the step.
ATTEMPT_END: Final = {"ready_at": "attempt_ready_at", "started_at": "attempt_started_at"}

_NAME: Final = re.compile(r"\{(\w+)\}")
#: What a plain job does not share with all others; the store adds `seq` and `now`.
PLAIN_FIELDS: Final = tuple(name for name, text in ENQUEUE.items() if text == f"{{{name}}}" and name != "seq")


def assignments(effect: Mapping[str, str], values: Mapping[str, str]) -> str:
    """Return what follows SET; `values` says how a store writes each name in braces."""
    return ", ".join(f"{column} = {text.format_map(values)}" for column, text in effect.items())


def expressions(texts: Iterable[str], values: Mapping[str, str]) -> str:
    """Return expressions as a list; `values` says how a store writes each name in braces."""
    return ", ".join(text.format_map(values) for text in texts)


def is_constant(text: str) -> bool:
    """Whether an expression of `ENQUEUE` is the same for all plain jobs."""
    return not _parsed(text)[0]


def value_of(text: str, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression of `ENQUEUE`: a constant, a value, or the sum of two."""
    names, constant = _parsed(text)
    if not names:
        return constant
    terms = [values[name] for name in names]
    if len(terms) == 1:
        return terms[0]
    return None if None in terms else sum(terms)


@cache
def _parsed(text: str) -> tuple[tuple[str, ...], Any]:
    """Return the names in an expression and, if there are none, its value."""
    names = tuple(_NAME.findall(text))
    if names:
        if text != " + ".join(f"{{{name}}}" for name in names):
            raise ValueError(f"{text!r} is neither a constant nor a sum of values")
        return names, None
    return names, literal_eval(text)
