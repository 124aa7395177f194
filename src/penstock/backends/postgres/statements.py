"""The SQL texts, read once and bound to a schema.

In `sql/<name>.sql`, `{schema}` is the quoted schema, the column lists come from `rows.COLUMNS`, what hot verbs write comes
from `engine.writes`, and what several statements have in common stands in a file of its own.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from penstock.backends.engine import writes
from penstock.backends.engine.rows import COLUMNS, FIRST_CLAIM_COLUMNS, IS_USUAL, JOURNAL_COLUMNS, Row
from penstock.backends.sql_files import fill, read_sql
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
_TEXTS: Final = frozenset(
    each.name for each in msgspec.structs.fields(Row) if each.type is str or each.type == (str | None)
)
#: The columns of a plain job that its statement names. The defaults of the table write the other constants; `gate` has
#: none, because NULL means that a job cannot be claimed.
PLAIN_COLUMNS: Final = tuple(
    name for name, text in writes.ENQUEUE.items() if name == "gate" or not writes.is_constant(text)
)
#: The first journal row of a plain job: what is NULL in the job is NULL in the inbox, and constants are not read from it.
PLAIN_ENTRY: Final = {
    column: writes.ENQUEUE[name] if writes.is_constant(writes.ENQUEUE[name]) else f"stored.{name}"
    for column, name in writes.FIRST_ENTRY.items()
    if name in writes.ENQUEUE
}


def type_of(column: str) -> str:
    """Return the SQL type of a column of `job`: text by its annotation in `Row`, numbers as wide as they must be."""
    if column in _TEXTS:
        return "text"
    if column in _SMALL:
        return "smallint"
    return "integer" if column in _INTEGERS else "bigint"


#: Which late jobs concern a claim, by the name of its statement; a claim by key has no floors, and reads none.
_WANTED: Final = {
    "any": "true",
    "type": "tardy.type = %(type)s",
    "types": "tardy.type = ANY(%(types)s::text[])",
    "tag": "(%(types)s::text[] IS NULL OR tardy.type = ANY(%(types)s::text[]))"
    " AND tardy.tags::jsonb ?& array_append(%(tags)s::text[], %(tag)s::text)",
    "key": "false",
}


def _written() -> dict[str, str]:
    """Return what the hot verbs write, as parts of statements."""
    plain = [writes.ENQUEUE[name] for name in PLAIN_COLUMNS]
    fields = {name: f"%({name})s::{type_of(name)}" for name in writes.PLAIN_FIELDS}
    new = {"seq": "seq", "now": "now"}
    return {
        "save_set": writes.assignments(writes.SAVE, {name: f"given.{name}" for name in COLUMNS}),
        "claim_set": writes.assignments(
            writes.CLAIM,
            {"now": "picked.now", "assignee_id": "%(assignee_id)s", "owner": "%(owner)s::text"},
        ),
        "complete_set": writes.assignments(writes.COMPLETE, {"now": "moment.now"}),
        "plain_columns": ", ".join(PLAIN_COLUMNS),
        "plain_given": writes.expressions(plain, {**new, **fields}),
        "plain_new": writes.expressions(plain, {**new, **{name: name for name in fields}}),
        "plain_fields": ", ".join(writes.PLAIN_FIELDS),
        "plain_typed": ", ".join(f"{name} {type_of(name)}" for name in writes.PLAIN_FIELDS),
        "plain_entry": ", ".join(PLAIN_ENTRY),
        "plain_entry_values": ", ".join(PLAIN_ENTRY.values()),
        "first_entry": ", ".join(writes.FIRST_ENTRY),
        "first_entry_values": ", ".join(f"stored.{name}" for name in writes.FIRST_ENTRY.values()),
        "step_entry": ", ".join(writes.STEP_ENTRY),
        "step_entry_values": ", ".join(f"step.{name}" for name in writes.STEP_ENTRY.values()),
        "end_entry": ", ".join(writes.ATTEMPT_END),
        "end_entry_values": ", ".join(f"step.{name}" for name in writes.ATTEMPT_END.values()),
        "end_entry_if_ended": ", ".join(
            f"CASE WHEN attempt.has_ended THEN old.{name} END" for name in writes.ATTEMPT_END.values()
        ),
    }


_WRITES: Final = _written()


class Statements:
    """Every statement of the store, for one schema."""

    def __init__(self, schema: str) -> None:
        self.schema = f'"{checked_schema(schema)}"'
        self._parts = {
            "schema": self.schema,
            "columns": ", ".join(COLUMNS),
            "job_columns": ", ".join(f"job.{name}" for name in COLUMNS),
            "first_columns": ", ".join(f"claimed.{name}" for name in FIRST_CLAIM_COLUMNS),
            "is_usual": f"({IS_USUAL})",
            "typed_columns": ", ".join(f"{name} {type_of(name)}" for name in COLUMNS),
            "journal_columns": ", ".join(JOURNAL_COLUMNS),
            **_WRITES,
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
        parts = (self["moment"], self.filled("late", is_wanted=wanted), picked, self["claim_assign"])
        return f"WITH {' '.join(parts)}"

    def __getitem__(self, name: str) -> str:
        """Return the statement of `sql/<name>.sql`."""
        found = self._ready.get(name)
        if found is None:
            found = self._ready[name] = self.text(read_sql(__package__, name))
        return found

    def text(self, template: str, **parts: str) -> str:
        """Return a template with schema, column lists and `parts` filled in."""
        return fill(template, {**self._parts, **parts})

    def filled(self, name: str, **parts: str) -> str:
        """Return the statement of `sql/<name>.sql` with `parts` filled in."""
        return self.text(read_sql(__package__, name), **parts)


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
