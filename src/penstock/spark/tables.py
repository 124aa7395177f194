"""The columns of the tables of a lake.

Tables are written and read by these definitions, and the reference page is made from them (`python -m
penstock.spark.tables`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.spark.schemas import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["LAKE_TABLES", "LakeColumn", "LakeTable"]


class LakeColumn(NamedTuple):
    """One column: its name, Spark's type, and its meaning."""

    name: str
    type: str
    doc: str


class LakeTable(NamedTuple):
    """One table of a lake.

    Attributes:
        name: also the folder's.
        keys: the columns that identify a row.
        by_day: whether its files are in one folder per day, which readers see as one more column, `day`.
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
        from pyspark.sql.types import StructType  # noqa: PLC0415  # the reference page needs no Spark

        return cast("StructType", StructType.fromDDL(self.ddl))

    @property
    def ddl(self) -> str:
        """The columns as DDL, which takes fewer calls into the JVM."""
        return ", ".join(f"`{each.name}` {each.type}" for each in self.columns)


_C = LakeColumn
_SOURCE = _C("source", "string", "The id of the store that the row comes from.")
_JOB = _C("job_id", "string", "The job's id.")
_HISTORY = _C("history", "int", "1; 2, 3 … if the id was used again after its job was removed.")

EVENTS: Final = LakeTable(
    "events",
    "The journal as it was written: one row per change of a job. `day` is that of `recorded_at`.",
    ("source", "seq"),
    tuple(_C(each.name, each.type, each.doc) for each in JOURNAL.columns),
    by_day=True,
)

ATTEMPTS: Final = LakeTable(
    "attempts",
    "One row per ended attempt. The row of a lost attempt is amended if it reports later."
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
        _C("assignee_id", "string", "The assignee of the attempt."),
        _C(
            "ready_at",
            "timestamp",
            "When it became claimable: due, its dependencies met, and first of its key.",
        ),
        _C("started_at", "timestamp", "When it was claimed."),
        _C("ended_at", "timestamp", "When it was reported or lost."),
        _C("wait_seconds", "double", "From `ready_at` to `started_at`."),
        _C("run_seconds", "double", "From `started_at` to `ended_at`."),
        _C("outcome", "string", "The status that ended it: `completed`, `failed_retry`, `unknown_retry` …"),
        _C("error_category", "string", "The category of its failure, if it failed."),
        _C("error_code", "string", "The code that was reported with the failure."),
        _C("error_message", "string", "The message of its failure; null if there is none."),
        _C(
            "released",
            "boolean",
            "Whether it was released without counting: by a worker that stopped, or with a wave of `run_frames`.",
        ),
    ),
    by_day=True,
)

JOBS: Final = LakeTable(
    "jobs",
    "The state of each job after its latest journal row. A job that was removed from the store stays here, with `removed_at`.",
    ("source", "job_id", "history"),
    (
        _SOURCE,
        _JOB,
        _HISTORY,
        _C("n", "int", "How many journal rows it has."),
        _C("type", "string", "Its type."),
        _C("key", "array<string>", "The parts of its key; null if it has none."),
        _C("tags", "array<string>", "Its tags."),
        _C("priority", "int", "0 CRITICAL to 4 BULK."),
        _C("idempotency_key", "string", "Its idempotency key, if it has one."),
        _C("status", "string", "Its status: `initial_pending`, `running`, `completed` …"),
        _C("attempt", "int", "How often it has been claimed."),
        _C("retry_count", "int", "How often it has failed or been released."),
        _C("failures", "int", "How many of its attempts counted as failed."),
        _C("max_attempts", "int", "How many attempts its policy allows; null is no limit."),
        _C("assignee_id", "string", "Its current or last assignee."),
        _C("due_at", "timestamp", "It is not claimed before this moment; null is no delay."),
        _C("progress", "int", "Progress in percent, at its latest change."),
        _C("error_category", "string", "The category of its latest failure."),
        _C("error_code", "string", "The code that was reported with the failure."),
        _C("error_message", "string", "The message of its latest failure; empty if there is none."),
        _C("after", "array<string>", "The ids that had to complete before it."),
        _C("after_any", "array<string>", "The ids of which one had to end before it."),
        _C("parent_id", "string", "The job that spawned it."),
        _C("enqueued_at", "timestamp", "When it was enqueued."),
        _C("started_at", "timestamp", "When it was first claimed."),
        _C("finalized_at", "timestamp", "When it ended; null before that."),
        _C("removed_at", "timestamp", "When it was deleted or cleaned up; null before that."),
        _C("updated_at", "timestamp", "When it last changed."),
        _C("first_seq", "bigint", "The `seq` of its first row in `events`."),
        _C("last_seq", "bigint", "The `seq` of its latest row."),
    ),
)

_PERCENTILES = ("p50", "p95", "p99")

HOURLY: Final = LakeTable(
    "hourly",
    "Metrics per hour. Rows with a `worker` are about that worker's attempts, by the hour of their end: with `tag` null"
    " about all of them, with a tag about those of jobs that have it (a job with two tags counts under both, so add up"
    " rows of one kind only). Rows without a `worker` are about the queue of a type: enqueued and waiting jobs."
    " `day` is that of `hour`.",
    ("source", "hour", "type", "tag", "worker"),
    (
        _SOURCE,
        _C("hour", "timestamp", "The beginning of the hour, UTC."),
        _C("type", "string", "The jobs' type."),
        _C("tag", "string", "One tag; null is all jobs, with any tags."),
        _C("worker", "string", "The assignee; null in rows about the queue."),
        _C("attempts", "bigint", "Attempts that ended in this hour."),
        _C("completed", "bigint", "Attempts that completed their job."),
        _C("failed", "bigint", "Attempts that ended their job as failed or dead-lettered."),
        _C(
            "retried",
            "bigint",
            "Attempts that failed or were lost, after which the job is retried.",
        ),
        _C("stopped", "bigint", "Attempts that were stopped or cancelled."),
        _C("failure_rate", "double", "`failed` / `attempts`."),
        _C("retry_rate", "double", "`retried` / `attempts`."),
        _C("throughput", "double", "Completed attempts per second, over the whole hour."),
        _C(
            "busy_seconds",
            "double",
            "The sum of run times; 3600 is one slot busy for the whole hour. A wave of `run_frames` counts once,"
            " however many jobs it has.",
        ),
        _C("wait_n", "bigint", "The number of attempts in the percentiles of `wait_seconds`."),
        *(_C(f"wait_{each}", "double", f"Percentile {each[1:]} of `wait_seconds`.") for each in _PERCENTILES),
        _C("run_n", "bigint", "The number of attempts in the percentiles of `run_seconds`."),
        *(_C(f"run_{each}", "double", f"Percentile {each[1:]} of `run_seconds`.") for each in _PERCENTILES),
        _C("wait_sketch", "binary", "KLL sketch of `wait_seconds`; `kll_merge_agg_double` merges several."),
        _C("run_sketch", "binary", "KLL sketch of `run_seconds`."),
        _C("enqueued", "bigint", "Jobs enqueued in this hour; only in rows without a worker."),
        _C(
            "backlog",
            "bigint",
            "Jobs waiting at the end of the hour, due or not; only in rows without a worker.",
        ),
        _C("released", "bigint", "Attempts that were released without counting; included in `attempts`."),
    ),
    by_day=True,
)

_STEP = (
    "struct<job_id: string, history: int, type: string, status: string, ready_at: timestamp, started_at: timestamp,"
    " ended_at: timestamp, wait_seconds: double, run_seconds: double>"
)

FLOWS: Final = LakeTable(
    "flows",
    "One row per dependency tree (`after`, `after_any`), named after its last job, on which no other job depends.",
    ("source", "flow_id", "history"),
    (
        _SOURCE,
        _C("flow_id", "string", "The id of the last job."),
        _HISTORY,
        _C("type", "string", "The type of the last job."),
        _C("status", "string", "The status of the last job."),
        _C("jobs", "int", "The number of jobs in the tree."),
        _C("job_ids", "array<string>", "Their ids."),
        _C("depth", "int", "The number of jobs in the longest chain."),
        _C("enqueued_at", "timestamp", "When the first of its jobs was enqueued."),
        _C("ended_at", "timestamp", "When the last job ended; null before that."),
        _C("seconds", "double", "From `enqueued_at` to `ended_at`."),
        _C("critical_wait_seconds", "double", "How long the jobs of the critical path waited to be claimed."),
        _C(
            "critical_run_seconds",
            "double",
            "How long they ran, from the first claim to the end, retries included.",
        ),
        _C(
            "critical_path",
            f"array<{_STEP}>",
            "The chain of jobs that determined when the tree ended, first to last: each became ready when the one before ended.",
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
