"""The tables `journal` and `jobs`, column by column: name, Spark's type, meaning, and the stored columns it is made of.

This is the one place where that is written down. The source reads by it, the lake begins with it, and the reference page
is made from it (`python -m penstock.spark.schemas`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import InvalidArgumentError, shown

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["JOBS", "JOURNAL", "TABLES", "Column", "Table", "columns_of", "struct_of"]

RETRY_TYPE: Final = (
    "struct<max_attempts: int, backoff: string, initial_delay: double, max_delay: double, multiplier: double,"
    " jitter: double, retry_on: array<string>>"
)
TIMEOUTS_TYPE: Final = "struct<execution: double, visibility: double, lifetime: double>"


class Column(NamedTuple):
    """One column.

    Attributes:
        name: as users see it.
        type: Spark's, as DDL.
        doc: what it means.
        parts: the stored columns it is made of; none for what the store does not hold.
        form: how the parts become the value (`_convert`): "plain", "bool", "time", "texts", "bytes", "retry",
            "payload", "timeouts" or "source".
    """

    name: str
    type: str
    doc: str
    parts: tuple[str, ...]
    form: str = "plain"


class Table(NamedTuple):
    """A table that can be read: what users call it, what it is called in the store, and its columns."""

    name: str
    stored: str
    doc: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


#: What stored columns hold that are neither text nor blobs: whole numbers.
NUMBERS: Final = frozenset(
    {
        "seq", "recorded_at", "n", "attempt", "retry_count", "failures", "max_attempts", "priority", "due_at",
        "progress", "ready_at", "started_at", "held", "execution", "visibility", "lifetime", "assigned_at", "run_at",
        "created_at", "attempt_started_at", "last_retry_at", "finalized_at", "updated_at", "{scheduled_at}",
    }
)  # fmt: skip
#: Kept outside the job's row, in tables of their own.
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


SOURCE: Final = Column(
    "source",
    "string",
    "The id of the store that the row comes from: 32 hexadecimal digits, made with the store.",
    (),
    "source",
)

JOURNAL: Final = Table(
    "journal",
    "journal",
    "Every change of every job, one row each, never rewritten.",
    (
        SOURCE,
        _plain(
            "seq", "bigint", "The row's number in its store: 1, 2, 3 … without gaps, in the order of commits."
        ),
        _time("recorded_at", "When the change was made, by the store's clock."),
        _text("job_id", "The job."),
        _plain("n", "int", "The number of the change among those of the job: 1 for its first row."),
        _text("type", "The job's type."),
        _text("verb", "What was done: `enqueue`, `claim`, `complete`, `fail`, `delete` …"),
        _text("from_status", "The status before the change; null on the job's first row."),
        _text("status", "The status after it."),
        _plain("attempt", "int", "How often the job had been claimed by then."),
        _plain("retry_count", "int", "How often it had failed or been handed back."),
        _plain("failures", "int", "How many of its attempts counted as failed."),
        _plain("max_attempts", "int", "How many attempts its policy allows; null is no limit."),
        _plain("priority", "int", "0 CRITICAL to 4 BULK."),
        _texts("key", "The parts of its key; null if it has none."),
        _texts("tags", "Its tags."),
        _text("idempotency_key", "Its idempotency key, if it has one."),
        _text("assignee_id", "Who holds it, or held it last."),
        _time("due_at", "Not to be claimed before this moment; null is at once."),
        _text("error_category", "The category of the latest failure: `temporary`, `permanent` …"),
        _text("error_code", "The code that was reported with it."),
        _text("error_message", "Its message; empty if there is none."),
        _plain("progress", "int", "Percent done, as last saved."),
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
    "The jobs that are stored, as they are now.",
    (
        SOURCE,
        _text("id", "The job's id."),
        _plain("n", "int", "How many rows the journal has of it."),
        _text("type", "What is to be done."),
        Column(
            "payload",
            "binary",
            "What it is to be done with; empty if nothing was given.",
            ("payload",),
            "payload",
        ),
        _texts("tags", "Its tags."),
        _plain("priority", "int", "0 CRITICAL to 4 BULK; the most urgent of its own and its dependencies'."),
        Column(
            "retry",
            RETRY_TYPE,
            "The retry policy, delays in seconds; null is to retry for ever.",
            ("retry",),
            "retry",
        ),
        Column(
            "timeouts",
            TIMEOUTS_TYPE,
            "How long things may take, in seconds; null is unlimited.",
            ("execution", "visibility", "lifetime"),
            "timeouts",
        ),
        _text("redrive_of", "The dead job that this one is a copy of."),
        _text("correlation_id", "For tracing."),
        _text("callback_url", "Who is to be told of its end."),
        _text("idempotency_key", "The key under which it was submitted only once."),
        _text(
            "trace",
            "The W3C trace context of whoever submitted it: `traceparent`, then after a space its `tracestate`, if there"
            " is one.",
        ),
        _time("run_at", "Not before this moment; null is at once."),
        _texts("key", "The parts of its key; null if it has none."),
        _texts("after", "The ids that must complete before it."),
        _texts("after_any", "The ids of which one must end before it."),
        _text("parent_id", "The job that spawned it."),
        Column("held", "boolean", "Whether it is claimed by its id only.", ("held",), "bool"),
        _text("status", "Its status, as stored: `initial_pending`, `running`, `completed` …"),
        _plain("attempt", "int", "How often it has been claimed; the fence of its reports."),
        _plain("retry_count", "int", "How often it has failed or been handed back."),
        _plain("failures", "int", "How many of its attempts counted as failed."),
        _text("assignee_id", "Who holds it, or held it last."),
        _time("assigned_at", "Since when."),
        _plain("progress", "int", "Percent done, as last saved."),
        _text("description", "What it is doing, as last saved."),
        _blob("checkpoint", "What an attempt saved for the next one."),
        _blob("result", "What it returned."),
        _text("error_message", "The message of its latest failure; empty if there is none."),
        _text("error_category", "Its category: `temporary`, `permanent` …"),
        _text("error_code", "The code that was reported with it."),
        _time("created_at", "When it was submitted."),
        _time("scheduled_at", "When it last became ready; null while it is not.", "{scheduled_at}"),
        _time("started_at", "When it was first claimed."),
        _time("attempt_started_at", "When it was last claimed."),
        _time("last_retry_at", "When it last failed or was handed back."),
        _time("finalized_at", "When it ended; null while it has not."),
        _time("updated_at", "When it last changed."),
    ),
)

TABLES: Final = {table.name: table for table in (JOURNAL, JOBS)}


def struct_of(table: Table) -> StructType:
    """Return a table's columns as Spark's schema."""
    from pyspark.sql import types as T  # noqa: PLC0415 - the page of reference needs no Spark

    texts = T.ArrayType(T.StringType())
    retry = T.StructType(
        [
            T.StructField("max_attempts", T.IntegerType()),
            T.StructField("backoff", T.StringType()),
            *(
                T.StructField(name, T.DoubleType())
                for name in ("initial_delay", "max_delay", "multiplier", "jitter")
            ),
            T.StructField("retry_on", texts),
        ]
    )
    timeouts = T.StructType(
        [T.StructField(name, T.DoubleType()) for name in ("execution", "visibility", "lifetime")]
    )
    types: dict[str, DataType] = {
        "string": T.StringType(),
        "int": T.IntegerType(),
        "bigint": T.LongType(),
        "boolean": T.BooleanType(),
        "timestamp": T.TimestampType(),
        "binary": T.BinaryType(),
        "array<string>": texts,
        RETRY_TYPE: retry,
        TIMEOUTS_TYPE: timeouts,
    }
    return T.StructType([T.StructField(each.name, types[each.type]) for each in table.columns])


def columns_of(table: Table, schema: Sequence[StructField]) -> list[Column]:
    """Return the columns that a schema given by the user asks for, in its order.

    Raises:
        InvalidArgumentError: a column that the table does not have, or has as another type; names all of them.
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
