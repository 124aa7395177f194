"""The numbers of the report, from the tables of a lake, as lists and dicts small enough for a page."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.lake.reading import snapshot
from penstock.spark.reporting._errors import error_groups
from penstock.spark.reporting._short import fine_step, short_figures
from penstock.spark.reporting._values import moment, number, with_gaps
from penstock.spark.tables import LAKE_TABLES
from penstock.spark.transforms.rows import is_final, is_in_flight, is_waiting

__all__ = ["report_figures"]

#: Longer histories are drawn by day, since a screen has no pixels for more points.
_MAX_HOURS: Final = 24 * 31
_MAX_WORKERS: Final = 30
_MAX_TYPES: Final = 30
_MAX_SLOWEST: Final = 20
_MAX_FLOWS: Final = 10
_MAX_STEPS: Final = 50


def report_figures(spark: SparkSession, lake: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the numbers of a lake, as the page shows them and `--json` prints them.

    Raises:
        InvalidArgumentError: there is no lake.
        BackendError: it was written by a newer version.
    """
    manifest, tables = snapshot(spark, lake, LAKE_TABLES)
    hours, jobs, ended = tables["hourly"], tables["jobs"], tables["attempts"]
    attempts = hours.where(F.col("worker").isNotNull() & F.col("tag").isNull()).cache()
    summary = _summary(jobs, attempts)
    fine = fine_step(_span(summary))
    if fine is not None:
        step, unit = fine
        over_time = short_figures(ended, tables["events"], step)
    else:
        unit = "hour" if attempts.select("hour").distinct().count() <= _MAX_HOURS else "day"
        step = 3_600 if unit == "hour" else 86_400
        over_time = {
            "throughput": _throughput(attempts, unit),
            "backlog": _backlog(hours.where(F.col("worker").isNull()), unit),
            "wait": with_gaps(_percentiles(attempts, "wait", unit), step),
            "run": with_gaps(_percentiles(attempts, "run", unit), step),
        }
    figures = {
        "format": "penstock-report",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sources": sorted(manifest.offsets),
        "events": manifest.rows("events"),
        "unit": unit,
        "unit_seconds": step,
        "summary": summary,
        **over_time,
        "types": _types(attempts),
        "workers": _workers(attempts),
        "errors": error_groups(ended),
        "slowest": _slowest(ended),
        "flows": _flows(tables["flows"]),
    }
    attempts.unpersist()
    return figures


def _span(summary: dict[str, Any]) -> float:
    """Return the seconds between the first and the last change."""
    if summary["first"] is None or summary["last"] is None:
        return 0.0
    first, last = (datetime.fromisoformat(summary[name]) for name in ("first", "last"))
    return (last - first).total_seconds()


def _summary(jobs: DataFrame, attempts: DataFrame) -> dict[str, Any]:
    counts = jobs.agg(
        F.count("*").alias("jobs"),
        F.count(F.when(F.col("status") == "completed", 1)).alias("completed"),
        F.count(F.when(F.col("status").isin("failed", "dead_letter"), 1)).alias("failed"),
        F.count(F.when(is_final() & ~F.col("status").isin("completed", "failed", "dead_letter"), 1)).alias(
            "cancelled"
        ),
        F.count(F.when(is_waiting(), 1)).alias("waiting"),
        F.count(F.when(is_in_flight(), 1)).alias("running"),
        F.unix_micros(F.min("enqueued_at")).alias("first"),
        F.unix_micros(F.max("updated_at")).alias("last"),
    ).collect()[0]
    tried = attempts.agg(
        F.sum("attempts").alias("attempts"),
        F.sum("retried").alias("retried"),
        F.sum("released").alias("released"),
        F.sum("busy_seconds").alias("busy_seconds"),
        _merged("wait", 0.5).alias("wait_p50"),
        _merged("wait", 0.99).alias("wait_p99"),
        _merged("run", 0.5).alias("run_p50"),
        _merged("run", 0.99).alias("run_p99"),
    ).collect()[0]
    found = {
        name: int(counts[name]) for name in ("jobs", "completed", "failed", "cancelled", "waiting", "running")
    }
    return {
        **found,
        "attempts": int(tried["attempts"] or 0),
        "retried": int(tried["retried"] or 0),
        "released": int(tried["released"] or 0),
        "busy_seconds": number(tried["busy_seconds"]) or 0.0,
        **{name: number(tried[name]) for name in ("wait_p50", "wait_p99", "run_p50", "run_p99")},
        "first": moment(counts["first"]),
        "last": moment(counts["last"]),
    }


def _throughput(attempts: DataFrame, unit: str) -> dict[str, list[Any]]:
    rows = (
        attempts.groupBy(_time(unit))
        .agg(
            F.sum("completed").alias("completed"),
            F.sum("retried").alias("retried"),
            F.sum("failed").alias("failed"),
            F.sum("stopped").alias("stopped"),
            F.coalesce(F.sum("released"), F.lit(0)).alias("released"),
        )
        .orderBy("time")
        .collect()
    )
    names = ("completed", "retried", "failed", "stopped", "released")
    return {"time": [moment(row["time"]) for row in rows]} | {
        name: [int(row[name]) for row in rows] for name in names
    }


