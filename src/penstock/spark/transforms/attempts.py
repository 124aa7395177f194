"""One row an attempt.

The row that ends an attempt carries when it became ready and when it was started, so most attempts are a filter.
Two things need a look at the rows around: an attempt that was given up may still report (its row is amended), and an
id may be used again after its job was removed (its histories are numbered). One window over a job's rows answers both.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.lifecycle import Verb
from penstock.spark.transforms._rows import (
    among,
    is_amendment,
    is_end_of_attempt,
    is_in_flight,
    seconds_between,
)

__all__ = ["attempts", "plain_attempts"]

_COLUMNS: Final = (
    "source",
    "job_id",
    "history",
    "attempt",
    "type",
    "key",
    "tags",
    "assignee_id",
    "ready_at",
    "started_at",
    "ended_at",
    "wait_seconds",
    "run_seconds",
    "outcome",
    "error_category",
    "error_code",
    "error_message",
)
_KEPT: Final = ("source", "job_id", "attempt", "type", "key", "tags", "assignee_id")
_ERRORS: Final = ("error_category", "error_code", "error_message")


def attempts(
    events: DataFrame, histories: DataFrame | None = None, known: DataFrame | None = None
) -> DataFrame:
    """Return one row for each attempt that has ended, as the table `attempts` has them.

    Args:
        events: journal rows, in any order.
        histories: `source, job_id, history, first_seq` of every history but the first of its id, if the caller knows
            them; else the histories are counted from the first one that the events show.
        known: rows that this function returned for earlier events and that these events amend.
    """
    begins = (F.col("n") == 1) if histories is None else F.lit(False)
    rows = events.where(is_end_of_attempt() | is_amendment() | begins).select(
        *_KEPT,
        "seq",
        "ready_at",
        "started_at",
        F.col("recorded_at").alias("ended_at"),
        F.col("status").alias("outcome"),
        *_errors(),
        begins.alias("begins"),
        F.lit(None).cast("int").alias("number"),
    )
    if histories is not None:
        rows = rows.unionByName(_beginnings(histories), allowMissingColumns=True)
    if known is not None:
        rows = rows.unionByName(_as_row(known))
    return _last_reports(rows)


def plain_attempts(events: DataFrame) -> DataFrame:
    """Return what `attempts` does, by a filter, for events without late reports and ids that were used once."""
    ended = F.col("recorded_at").alias("ended_at")
    rows = events.where(is_end_of_attempt()).select(
        *_KEPT,
        F.lit(1).alias("history"),
        "ready_at",
        "started_at",
        ended,
        F.col("status").alias("outcome"),
        *_errors(),
    )
    return _with_durations(rows)


def _last_reports(rows: DataFrame) -> DataFrame:
    """Return each attempt as its last report leaves it: the last of the rows that speak of it, which are neighbours."""
    by_job = Window.partitionBy("source", "job_id").orderBy("seq")
    so_far = by_job.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known_number = F.last("number", ignorenulls=True).over(so_far)
    begun = F.sum(F.when(F.col("begins") & F.col("number").isNull(), 1).otherwise(0)).over(so_far)
    next_attempt = F.lead("attempt").over(by_job)
    next_begins = F.coalesce(F.lead("begins").over(by_job), F.lit(True))
    numbered = rows.select(
        *_KEPT,
        F.greatest(F.coalesce(known_number, F.lit(0)) + begun, F.lit(1)).cast("int").alias("history"),
        F.last("ready_at", ignorenulls=True).over(so_far).alias("ready_at"),
        F.last("started_at", ignorenulls=True).over(so_far).alias("started_at"),
        "ended_at",
        "outcome",
        *_ERRORS,
        "begins",
        (next_begins | (next_attempt != F.col("attempt"))).alias("is_last"),
    )
    return _with_durations(numbered.where(~F.col("begins") & F.col("is_last") & ~is_in_flight("outcome")))


def _with_durations(rows: DataFrame) -> DataFrame:
    return (
        rows.withColumn("wait_seconds", seconds_between("ready_at", "started_at"))
        .withColumn("run_seconds", seconds_between("started_at", "ended_at"))
        .select(*_COLUMNS)
    )


def _beginnings(histories: DataFrame) -> DataFrame:
    return histories.select(
        "source",
        "job_id",
        F.col("first_seq").alias("seq"),
        F.lit(True).alias("begins"),
        F.col("history").cast("int").alias("number"),
    )


def _as_row(known: DataFrame) -> DataFrame:
    return known.select(
        *_KEPT,
        F.lit(0).cast("bigint").alias("seq"),
        "ready_at",
        "started_at",
        "ended_at",
        "outcome",
        *_ERRORS,
        F.lit(False).alias("begins"),
        F.col("history").alias("number"),
    )


def _errors() -> list[Column]:
    """Return the error columns, empty where the journal repeats what an earlier attempt failed of."""
    lost = among("verb", (Verb.LOSE, Verb.RESET, Verb.UNRESPONSIVE, Verb.ACKNOWLEDGE))
    is_dead = F.col("status") == JobStatus.DEAD_LETTER.value
    has_own = (F.col("status") != JobStatus.COMPLETED.value) & (is_dead | ~lost)
    text = F.when(has_own & (F.col("error_message") != ""), F.col("error_message")).alias("error_message")
    return [F.when(has_own, F.col(name)).alias(name) for name in ("error_category", "error_code")] + [text]
