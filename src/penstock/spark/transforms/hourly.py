"""What happened in each hour: throughput, waits and run times, failures, and what was left waiting.

Percentiles come from KLL sketches, which are stored beside them: sketches of any rows can be merged
(`kll_merge_agg_double`) and asked again, so that a day, or all workers, need no second look at the attempts.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.spark.transforms._rows import among_text, waiting

__all__ = ["SKETCH_SIZE", "hourly", "queue_hours"]

#: The parameter k of the sketches: percentiles of fewer values than this are exact.
SKETCH_SIZE: Final = 800
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_BY: Final = ("source", "hour", "type", "tag", "worker")


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
        return figures.selectExpr("*", "CAST(null AS bigint) AS enqueued", "CAST(null AS bigint) AS backlog")
    return figures.unionByName(queue_hours(events, before), allowMissingColumns=True)


def _attempt_hours(attempts: DataFrame) -> DataFrame:
    counted = attempts.selectExpr(*_TAGGED).groupBy(*_BY).agg(*map(F.expr, _COUNTS))
    return counted.selectExpr(*_BY, *_FIGURES)


def _count(*outcomes: str) -> str:
    return f"count(CASE WHEN {among_text('outcome', outcomes)} THEN 1 END)"


def _quantiles(what: str) -> list[str]:
    # An empty sketch refuses to answer.
    return [
        f"CASE WHEN {what}_n > 0 THEN kll_sketch_get_quantile_double({what}_sketch, {rank}D) END AS {what}_{name}"
        for name, rank in QUANTILES.items()
    ]


#: An attempt counts under each of its tags, and once under none.
_TAGGED: Final = (
    "source",
    "date_trunc('hour', ended_at) AS hour",
    "type",
    "explode(concat(array(CAST(null AS string)), coalesce(tags, CAST(array() AS array<string>)))) AS tag",
    "assignee_id AS worker",
    "outcome",
    "wait_seconds",
    "run_seconds",
)
_COUNTS: Final = (
    "count(*) AS attempts",
    f"{_count(JobStatus.COMPLETED)} AS completed",
    f"{_count(JobStatus.FAILED, JobStatus.DEAD_LETTER)} AS failed",
    f"{_count(JobStatus.FAILED_RETRY, JobStatus.UNKNOWN_RETRY)} AS retried",
    "coalesce(sum(run_seconds), 0.0D) AS busy_seconds",
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
    "attempts - completed - failed - retried AS stopped",
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
)


def queue_hours(events: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """Return how many jobs of each type came in each hour, and how many waited at its end."""
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
