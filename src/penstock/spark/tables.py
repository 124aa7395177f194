"""The tables of a lake, column by column.

This is the one place where that is written down: tables are written and read by it, and the reference page is made from
it (`python -m penstock.spark.tables`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.spark.schemas import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["LAKE_TABLES", "LakeColumn", "LakeTable"]


class LakeColumn(NamedTuple):
    """One column: its name, Spark's type, and what it means."""

    name: str
    type: str
    doc: str


class LakeTable(NamedTuple):
    """One table of a lake.

    Attributes:
        name: also the folder's.
        keys: the columns that tell its rows apart.
        by_day: whether its files lie in a folder for each day, which readers see as one more column, `day`.
    """

    name: str
    doc: str
    keys: tuple[str, ...]
    columns: tuple[LakeColumn, ...]
    by_day: bool = False

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def struct(self) -> StructType:
        """Return the columns of its files as Spark's schema."""
        from pyspark.sql.types import StructType  # noqa: PLC0415  # the page of reference needs no Spark

        return cast("StructType", StructType.fromDDL(self.ddl))

    @property
    def ddl(self) -> str:
        """Return the same as text, which takes fewer calls into the JVM."""
        return ", ".join(f"`{each.name}` {each.type}" for each in self.columns)


_C = LakeColumn
_SOURCE = _C("source", "string", "The id of the store that the row comes from.")
_JOB = _C("job_id", "string", "The job's id.")
_HISTORY = _C("history", "int", "1, and 2, 3 … if the id was used again after its job had been removed.")

EVENTS: Final = LakeTable(
    "events",
    "The journal as it was written: one row for every change of every job. `day` is that of `recorded_at`.",
    ("source", "seq"),
    tuple(_C(each.name, each.type, each.doc) for each in JOURNAL.columns),
    by_day=True,
)

ATTEMPTS: Final = LakeTable(
    "attempts",
    "One row for each attempt that has ended. An attempt that was given up and reports later is amended."
    " `day` is that of `ended_at`.",
    ("source", "job_id", "history", "attempt"),
    (
        _SOURCE,
        _JOB,
        _HISTORY,
        _C("attempt", "int", "The number of the attempt: 1 for the first claim."),
        _C("type", "string", "The job's type."),
        _C("key", "array<string>", "The parts of the job's key; null if it has none."),
        _C("tags", "array<string>", "The job's tags when the attempt ended."),
        _C("assignee_id", "string", "Who made the attempt."),
        _C(
            "ready_at",
            "timestamp",
            "Since when it could have been claimed: due, its dependencies met, its key's turn come.",
        ),
        _C("started_at", "timestamp", "When it was claimed."),
        _C("ended_at", "timestamp", "When it was reported, or given up."),
        _C("wait_seconds", "double", "From `ready_at` to `started_at`."),
        _C("run_seconds", "double", "From `started_at` to `ended_at`."),
        _C("outcome", "string", "The status that ended it: `completed`, `failed_retry`, `unknown_retry` …"),
        _C("error_category", "string", "The category of its failure, if it failed."),
        _C("error_code", "string", "The code that was reported with it."),
        _C("error_message", "string", "Its message; null if there is none."),
    ),
    by_day=True,
)

JOBS: Final = LakeTable(
    "jobs",
    "What each job is by its latest row. A job that was removed from the store stays here, with `removed_at`.",
    ("source", "job_id", "history"),
    (
        _SOURCE,
        _JOB,
        _HISTORY,
        _C("n", "int", "How many rows the journal has of it."),
        _C("type", "string", "Its type."),
        _C("key", "array<string>", "The parts of its key; null if it has none."),
        _C("tags", "array<string>", "Its tags."),
        _C("priority", "int", "0 CRITICAL to 4 BULK."),
        _C("idempotency_key", "string", "Its idempotency key, if it has one."),
        _C("status", "string", "Its status: `initial_pending`, `running`, `completed` …"),
        _C("attempt", "int", "How often it has been claimed."),
        _C("retry_count", "int", "How often it has failed or been handed back."),
        _C("failures", "int", "How many of its attempts counted as failed."),
        _C("max_attempts", "int", "How many attempts its policy allows; null is no limit."),
        _C("assignee_id", "string", "Who holds it, or held it last."),
        _C("due_at", "timestamp", "Not to be claimed before this moment; null is at once."),
        _C("progress", "int", "Percent done, at its latest change."),
        _C("error_category", "string", "The category of its latest failure."),
        _C("error_code", "string", "The code that was reported with it."),
        _C("error_message", "string", "Its message; empty if there is none."),
        _C("after", "array<string>", "The ids that had to complete before it."),
        _C("after_any", "array<string>", "The ids of which one had to end before it."),
        _C("parent_id", "string", "The job that spawned it."),
        _C("enqueued_at", "timestamp", "When it was stored."),
        _C("started_at", "timestamp", "When it was first claimed."),
        _C("finalized_at", "timestamp", "When it ended; null while it has not."),
        _C("removed_at", "timestamp", "When it was deleted or cleaned up; null while the store has it."),
        _C("updated_at", "timestamp", "When it last changed."),
        _C("first_seq", "bigint", "The number of its first row in `events`."),
        _C("last_seq", "bigint", "The number of its latest row."),
    ),
)

