"""Metrics per hour: throughput, wait and run times, failures, and backlog.

Percentiles come from KLL sketches, which are stored with them: sketches of any rows can be merged
(`kll_merge_agg_double`) and queried, so that the percentiles of a day, or of all workers, need no read of the attempts.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.spark.transforms.rows import FRAMES_ASSIGNEE, NO_TEXTS, among_text, waiting

__all__ = ["SKETCH_SIZE", "hourly", "queue_hours"]

#: The parameter k of the sketches: percentiles of fewer values than this are exact.
SKETCH_SIZE: Final = 800
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_BY: Final = ("source", "hour", "type", "tag", "worker")


def hourly(
    attempts: DataFrame, events: DataFrame | None = None, before: DataFrame | None = None
) -> DataFrame:
    """Return the metrics of each hour, with the columns of the table `hourly`.

    A row with a `worker` is about that worker's attempts; `tag` is null for all of them, or one of their tags.
    A row without a worker is about the queue of a type: how many jobs were enqueued, and how many waited at the end.

    Args:
        attempts: ended attempts; the hour is that of their end.
        events: the journal of the same hours, for the rows without a worker; None leaves these rows out.
        before: `source, type, backlog` at the beginning of those hours, if there are earlier ones.
    """
    figures = _attempt_hours(attempts)
    if events is None:
        return figures.selectExpr("*", "CAST(null AS bigint) AS enqueued", "CAST(null AS bigint) AS backlog")
    return figures.unionByName(queue_hours(events, before), allowMissingColumns=True)


def _attempt_hours(attempts: DataFrame) -> DataFrame:
    if "released" not in attempts.columns:  # attempts of an older version
        attempts = attempts.withColumn("released", F.lit(False))
    counted = attempts.selectExpr(*_TAGGED).groupBy(*_BY).agg(*map(F.expr, _COUNTS))
    return counted.selectExpr(*_BY, *_FIGURES)


def _count(*outcomes: str) -> str:
    return f"count(CASE WHEN {among_text('outcome', outcomes)} AND NOT released THEN 1 END)"


def _quantiles(what: str) -> list[str]:
    # A quantile of an empty sketch is an error.
    return [
        f"CASE WHEN {what}_n > 0 THEN kll_sketch_get_quantile_double({what}_sketch, {rank}D) END AS {what}_{name}"
        for name, rank in QUANTILES.items()
    ]


#: An attempt counts under each of its tags, and once with a null tag.
_TAGGED: Final = (
    "source",
    "date_trunc('hour', ended_at) AS hour",
    "type",
    f"explode(concat(array(CAST(null AS string)), coalesce(tags, {NO_TEXTS}))) AS tag",
    "assignee_id AS worker",
    "outcome",
    "coalesce(released, false) AS released",
    "wait_seconds",
    "run_seconds",
    # The jobs of a wave of `run_frames` run together: their time counts once.
    f"assignee_id LIKE '{FRAMES_ASSIGNEE}%' AS is_wave",
    "unix_micros(started_at) AS start",
    "unix_micros(ended_at) AS end",
)
#: The length of the union of several intervals: each adds its part after the end of the intervals before it.
_COVERED: Final = """aggregate(
    array_sort(collect_set(CASE WHEN is_wave THEN struct(start, end) END)),
    struct(0L AS total, CAST(null AS bigint) AS reach),
    (sum, each) -> struct(
        sum.total + greatest(0L, each.end - greatest(each.start, coalesce(sum.reach, each.start))) AS total,
        greatest(sum.reach, each.end) AS reach
    ),
    sum -> sum.total / 1000000.0D
)"""
_COUNTS: Final = (
    "count(*) AS attempts",
    f"{_count(JobStatus.COMPLETED)} AS completed",
    f"{_count(JobStatus.FAILED, JobStatus.DEAD_LETTER)} AS failed",
    f"{_count(JobStatus.FAILED_RETRY, JobStatus.UNKNOWN_RETRY)} AS retried",
    "count(CASE WHEN released THEN 1 END) AS released",
    f"coalesce(sum(CASE WHEN NOT is_wave THEN run_seconds END), 0.0D) + {_COVERED} AS busy_seconds",
    "count(wait_seconds) AS wait_n",
    "count(run_seconds) AS run_n",
    f"kll_sketch_agg_double(wait_seconds, {SKETCH_SIZE}) AS wait_sketch",
    f"kll_sketch_agg_double(run_seconds, {SKETCH_SIZE}) AS run_sketch",
)
_FIGURES: Final = (
    "attempts",
    "completed",
    "failed",
    "retried",
    "attempts - completed - failed - retried - released AS stopped",
    "failed / attempts AS failure_rate",
    "retried / attempts AS retry_rate",
    "completed / 3600.0D AS throughput",
    "busy_seconds",
    "wait_n",
    *_quantiles("wait"),
    "run_n",
    *_quantiles("run"),
    "wait_sketch",
    "run_sketch",
    "released",
)


def queue_hours(events: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """Return how many jobs of each type were enqueued in each hour, and how many waited at its end."""
    hours = (
        events.selectExpr(*_CHANGES)
        .groupBy("source", "hour", "type")
        .agg(F.expr("sum(new) AS enqueued"), F.expr("sum(waiting) AS change"))
    )
    left = "0"
    if before is not None:
        hours = hours.join(before.withColumnRenamed("backlog", "earlier"), ["source", "type"], "left")
        left = "coalesce(earlier, 0)"
    return hours.selectExpr(
        "source",
        "hour",
        "type",
        "CAST(null AS string) AS tag",
        "CAST(null AS string) AS worker",
        "enqueued",
        f"{left} + sum(change) OVER (PARTITION BY source, type ORDER BY hour) AS backlog",
    )


_CHANGES: Final = (
    "source",
    "date_trunc('hour', recorded_at) AS hour",
    "type",
    "CASE WHEN from_status IS NULL THEN 1 ELSE 0 END AS new",
    (
        f"CASE WHEN {waiting()} AND NOT {waiting('from_status')} THEN 1"
        f" WHEN NOT {waiting()} AND {waiting('from_status')} THEN -1 ELSE 0 END AS waiting"
    ),
)
