"""What each job is now: one row a history, folded from the journal in one pass over each job's rows.

Everything is a running value of one window (`source, job_id` by `seq`), so that the rows are shuffled and sorted once.
A row that is known already, from an earlier fold, takes part as if it were the first row of its history.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.lifecycle import Verb
from penstock.spark.transforms._rows import REMOVES, among, is_final

__all__ = ["latest"]

# What the last row of a history says.
_STATE: Final = (
    "n",
    "type",
    "key",
    "tags",
    "priority",
    "idempotency_key",
    "status",
    "attempt",
    "retry_count",
    "failures",
    "max_attempts",
    "assignee_id",
    "due_at",
    "progress",
    "error_category",
    "error_code",
    "error_message",
)
# What an earlier row says, and the rows after it do not repeat.
_CARRIED: Final = (
    "first_seq",
    "enqueued_at",
    "after",
    "after_any",
    "parent_id",
    "started_at",
    "finalized_at",
    "removed_at",
)


def latest(events: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """Return one row for each job, as the table `jobs` has them; an id that was used again has one a history.

    Args:
        events: journal rows, in any order.
        known: rows that this function returned for earlier events, of the jobs that the events speak of. They are
            returned as the events change them.
    """
    rows = _from_events(events)
    if known is not None:
        rows = rows.unionByName(_from_known(known))
    by_job = Window.partitionBy("source", "job_id").orderBy("seq")
    so_far = by_job.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    def newest(column: str) -> Column:
        return F.last(column, ignorenulls=True).over(so_far)

    numbered = F.coalesce(F.max("known_history").over(so_far), F.lit(0)) + F.sum(
        F.when(F.col("begins") & F.col("known_history").isNull(), 1).otherwise(0)
    ).over(so_far)
    folded = rows.select(
        "source",
        "job_id",
        "seq",
        "recorded_at",
        "verb",
        *_STATE,
        F.greatest(numbered, F.lit(1)).cast("int").alias("history"),
        newest("base").alias("base"),
        newest("start").alias("start"),
        newest("end").alias("end"),
        F.coalesce(F.lead("begins").over(by_job), F.lit(True)).alias("is_last"),
    ).where("is_last")
    return folded.select(*_as_job())


def _from_events(events: DataFrame) -> DataFrame:
    begins = F.col("n") == 1
    nothing = F.lit(None).cast("timestamp")
    base = F.struct(
        F.col("seq").alias("first_seq"),
        F.col("recorded_at").alias("enqueued_at"),
        F.col("after"),
        F.col("after_any"),
        F.col("parent_id"),
        nothing.alias("started_at"),
        nothing.alias("finalized_at"),
        nothing.alias("removed_at"),
    )
    moment = F.struct("seq", "recorded_at")
    # A job leaves INITIAL_PENDING once, so the claim that takes it from there is its first.
    is_first_claim = (F.col("verb") == Verb.CLAIM.value) & (
        F.col("from_status") == JobStatus.INITIAL_PENDING.value
    )
    # As in the store: a later correction keeps the moment of the end, but for a completion.
    is_end = is_final() & (~is_final("from_status") | (F.col("verb") == Verb.COMPLETE.value))
    return events.select(
        "source",
        "job_id",
        "seq",
        "recorded_at",
        "verb",
        *_STATE,
        begins.alias("begins"),
        F.lit(None).cast("int").alias("known_history"),
        F.when(begins, base).alias("base"),
        F.when(is_first_claim, moment).alias("start"),
        F.when(is_end & ~among("verb", REMOVES), moment).alias("end"),
    )


def _from_known(known: DataFrame) -> DataFrame:
    moment = "struct<seq: bigint, recorded_at: timestamp>"
    return known.select(
        "source",
        "job_id",
        F.col("last_seq").alias("seq"),
        F.col("updated_at").alias("recorded_at"),
        F.lit(None).cast("string").alias("verb"),
        *_STATE,
        F.lit(True).alias("begins"),
        F.col("history").alias("known_history"),
        F.struct(*_CARRIED).alias("base"),
        F.lit(None).cast(moment).alias("start"),
        F.lit(None).cast(moment).alias("end"),
    )


def _as_job() -> list[Column]:
    carried = {name: F.col(f"base.{name}") for name in _CARRIED}

    def moment(name: str, kept: Column) -> Column:
        # What belongs to an earlier history of the id, or lies before what is known, is not this job's.
        is_own = F.coalesce(F.col(f"{name}.seq") >= F.col("base.first_seq"), F.lit(True))
        return F.coalesce(F.when(is_own, F.col(f"{name}.recorded_at")), kept)

    removed_at = F.when(among("verb", REMOVES), F.col("recorded_at"))
    return [
        F.col("source"),
        F.col("job_id"),
        F.col("history"),
        *(F.col(name) for name in _STATE),
        F.col("base.after").alias("after"),
        F.col("base.after_any").alias("after_any"),
        F.col("base.parent_id").alias("parent_id"),
        carried["enqueued_at"].alias("enqueued_at"),
        moment("start", carried["started_at"]).alias("started_at"),
        F.when(is_final(), moment("end", carried["finalized_at"])).alias("finalized_at"),
        F.coalesce(removed_at, carried["removed_at"]).alias("removed_at"),
        F.col("recorded_at").alias("updated_at"),
        carried["first_seq"].alias("first_seq"),
        F.col("seq").alias("last_seq"),
    ]