_PERCENTILES = ("p50", "p95", "p99")

HOURLY: Final = LakeTable(
    "hourly",
    "The figures of each hour. Rows with a `worker` tell what that worker's attempts did, by the hour of their end: with"
    " `tag` null all of them, with a tag those of jobs that have it (a job with two tags counts under both, so add up"
    " rows of one kind only). Rows without a `worker` tell what the queue did with a type: what came and what waited."
    " `day` is that of `hour`.",
    ("source", "hour", "type", "tag", "worker"),
    (
        _SOURCE,
        _C("hour", "timestamp", "The beginning of the hour, UTC."),
        _C("type", "string", "The jobs' type."),
        _C("tag", "string", "One tag; null is all jobs, whatever their tags."),
        _C("worker", "string", "The assignee; null in the rows that tell of the queue."),
        _C("attempts", "bigint", "Attempts that ended in this hour."),
        _C("completed", "bigint", "Those that completed their job."),
        _C("failed", "bigint", "Those that ended their job as failed or dead."),
        _C(
            "retried",
            "bigint",
            "Those that failed, were lost or handed back, and left the job to be tried again.",
        ),
        _C("stopped", "bigint", "Those that were stopped or cancelled."),
        _C("failure_rate", "double", "`failed` / `attempts`."),
        _C("retry_rate", "double", "`retried` / `attempts`."),
        _C("throughput", "double", "Completed attempts per second, over the whole hour."),
        _C("busy_seconds", "double", "The sum of run times; 3600 is one slot busy all the time."),
        _C("wait_n", "bigint", "How many attempts the percentiles of waiting stand on."),
        *(_C(f"wait_{each}", "double", f"Percentile {each[1:]} of `wait_seconds`.") for each in _PERCENTILES),
        _C("run_n", "bigint", "How many attempts the percentiles of running stand on."),
        *(_C(f"run_{each}", "double", f"Percentile {each[1:]} of `run_seconds`.") for each in _PERCENTILES),
        _C("wait_sketch", "binary", "KLL sketch of `wait_seconds`; `kll_merge_agg_double` merges several."),
        _C("run_sketch", "binary", "KLL sketch of `run_seconds`."),
        _C("enqueued", "bigint", "Jobs that were stored in this hour; only in rows without a worker."),
        _C("backlog", "bigint", "Jobs that waited at its end, due or not; only in rows without a worker."),
    ),
    by_day=True,
)

_STEP = (
    "struct<job_id: string, history: int, type: string, status: string, ready_at: timestamp, started_at: timestamp,"
    " ended_at: timestamp, wait_seconds: double, run_seconds: double>"
)

FLOWS: Final = LakeTable(
    "flows",
    "One row for each dependency tree (`after`, `after_any`), named after its last job, which nobody waits for.",
    ("source", "flow_id", "history"),
    (
        _SOURCE,
        _C("flow_id", "string", "The id of the last job."),
        _HISTORY,
        _C("type", "string", "The type of the last job."),
        _C("status", "string", "The status of the last job."),
        _C("jobs", "int", "How many jobs the tree has."),
        _C("job_ids", "array<string>", "Their ids."),
        _C("depth", "int", "How many jobs the longest chain has."),
        _C("enqueued_at", "timestamp", "When the first of its jobs was stored."),
        _C("ended_at", "timestamp", "When the last job ended; null while it has not."),
        _C("seconds", "double", "From `enqueued_at` to `ended_at`."),
        _C("critical_wait_seconds", "double", "How long the jobs of the critical path waited to be claimed."),
        _C("critical_run_seconds", "double", "How long they took once they were claimed, retries included."),
        _C(
            "critical_path",
            f"array<{_STEP}>",
            "The chain of jobs that decided when the tree ended, first to last: each was set free by the one before.",
        ),
    ),
)

LAKE_TABLES: Final = {table.name: table for table in (EVENTS, ATTEMPTS, JOBS, HOURLY, FLOWS)}


def reference() -> str:
    """Return the tables as Markdown."""
    lines: list[str] = []
    for table in LAKE_TABLES.values():
        keys = ", ".join(f"`{name}`" for name in table.keys)
        lines += [f"### `{table.name}`", "", f"{table.doc}", "", f"Rows differ in {keys}.", ""]
        lines += ["| Column | Type | Meaning |", "| --- | --- | --- |"]
        shown = {each.name: "array<struct>" if "struct" in each.type else each.type for each in table.columns}
        lines += [f"| `{each.name}` | `{shown[each.name]}` | {each.doc} |" for each in table.columns]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
