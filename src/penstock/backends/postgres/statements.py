"""The SQL texts, read once and bound to a schema.

Larger statements stand in `sql/<name>.sql`. In them `{schema}` is the quoted schema, the column lists come from
`_rows.COLUMNS`, and what several have in common stands in a file of its own; values are always parameters.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Final

from penstock.backends.engine.rows import COLUMNS, FIRST_CLAIM_COLUMNS, IS_USUAL, JOURNAL_COLUMNS
from penstock.errors import InvalidArgumentError, shown

__all__ = ["NOW", "Statements", "checked_schema"]

#: The server's time in microseconds. `now()` would be the start of the transaction, which may have waited for locks.
NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_INTEGERS: Final = {
    "unmet",
    "depth",
    "n",
    "attempt",
    "lost_attempt",
    "retry_count",
    "failures",
    "max_attempts",
}
_SMALL: Final = {"priority", "closed", "gate", "fan", "held", "progress"}
_TEXTS: Final = {
    "id", "type", "tags", "key", "status", "retry", "assignee_id", "owner", "description", "error_message",
    "error_category", "error_code", "correlation_id", "callback_url", "idempotency_key", "uniqueness", "parent_id", "redrive_of",
    "trace", "after", "after_any", "verb", "from_status",
}  # fmt: skip
#: What a step may change. Everything else is fixed when the job is stored, or has a statement of its own.
SAVED: Final = (
    "tags", "priority", "order_at", "status", "closed", "gate", "unmet", "n", "attempt", "lost_attempt", "retry_count", "failures",
    "assignee_id", "assigned_at", "owner", "lease_until", "deadline_at", "due_at", "ready_at", "started_at",
    "attempt_started_at", "last_retry_at", "finalized_at", "updated_at", "progress", "error_message",
    "error_category", "error_code", "correlation_id", "callback_url", "verb", "from_status",
)  # fmt: skip


def type_of(column: str) -> str:
    """Return the SQL type of a column of `job`."""
    if column in _TEXTS:
        return "text"
    if column in _SMALL:
        return "smallint"
    return "integer" if column in _INTEGERS else "bigint"


#: Which late jobs concern a claim, by the name of its statement; a claim by key has no floors, and looks at none.
_WANTED: Final = {
    "any": "true",
    "type": "tardy.type = %(type)s",
    "types": "tardy.type = ANY(%(types)s::text[])",
    "tag": "(%(types)s::text[] IS NULL OR tardy.type = ANY(%(types)s::text[]))"
    " AND tardy.tags::jsonb ?& array_append(%(tags)s::text[], %(tag)s::text)",
    "key": "false",
}


class Statements:
    """Every statement of the store, for one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = f'"{checked_schema(schema)}"'
        self._parts = {
            "schema": self.schema,
            "columns": ", ".join(COLUMNS),
            "job_columns": ", ".join(f"job.{name}" for name in COLUMNS),
            "first_columns": ", ".join(f"taken.{name}" for name in FIRST_CLAIM_COLUMNS),
            "is_usual": f"({IS_USUAL})",
            "typed_columns": ", ".join(f"{name} {type_of(name)}" for name in COLUMNS),
            "assignments": ",\n        ".join(f"{name} = given.{name}" for name in SAVED),
            "journal_columns": ", ".join(JOURNAL_COLUMNS),
            "now": NOW,
            "lowest": "(-9223372036854775807)",
            "highest": "9223372036854775807",
        }
        self._ready: dict[str, str] = {}
        self._parts |= {name: self[name] for name in ("journal_plain", "ready_type")}
        self.claims = {name: self._claim(name, wanted) for name, wanted in _WANTED.items()}
        self.select = self.text("SELECT {job_columns} FROM {schema}.job ")
        # The time is read outside, row by row as they come out: inside it would be read before the row is locked.
        self.lock = self.text(
            "SELECT {columns}, {now} FROM (SELECT {job_columns} FROM {schema}.job TAIL FOR UPDATE) AS locked"
        )

    def _claim(self, name: str, wanted: str) -> str:
        lanes = self.filled("lanes", is_its_type="late.type = wanted.type" if name == "types" else "true")
        picked = self.filled(f"claim_{name}", lanes=lanes)
        parts = (self["moment"], self.filled("late", is_wanted=wanted), picked, self["claim_take"])
        return f"WITH {' '.join(parts)}"

    def __getitem__(self, name: str) -> str:
        """Return the statement of `sql/<name>.sql`."""
        found = self._ready.get(name)
        if found is None:
            found = self._ready[name] = self.text(_read(name))
        return found

    def text(self, template: str, **parts: str) -> str:
        """Return a template with schema, column lists and `parts` filled in."""
        known = {**self._parts, **parts}
        filled = re.sub(r"\{(\w+)\}", lambda match: known[match[1]], template)
        # psycopg keeps its work on a statement of up to 4,096 characters; indentation must not cost that.
        return re.sub(r"\s+", " ", filled)

    def filled(self, name: str, **parts: str) -> str:
        """Return the statement of `sql/<name>.sql` with `parts` filled in."""
        return self.text(_read(name), **parts)


@cache
def _read(name: str) -> str:
    text = resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return re.sub(r"^ *--.*\n", "", text, flags=re.MULTILINE).strip()


def checked_schema(schema: object) -> str:
    """Return a schema name that needs no quoting, so that no other name can come out of it."""
    if not isinstance(schema, str) or not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise InvalidArgumentError(
            f"schema must be a lower-case name of letters, digits and _ (at most 63), got {shown(schema)}",
            field="schema",
            value=schema,
        )
    if schema.startswith("pg_"):
        raise InvalidArgumentError(
            f"schema must not begin with pg_, such names are PostgreSQL's own, got {shown(schema)}",
            field="schema",
            value=schema,
        )
    return schema
