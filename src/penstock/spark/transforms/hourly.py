"""What happened in each hour: throughput, waits and run times, failures, and what was left waiting.

Percentiles come from KLL sketches, which are stored beside them: sketches of any rows can be merged
(`kll_merge_agg_double`) and asked again, so that a day, or all workers, need no second look at the attempts.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.spark.transforms._rows import among, is_waiting

__all__ = ["SKETCH_SIZE", "hourly", "queue_hours"]

#: The parameter k of the sketches: percentiles of fewer values than this are exact.
SKETCH_SIZE: Final = 800
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_BY: Final = ("source", "hour", "type", "tag", "worker")
_ATTEMPT_FIGURES: Final = (
    "attempts",
    "completed",
    "failed",
    "retried",
    "stopped",
    "failure_rate",
    "retry_rate",
    "throughput",
    "busy_seconds",
    "wait_n",
    *(f"wait_{name}" for name in QUANTILES),
    "run_n",
    *(f"run_{name}" for name in QUANTILES),
    "wait_sketch",
    "run_sketch",
)
_QUEUE_FIGURES: Final = ("enqueued", "backlog")


def hourly(
    attempts: DataFrame, events: DataFrame | None = None, before: DataFrame | None = None
) -> DataFrame:
    """Return the figures of each hour, as the table `hourly` has them.

    A row with a `worker` tells what that worker's attempts did; `tag` is null for all of them, or one tag of theirs.
    A row without a worker tells what the queue did with a type: how many jobs came, and how many were left waiting.

    Args:
        attempts: ended attempts; the hour is that of their end.
        events: the journal of the same hours, for the rows without a worker; without it there are none.
        before: `source, type, backlog` at the beginning of those hours, if they are not the first ones.
    """
    figures = _attempt_hours(attempts)
    if events is None:
        return figures.select(*_BY, *_ATTEMPT_FIGURES, *_empty(figures, _QUEUE_FIGURES, "bigint"))
    return figures.unionByName(queue_hours(events, before), allowMissingColumns=True).select(
        *_BY, *_ATTEMPT_FIGURES, *_QUEUE_FIGURES
    )


def _attempt_hours(attempts: DataFrame) -> DataFrame:
    any_tag = F.array(F.lit(None).cast("string"))
    rows = attempts.select(
        "source",
        F.date_trunc("hour", "ended_at").alias("hour"),
        "type",
        F.explode(F.concat(any_tag, F.coalesce("tags", F.array().cast("array<string>")))).alias("tag"),
        F.col("assignee_id").alias("worker"),
        "outcome",
        "wait_seconds",
        "run_seconds",
    )
    counted = rows.groupBy(*_BY).agg(
        F.count("*").alias("attempts"),
        _count(among("outcome", [JobStatus.COMPLETED])).alias("completed"),
        _count(among("outcome", [JobStatus.FAILED, JobStatus.DEAD_LETTER])).alias("failed"),
        _count(among("outcome", [JobStatus.FAILED_RETRY, JobStatus.UNKNOWN_RETRY])).alias("retried"),
        F.coalesce(F.sum("run_seconds"), F.lit(0.0)).alias("busy_seconds"),
        F.count("wait_seconds").alias("wait_n"),
        F.count("run_seconds").alias("run_n"),
        F.kll_sketch_agg_double("wait_seconds", F.lit(SKETCH_SIZE)).alias("wait_sketch"),
        F.kll_sketch_agg_double("run_seconds", F.lit(SKETCH_SIZE)).alias("run_sketch"),
    )
    return counted.select(
        *_BY,
        "attempts",
        "completed",
        "failed",
        "retried",
        (F.col("attempts") - F.col("completed") - F.col("failed") - F.col("retried")).alias("stopped"),
        (F.col("failed") / F.col("attempts")).alias("failure_rate"),
        (F.col("retried") / F.col("attempts")).alias("retry_rate"),
        (F.col("completed") / F.lit(3600.0)).alias("throughput"),
        "busy_seconds",
        "wait_n",
        *_quantiles("wait"),
        "run_n",
        *_quantiles("run"),
        "wait_sketch",
        "run_sketch",
    )


def queue_hours(events: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """Return how many jobs of each type came in each hour, and how many waited at its end."""
    comes = is_waiting() & ~is_waiting("from_status")
    goes = ~is_waiting() & is_waiting("from_status")
    by_type = Window.partitionBy("source", "type").orderBy("hour")
    hours = (
        events.select(
            "source",
            F.date_trunc("hour", "recorded_at").alias("hour"),
            "type",
            F.when(F.col("from_status").isNull(), 1).otherwise(0).alias("new"),
            F.when(comes, 1).when(goes, -1).otherwise(0).alias("waiting"),
        )
        .groupBy("source", "hour", "type")
        .agg(F.sum("new").alias("enqueued"), F.sum("waiting").alias("change"))
    )
    if before is None:
        left = F.lit(0)
    else:
        hours = hours.join(before.withColumnRenamed("backlog", "left"), ["source", "type"], "left")
        left = F.coalesce("left", F.lit(0))
    return hours.select(
        "source",
        "hour",
        "type",
        F.lit(None).cast("string").alias("tag"),
        F.lit(None).cast("string").alias("worker"),
        "enqueued",
        (left + F.sum("change").over(by_type)).alias("backlog"),
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def _quantiles(what: str) -> list[Column]:
    def quantile(rank: float) -> Column:
        # An empty sketch refuses to answer.
        answer = F.kll_sketch_get_quantile_double(F.col(f"{what}_sketch"), F.lit(rank))
        return F.when(F.col(f"{what}_n") > 0, answer)

    return [quantile(rank).alias(f"{what}_{name}") for name, rank in QUANTILES.items()]


def _empty(_of: DataFrame, names: tuple[str, ...], type_: str) -> list[Column]:
    return [F.lit(None).cast(type_).alias(name) for name in names]
