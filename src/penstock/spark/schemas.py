"""The columns of the tables `journal` and `jobs`: name, Spark's type, meaning, and the stored columns each is made of.

The data source, the lake and the reference page (`python -m penstock.spark.schemas`) are all made from these definitions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import InvalidArgumentError, shown
from penstock.policy import RetryPolicy, Timeouts

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["JOBS", "JOURNAL", "TABLES", "Column", "Table", "columns_of", "struct_of"]

#: The parts of a policy that are not numbers of seconds or factors.
_RETRY_PARTS: Final = {"max_attempts": "int", "backoff": "string", "retry_on": "array<string>"}
#: Columns that are structs: Spark's type of each part, by name.
_STRUCTS: Final = {
    "retry": {name: _RETRY_PARTS.get(name, "double") for name in RetryPolicy.__struct_fields__},
    "timeouts": dict.fromkeys(Timeouts.__struct_fields__, "double"),
}


class Column(NamedTuple):
    """One column.

    Attributes:
        name: as users see it.
        type: Spark's, as DDL.
        doc: what it means.
        parts: the stored columns it is made of; empty for a column that is not stored.
        form: how the parts are converted to the value (`_convert`): "plain", "bool", "time", "texts", "bytes", "retry",
            "payload", "timeouts" or "source".
    """

    name: str
    type: str
    doc: str
    parts: tuple[str, ...]
    form: str = "plain"


class Table(NamedTuple):
    """A table that can be read: its name for users, its name in the store, and its columns."""

    name: str
    stored: str
    doc: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


#: Columns that are stored in tables of their own.
BLOBS: Final = ("payload", "result", "checkpoint")


def _plain(name: str, type_: str, doc: str) -> Column:
    return Column(name, type_, doc, (name,))


def _text(name: str, doc: str) -> Column:
    return _plain(name, "string", doc)


def _time(name: str, doc: str, part: str | None = None) -> Column:
    return Column(name, "timestamp", doc, (part or name,), "time")


def _texts(name: str, doc: str) -> Column:
    return Column(name, "array<string>", doc, (name,), "texts")


def _blob(name: str, doc: str) -> Column:
    return Column(name, "binary", doc, (name,), "bytes")


def _ddl(parts: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in parts.items())}>"


def _struct(name: str, doc: str, parts: tuple[str, ...]) -> Column:
    return Column(name, _ddl(_STRUCTS[name]), doc, parts, name)


SOURCE: Final = Column(
    "source",
    "string",
    "The id of the store that the row comes from: 32 hexadecimal digits.",
    (),
    "source",
)

JOURNAL: Final = Table(
    "journal",
    "journal",
    "One row per change of a job; rows never change.",
    (
        SOURCE,
        _plain("seq", "bigint", "The row's number in its store: 1, 2, 3 … without gaps, in commit order."),
        _time("recorded_at", "When the change was made, by the store's clock."),
        _text("job_id", "The job."),
        _plain("n", "int", "The number of the change among those of the job: 1 for its first row."),
        _text("type", "The job's type."),
        _text("verb", "The operation: `enqueue`, `claim`, `complete`, `fail`, `delete` …"),
        _text("from_status", "The status before the change; null on the job's first row."),
        _text("status", "The status after the change."),
        _plain("attempt", "int", "How often the job had been claimed."),
        _plain("retry_count", "int", "How often it had failed or been released."),
        _plain("failures", "int", "How many of its attempts counted as failed."),
        _plain("max_attempts", "int", "How many attempts its policy allows; null is no limit."),
        _plain("priority", "int", "0 CRITICAL to 4 BULK."),
        _texts("key", "The parts of its key; null if it has none."),
        _texts("tags", "Its tags."),
        _text("idempotency_key", "Its idempotency key, if it has one."),
        _text("assignee_id", "Its current or last assignee."),
        _time("due_at", "It is not claimed before this moment; null is no delay."),
        _text("error_category", "The category of the latest failure: `temporary`, `permanent` …"),
        _text("error_code", "The code that was reported with the failure."),
        _text("error_message", "The message of the latest failure; empty if there is none."),
        _plain("progress", "int", "Progress in percent, as last saved."),
        _texts("after", "On the job's first row: the ids that had to complete before it."),
        _texts("after_any", "On the job's first row: the ids of which one had to end before it."),
        _text("parent_id", "On the job's first row: the job that spawned it."),
        _time("ready_at", "On the row that ends an attempt: when the job had become ready for it."),
        _time("started_at", "On the row that ends an attempt: when the attempt was claimed."),
    ),
)

JOBS: Final = Table(
    "jobs",
    "job",
    "The stored jobs in their current state.",
    (
        SOURCE,
        _text("id", "The job's id."),
        _plain("n", "int", "How many journal rows it has."),
        _text("type", "The job's type."),
        Column(
            "payload",
            "binary",
            "The payload; empty if none was given.",
            ("payload",),
            "payload",
        ),
        _texts("tags", "Its tags."),
        _plain("priority", "int", "0 CRITICAL to 4 BULK; the most urgent of its own and its dependencies'."),
        _struct("retry", "The retry policy, delays in seconds; null is unlimited retries.", ("retry",)),
        _struct("timeouts", "The time limits in seconds; null is no limit.", Timeouts.__struct_fields__),
        _text("redrive_of", "The dead-lettered job that this one is a copy of."),
        _text("correlation_id", "For tracing."),
        _text("callback_url", "The URL that is called when the job ends."),
        _text("idempotency_key", "The key under which it is submitted only once."),
        Column(
            "unique",
            "string",
            "How long that key is taken: `while_unfinished`, or null for the store's window.",
            ("uniqueness",),
        ),
        _text(
            "trace",
            "The W3C trace context of its submission: `traceparent`, then after a space its `tracestate`, if there is one.",
        ),
        _time("run_at", "It is not claimed before this moment; null is no delay."),
        _texts("key", "The parts of its key; null if it has none."),
        _texts("after", "The ids that must complete before it."),
        _texts("after_any", "The ids of which one must end before it."),
        _text("parent_id", "The job that spawned it."),
        Column("held", "boolean", "Whether it is claimed by its id only.", ("held",), "bool"),
        _text("status", "Its status, as stored: `initial_pending`, `running`, `completed` …"),
        _plain("attempt", "int", "How often it has been claimed; reports are fenced by it."),
        _plain("retry_count", "int", "How often it has failed or been released."),
        _plain("failures", "int", "How many of its attempts counted as failed."),
        _text("assignee_id", "Its current or last assignee."),
        _time("assigned_at", "When it was last assigned."),
        _plain("progress", "int", "Progress in percent, as last saved."),
        _text("description", "The description of its progress, as last saved."),
        _blob("checkpoint", "The checkpoint that an attempt saved for the next one."),
        _blob("result", "Its result."),
        _text("error_message", "The message of its latest failure; empty if there is none."),
        _text("error_category", "The category of its latest failure: `temporary`, `permanent` …"),
        _text("error_code", "The code that was reported with the failure."),
        _time("created_at", "When it was submitted."),
        _time("scheduled_at", "When it last became ready; null while it is not ready.", "{scheduled_at}"),
        _time("started_at", "When it was first claimed."),
        _time("attempt_started_at", "When it was last claimed."),
        _time("last_retry_at", "When it last failed or was released."),
        _time("finalized_at", "When it ended; null before that."),
        _time("updated_at", "When it last changed."),
    ),
)

TABLES: Final = {table.name: table for table in (JOURNAL, JOBS)}
_STORED_AS_NUMBERS: Final = ("int", "bigint", "boolean", "timestamp")
#: Stored columns that hold integers; the others hold texts or blobs.
NUMBERS: Final = frozenset(
    part
    for table in TABLES.values()
    for column in table.columns
    if column.type in _STORED_AS_NUMBERS or column.form == "timeouts"
    for part in column.parts
)


def struct_of(table: Table) -> StructType:
    """Return a table's columns as Spark's schema."""
    from pyspark.sql import types as T  # noqa: PLC0415 - the reference page needs no Spark

    types: dict[str, DataType] = {
        "string": T.StringType(),
        "int": T.IntegerType(),
        "bigint": T.LongType(),
        "double": T.DoubleType(),
        "boolean": T.BooleanType(),
        "timestamp": T.TimestampType(),
        "binary": T.BinaryType(),
        "array<string>": T.ArrayType(T.StringType()),
    }

    def struct(parts: Mapping[str, str]) -> StructType:
        return T.StructType([T.StructField(name, types[kind]) for name, kind in parts.items()])

    types |= {_ddl(parts): struct(parts) for parts in _STRUCTS.values()}
    return struct({each.name: each.type for each in table.columns})


def columns_of(table: Table, schema: Sequence[StructField]) -> list[Column]:
    """Return the columns of a user's schema, in its order.

    Raises:
        InvalidArgumentError: columns are unknown or of another type; names all of them.
    """
    known = {field.name: field for field in struct_of(table)}
    wanted: list[Column] = []
    wrong: list[str] = []
    for field in schema:
        column = table.column(field.name)
        if column is None:
            wrong.append(f"{shown(field.name)} is unknown")
        elif known[field.name].dataType != field.dataType:
            wrong.append(f"{field.name} is {column.type}, not {field.dataType.simpleString()}")
        else:
            wanted.append(column)
    if wrong:
        names = ", ".join(column.name for column in table.columns)
        raise InvalidArgumentError(
            f"the schema does not fit the table {table.name}: {'; '.join(wrong)} (columns: {names})",
            field="schema",
        )
    return wanted


def reference() -> str:
    """Return both tables as Markdown."""
    lines: list[str] = []
    for table in TABLES.values():
        lines += [
            f"### `{table.name}`",
            "",
            table.doc,
            "",
            "| Column | Type | Meaning |",
            "| --- | --- | --- |",
        ]
        lines += [f"| `{each.name}` | `{each.type}` | {each.doc} |" for each in table.columns]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
