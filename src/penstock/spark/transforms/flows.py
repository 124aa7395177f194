"""The critical path of each dependency tree: which job each one really waited for.

A tree is named after its last job, the one that nobody waits for. From there the walk goes to what each job waited
for, level by level, all trees at once; a tree has at most as many levels as the store's limit of depth. Of what a job
waited for, one dependency set it free: the last of `after` to end, or the first of `after_any`, whichever came later.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.spark.transforms._rows import HISTORY, seconds_between

__all__ = ["FLOW_FACTS", "edges", "flows"]

#: The columns of `jobs` that are needed.
FLOW_FACTS: Final = (
    *HISTORY,
    "type",
    "status",
    "enqueued_at",
    "started_at",
    "finalized_at",
    "first_seq",
    "after",
    "after_any",
)

#: More levels than any store allows by default; what lies deeper is cut off.
MAX_LEVELS: Final = 1_000
_NEVER: Final = "9999-12-31 00:00:00"
_TREE: Final = ("source", "flow_id", "flow_history")


def flows(jobs: DataFrame) -> DataFrame:
    """Return one row for each dependency tree, as the table `flows` has them.

    The walk needs one small Spark job a level, so this function runs them when it is called.

    Args:
        jobs: rows as `latest` returns them; a tree is whole if all its jobs are among them.
    """
    facts = jobs.select(*FLOW_FACTS)
    links = _critical(edges(facts)).localCheckpoint()  # each level reads them again
    members = _walk(links)
    return _summary(members, facts, links)


def edges(jobs: DataFrame) -> DataFrame:
    """Return `source, job_id, history, kind, on_id, on_history, on_finalized_at`: who waits for whom."""
    waits = jobs.select(
        *HISTORY,
        "first_seq",
        F.explode(
            F.concat(
                F.transform(
                    _list("after"), lambda on: F.struct(F.lit("after").alias("kind"), on.alias("on_id"))
                ),
                F.transform(
                    _list("after_any"), lambda on: F.struct(F.lit("any").alias("kind"), on.alias("on_id"))
                ),
            )
        ).alias("edge"),
    ).select(*HISTORY, "first_seq", "edge.kind", "edge.on_id")
    ends = jobs.select(
        "source",
        F.col("job_id").alias("on_id"),
        F.col("history").alias("on_history"),
        F.col("first_seq").alias("on_first_seq"),
        F.col("finalized_at").alias("on_finalized_at"),
    )
    # An id that was used again: the one meant is the last that was there when the dependent came.
    newest = Window.partitionBy(*HISTORY, "kind", "on_id").orderBy(F.desc("on_history"))
    return (
        waits.join(ends, ["source", "on_id"], "inner")
        .where(F.coalesce(F.col("on_first_seq") < F.col("first_seq"), F.lit(True)))
        .withColumn("is_meant", F.row_number().over(newest) == 1)
        .where("is_meant")
        .select(*HISTORY, "kind", "on_id", "on_history", "on_finalized_at")
    )


def _list(name: str) -> Column:
    return F.coalesce(F.col(name), F.array().cast("array<string>"))


def _critical(links: DataFrame) -> DataFrame:
    """Return edges with which of them set the waiting job free."""
    never = F.lit(_NEVER).cast("timestamp")
    ended = F.coalesce("on_finalized_at", never)
    # Of `after` the last counts, of `after_any` the first; a later one of the two kinds decides.
    rank = F.row_number().over(
        Window.partitionBy(*HISTORY, "kind").orderBy(
            F.when(F.col("kind") == "after", -F.unix_micros(ended)).otherwise(F.unix_micros(ended)), "on_id"
        )
    )
    chosen = F.row_number().over(
        Window.partitionBy(*HISTORY).orderBy(
            F.when(F.col("rank") == 1, 0).otherwise(1), F.desc("ended"), "on_id"
        )
    )
    return (
        links.withColumn("ended", ended)
        .withColumn("rank", rank)
        .withColumn("frees", chosen == 1)
        .drop("rank", "ended", "kind")
        .groupBy(*HISTORY, "on_id", "on_history")
        .agg(F.max("on_finalized_at").alias("on_finalized_at"), F.max("frees").alias("frees"))
    )


def _walk(links: DataFrame) -> DataFrame:
    """Return `source, flow_id, flow_history, job_id, history, level, on_path` of all jobs of all trees."""
    awaited = links.select(
        "source", F.col("on_id").alias("job_id"), F.col("on_history").alias("history")
    ).distinct()
    level = (
        links.select(*HISTORY)
        .distinct()
        .join(awaited, [*HISTORY], "left_anti")
        .select(
            "source",
            F.col("job_id").alias("flow_id"),
            F.col("history").alias("flow_history"),
            "job_id",
            "history",
            F.lit(0).alias("level"),
            F.lit(True).alias("on_path"),
        )
        .localCheckpoint()
    )
    reached = level
    for number in range(1, MAX_LEVELS):
        level = (
            level.join(links, [*HISTORY], "inner")
            .groupBy(*_TREE, F.col("on_id").alias("job_id"), F.col("on_history").alias("history"))
            .agg(F.lit(number).alias("level"), F.max(F.col("on_path") & F.col("frees")).alias("on_path"))
            .localCheckpoint()
        )
        if level.isEmpty():
            break
        reached = reached.unionByName(level)
    return reached


def _summary(members: DataFrame, facts: DataFrame, links: DataFrame) -> DataFrame:
    released = links.where("frees").select(*HISTORY, F.col("on_finalized_at").alias("released_at"))
    steps = (
        members.join(facts.drop("after", "after_any", "first_seq"), [*HISTORY], "inner")
        .join(released, [*HISTORY], "left")
        .withColumn("ready_at", F.greatest("enqueued_at", "released_at"))
    )
    step = F.struct(
        F.col("level"),
        F.struct(
            "job_id",
            "history",
            "type",
            "status",
            "ready_at",
            "started_at",
            F.col("finalized_at").alias("ended_at"),
            seconds_between("ready_at", "started_at").alias("wait_seconds"),
            seconds_between("started_at", "finalized_at").alias("run_seconds"),
        ).alias("job"),
    )
    trees = steps.groupBy(*_TREE).agg(
        F.collect_set(F.struct("job_id", "history")).alias("members"),
        (F.max("level") + 1).cast("int").alias("depth"),
        F.min("enqueued_at").alias("enqueued_at"),
        F.max(F.when(F.col("level") == 0, F.col("type"))).alias("type"),
        F.max(F.when(F.col("level") == 0, F.col("status"))).alias("status"),
        F.max(F.when(F.col("level") == 0, F.col("finalized_at"))).alias("ended_at"),
        F.array_sort(F.collect_list(F.when(F.col("on_path"), step))).alias("steps"),
    )
    # The last job is at level 0; the path is told from its beginning.
    path = F.transform(F.reverse("steps"), lambda each: each["job"])

    def total(name: str) -> Column:
        return F.aggregate(
            "critical_path", F.lit(0.0), lambda sum_, each: sum_ + F.coalesce(each[name], F.lit(0.0))
        )

    return trees.withColumn("critical_path", path).select(
        "source",
        "flow_id",
        F.col("flow_history").alias("history"),
        "type",
        "status",
        F.size("members").alias("jobs"),
        F.array_sort(F.array_distinct(F.transform("members", lambda each: each["job_id"]))).alias("job_ids"),
        "depth",
        "enqueued_at",
        "ended_at",
        seconds_between("enqueued_at", "ended_at").alias("seconds"),
        total("wait_seconds").alias("critical_wait_seconds"),
        total("run_seconds").alias("critical_run_seconds"),
        "critical_path",
    )
