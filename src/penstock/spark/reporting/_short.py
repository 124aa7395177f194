"""Numbers over time of a short history, from its attempts and events: by the hour it would be a single point."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.spark.reporting._values import moment, number, with_gaps
from penstock.spark.transforms.hourly import QUANTILES, SKETCH_SIZE
from penstock.spark.transforms.rows import among, is_waiting

__all__ = ["fine_step", "short_figures"]

#: Steps in seconds, and their names.
_STEPS: Final = {
    1: "second",
    5: "5 seconds",
    10: "10 seconds",
    30: "30 seconds",
    60: "minute",
    300: "5 minutes",
}
_MAX_POINTS: Final = 60


def fine_step(seconds: float) -> tuple[int, str] | None:
    """Return the step in seconds for a history of that length, and its name; None for hours."""
    for step, name in _STEPS.items():
        if seconds <= step * _MAX_POINTS:
            return step, name
    return None


def short_figures(attempts: DataFrame, events: DataFrame, step: int) -> dict[str, dict[str, list[Any]]]:
    """Return throughput, backlog, wait and run times of the tables `attempts` and `events`, by a step in seconds."""
    ended = attempts.withColumn("time", _time("ended_at", step)).cache()
    figures = {
        "throughput": _throughput(ended),
        "backlog": _backlog(events, step),
        "wait": with_gaps(_percentiles(ended, "wait"), step),
        "run": with_gaps(_percentiles(ended, "run"), step),
    }
    ended.unpersist()
    return figures


def _time(moment_of: str, step: int) -> Column:
    micros = step * 1_000_000
    return (F.floor(F.unix_micros(moment_of) / micros) * micros).cast("bigint")


def _throughput(ended: DataFrame) -> dict[str, list[Any]]:
    is_released = F.coalesce("released", F.lit(False))
    kinds = {
        "completed": among("outcome", [JobStatus.COMPLETED]),
        "retried": among("outcome", [JobStatus.FAILED_RETRY, JobStatus.UNKNOWN_RETRY]) & ~is_released,
        "failed": among("outcome", [JobStatus.FAILED, JobStatus.DEAD_LETTER]),
        "released": is_released,
    }
    counts = [F.count(F.when(condition, 1)).alias(name) for name, condition in kinds.items()]
    rows = ended.groupBy("time").agg(F.count("*").alias("all"), *counts).orderBy("time").collect()
    found = {name: [int(row[name]) for row in rows] for name in kinds}
    stopped = [int(row["all"]) - sum(int(row[name]) for name in kinds) for row in rows]
    return {"time": [moment(row["time"]) for row in rows], **found, "stopped": stopped}


def _backlog(events: DataFrame, step: int) -> dict[str, list[Any]]:
    comes, goes = is_waiting() & ~is_waiting("from_status"), ~is_waiting() & is_waiting("from_status")
    rows = (
        events.groupBy(_time("recorded_at", step).alias("time"))
        .agg(
            F.count(F.when(F.col("from_status").isNull(), 1)).alias("enqueued"),
            F.sum(F.when(comes, 1).when(goes, -1).otherwise(0)).alias("change"),
        )
        .orderBy("time")
        .collect()
    )
    waiting, left = [], 0
    for row in rows:
        left += int(row["change"])
        waiting.append(left)
    return {
        "time": [moment(row["time"]) for row in rows],
        "enqueued": [int(row["enqueued"]) for row in rows],
        "waiting": waiting,
    }


def _percentiles(ended: DataFrame, what: str) -> dict[str, list[Any]]:
    column = f"{what}_seconds"
    sketch = F.kll_sketch_agg_double(column, F.lit(SKETCH_SIZE))
    rows = (
        ended.where(F.col(column).isNotNull())
        .groupBy("time")
        .agg(
            F.count("*").alias("n"),
            *(
                F.kll_sketch_get_quantile_double(sketch, F.lit(rank)).alias(name)
                for name, rank in QUANTILES.items()
            ),
        )
        .orderBy("time")
        .collect()
    )
    found: dict[str, list[Any]] = {name: [number(row[name]) for row in rows] for name in QUANTILES}
    return {"time": [moment(row["time"]) for row in rows], "n": [int(row["n"]) for row in rows], **found}
