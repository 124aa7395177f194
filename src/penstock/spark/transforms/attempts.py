"""One row an attempt.

The row that ends an attempt carries when it became ready and when it was started, so an attempt is a filter, not a join.
Two things need more: an attempt that was given up may still report (its row is amended), and an id may be used again
after its job was removed (its histories are numbered). Both are rare, so both are joins with what is usually nothing.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.lifecycle import Verb
from penstock.spark.transforms._rows import (
    HISTORY,
    among,
    is_amendment,
    is_end_of_attempt,
    is_in_flight,
    seconds_between,
)

__all__ = ["amend", "amendments", "attempts", "reused_histories", "with_history"]

_ATTEMPT = (*HISTORY, "attempt")
_ERRORS = ("error_category", "error_code", "error_message")


def attempts(events: DataFrame, histories: DataFrame | None = None) -> DataFrame:
    """Return one row for each attempt that has ended, as the table `attempts` has them.

    Args:
        events: journal rows, in any order; each attempt's end and late reports must be among them.
        histories: `source, job_id, history, first_seq` of every history but the first of its id, if the caller knows
            them; worked out from the events otherwise.
    """
    known = reused_histories(events) if histories is None else histories
    ends = with_history(events.where(is_end_of_attempt()), known).select(*_as_attempt())
    return amend(ends, amendments(events, known)).drop("seq")


def amendments(events: DataFrame, histories: DataFrame) -> DataFrame:
    """Return the late reports among events, keyed like attempts, with what they change.

    A correction may also put an attempt back in flight: it is told by its `outcome`, and another end will follow.
    """
    late = events.where(is_amendment())
    return with_history(late, histories).select(
        *_ATTEMPT, "seq", F.col("recorded_at").alias("ended_at"), F.col("status").alias("outcome"), *_errors()
    )


def amend(ends: DataFrame, late: DataFrame) -> DataFrame:
    """Return attempts as their last report leaves them; `ends` may have an attempt more than once."""
    concerned = late.select(*_ATTEMPT).distinct()
    changed = ends.join(concerned, [*_ATTEMPT], "left_semi")
    told = changed.select(*_ATTEMPT, "seq", "ended_at", "outcome", *_ERRORS).unionByName(
        late.where(~is_in_flight("outcome"))
    )
    newest = F.row_number().over(Window.partitionBy(*_ATTEMPT).orderBy(F.desc("seq"))) == 1
    oldest = F.row_number().over(Window.partitionBy(*_ATTEMPT).orderBy("seq")) == 1
    last = told.withColumn("is_last", newest).where("is_last").drop("is_last")
    first = changed.withColumn("is_first", oldest).where("is_first")
    amended = first.drop("is_first", "seq", "ended_at", "outcome", "run_seconds", *_ERRORS).join(
        last, [*_ATTEMPT], "inner"
    )
    return ends.join(concerned, [*_ATTEMPT], "left_anti").unionByName(
        amended.withColumn("run_seconds", seconds_between("started_at", "ended_at"))
    )


def reused_histories(events: DataFrame) -> DataFrame:
    """Return `source, job_id, history, first_seq` of every history but the first of its id."""
    begins = events.where(F.col("n") == 1).groupBy("source", "job_id").agg(F.collect_list("seq").alias("seqs"))
    again = begins.where(F.size("seqs") > 1)
    return (
        again.select("source", "job_id", F.posexplode(F.array_sort("seqs")).alias("position", "first_seq"))
        .where(F.col("position") > 0)
        .select("source", "job_id", (F.col("position") + 1).alias("history"), "first_seq")
    )


def with_history(rows: DataFrame, histories: DataFrame) -> DataFrame:
    """Return journal rows with the number of the history that each belongs to."""
    begins = histories.groupBy("source", "job_id").agg(
        F.array_sort(F.collect_list(F.struct("first_seq", F.col("history").alias("number")))).alias("later")
    )
    begun = F.filter("later", lambda each: each["first_seq"] <= F.col("seq"))
    history = F.coalesce(F.element_at(F.transform(begun, lambda each: each["number"]), -1), F.lit(1))
    numbered = F.when(F.size(begun) > 0, history).otherwise(F.lit(1)).cast("int")
    return (
        rows.join(F.broadcast(begins), ["source", "job_id"], "left")
        .withColumn("history", F.when(F.col("later").isNull(), F.lit(1)).otherwise(numbered))
        .drop("later")
    )


def _as_attempt() -> list[Column]:
    return [
        F.col("source"),
        F.col("job_id"),
        F.col("history"),
        F.col("attempt"),
        F.col("type"),
        F.col("key"),
        F.col("tags"),
        F.col("assignee_id"),
        F.col("ready_at"),
        F.col("started_at"),
        F.col("recorded_at").alias("ended_at"),
        seconds_between("ready_at", "started_at").alias("wait_seconds"),
        seconds_between("started_at", "recorded_at").alias("run_seconds"),
        F.col("status").alias("outcome"),
        *_errors(),
        F.col("seq"),
    ]


def _errors() -> list[Column]:
    """Return the error columns, empty where the journal repeats what an earlier attempt failed of."""
    lost = among("verb", (Verb.LOSE, Verb.RESET, Verb.UNRESPONSIVE, Verb.ACKNOWLEDGE))
    has_own_error = (F.col("status") != JobStatus.COMPLETED.value) & ~(
        lost & (F.col("status") != JobStatus.DEAD_LETTER.value)
    )
    return [
        F.when(has_own_error, F.col(name)).alias(name) for name in ("error_category", "error_code")
    ] + [F.when(has_own_error & (F.col("error_message") != ""), F.col("error_message")).alias("error_message")]