def _backlog(queue: DataFrame, unit: str) -> dict[str, list[Any]]:
    """Return the jobs waiting at the end of each hour or day. A type has rows only for hours in which it changed."""
    hour = F.unix_micros("hour").alias("hour")
    changes = queue.select("source", "type", hour, "enqueued", "backlog").collect()
    span = 3_600_000_000 if unit == "hour" else 86_400_000_000
    last: dict[tuple[str, str], int] = {}
    totals: dict[int, tuple[int, int]] = {}
    for row in sorted(changes, key=lambda each: int(each["hour"])):
        last[row["source"], row["type"]] = int(row["backlog"])
        time = int(row["hour"]) // span * span
        enqueued = totals.get(time, (0, 0))[0] + int(row["enqueued"])
        totals[time] = (enqueued, sum(last.values()))
    return {
        "time": [moment(time) for time in totals],
        "enqueued": [enqueued for enqueued, _ in totals.values()],
        "waiting": [left for _, left in totals.values()],
    }


def _percentiles(attempts: DataFrame, what: str, unit: str) -> dict[str, list[Any]]:
    ranks = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    rows = (
        attempts.where(F.col(f"{what}_n") > 0)
        .groupBy(_time(unit))
        .agg(
            F.sum(f"{what}_n").alias("n"), *(_merged(what, rank).alias(name) for name, rank in ranks.items())
        )
        .orderBy("time")
        .collect()
    )
    found: dict[str, list[Any]] = {name: [number(row[name]) for row in rows] for name in ranks}
    return {"time": [moment(row["time"]) for row in rows], "n": [int(row["n"]) for row in rows], **found}


def _types(attempts: DataFrame) -> dict[str, list[Any]]:
    rows = (
        attempts.groupBy("type")
        .agg(
            F.sum("attempts").alias("attempts"),
            F.sum("completed").alias("completed"),
            F.sum("retried").alias("retried"),
            F.sum("failed").alias("failed"),
            _merged("run", 0.5).alias("run_p50"),
            _merged("run", 0.99).alias("run_p99"),
        )
        .orderBy(F.desc("attempts"), "type")
        .limit(_MAX_TYPES)
        .collect()
    )
    counts = ("attempts", "completed", "retried", "failed")
    return (
        {"type": [row["type"] for row in rows]}
        | {name: [int(row[name]) for row in rows] for name in counts}
        | {name: [number(row[name]) for row in rows] for name in ("run_p50", "run_p99")}
    )


def _workers(attempts: DataFrame) -> dict[str, list[Any]]:
    rows = (
        attempts.groupBy("worker")
        .agg(F.sum("attempts").alias("attempts"), F.sum("busy_seconds").alias("busy_seconds"))
        .orderBy(F.desc("busy_seconds"), "worker")
        .limit(_MAX_WORKERS)
        .collect()
    )
    return {
        "worker": [row["worker"] for row in rows],
        "attempts": [int(row["attempts"]) for row in rows],
        "busy_seconds": [number(row["busy_seconds"]) for row in rows],
    }


def _slowest(attempts: DataFrame) -> list[dict[str, Any]]:
    rows = (
        attempts.where(F.col("run_seconds").isNotNull())
        .orderBy(F.desc("run_seconds"), "job_id", "attempt")
        .select(
            "job_id",
            "attempt",
            "type",
            "assignee_id",
            "outcome",
            "wait_seconds",
            "run_seconds",
            "error_message",
        )
        .limit(_MAX_SLOWEST)
        .collect()
    )
    return [
        {
            **{name: row[name] for name in ("job_id", "attempt", "type", "assignee_id", "outcome")},
            "wait_seconds": number(row["wait_seconds"]),
            "run_seconds": number(row["run_seconds"]),
            # The traceback follows an empty line.
            "error": (row["error_message"] or "").partition("\n\n")[0][:200],
        }
        for row in rows
    ]


def _flows(flows: DataFrame) -> list[dict[str, Any]]:
    steps = F.transform(
        F.slice("critical_path", 1, _MAX_STEPS),
        lambda step: F.struct(
            step["job_id"].alias("job_id"),
            step["type"].alias("type"),
            F.unix_micros(step["ready_at"]).alias("ready_at"),
            step["wait_seconds"].alias("wait_seconds"),
            step["run_seconds"].alias("run_seconds"),
        ),
    )
    rows = (
        flows.where(F.col("seconds").isNotNull())
        .orderBy(F.desc("seconds"), "flow_id")
        .select(
            "flow_id",
            "type",
            "jobs",
            "depth",
            "seconds",
            F.unix_micros("enqueued_at").alias("begin"),
            steps.alias("steps"),
        )
        .limit(_MAX_FLOWS)
        .collect()
    )
    return [
        {
            "flow_id": row["flow_id"],
            "type": row["type"],
            "jobs": int(row["jobs"]),
            "depth": int(row["depth"]),
            "seconds": number(row["seconds"]),
            "steps": [
                {
                    "job_id": step["job_id"],
                    "type": step["type"],
                    "begin_seconds": number(((step["ready_at"] or row["begin"]) - row["begin"]) / 1e6),
                    "wait_seconds": number(step["wait_seconds"]) or 0.0,
                    "run_seconds": number(step["run_seconds"]) or 0.0,
                }
                for step in row["steps"]
            ],
        }
        for row in rows
    ]


def _time(unit: str) -> Column:
    return F.unix_micros(F.date_trunc(unit, "hour")).alias("time")


def _merged(what: str, rank: float) -> Column:
    sketch = F.kll_merge_agg_double(F.when(F.col(f"{what}_n") > 0, F.col(f"{what}_sketch")))
    count = F.coalesce(F.sum(f"{what}_n"), F.lit(0))
    return F.when(count > 0, F.kll_sketch_get_quantile_double(sketch, F.lit(rank)))
