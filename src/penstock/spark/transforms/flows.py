"""The critical path of each dependency tree: the dependency that each job waited for longest.

A tree is named after its last job, on which no other job depends. The walk follows the dependencies from there, level by
level, all trees at once; a tree has at most as many levels as the store's limit of depth. The dependency that made a job
ready is the last of `after` to end or the first of `after_any`, whichever ended later.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.spark.transforms.rows import HISTORY, NO_TEXTS, seconds_between

__all__ = ["FLOW_FACTS", "edges", "flows"]

#: The columns of `jobs` that `flows` needs.
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

#: More levels than any store allows by default; deeper ones are cut off.
MAX_LEVELS: Final = 1_000
#: Up to so many links are walked in this process: in Spark each level takes a query.
FEW_LINKS: Final = 50_000
#: A job may be reached by many paths; a walk with more steps is left to Spark, which need not hold them in memory.
MAX_STEPS: Final = 1_000_000
_TREE: Final = ("source", "flow_id", "flow_history")
_MEMBERS: Final = pa.schema(
    [
        ("source", pa.string()),
        ("flow_id", pa.string()),
        ("flow_history", pa.int32()),
        ("job_id", pa.string()),
        ("history", pa.int32()),
        ("level", pa.int32()),
        ("on_path", pa.bool_()),
    ]
)


def flows(jobs: DataFrame) -> DataFrame:
    """Return one row per dependency tree, with the columns of the table `flows`.

    The dependencies are evaluated when this function is called, and a walk through many links takes a small Spark job
    per level.

    Args:
        jobs: rows as `latest` returns them; a tree is complete if all its jobs are among them.
    """
    facts = jobs.select(*FLOW_FACTS)
    links = _critical(edges(facts)).localCheckpoint()  # read several times
    return _summary(_members(links), facts, links)


def _members(links: DataFrame) -> DataFrame:
    """Return `source, flow_id, flow_history, job_id, history, level, on_path` of all jobs of all trees."""
    few = links.select(*HISTORY, "on_id", "on_history", "frees").limit(FEW_LINKS + 1).toArrow()
    if few.num_rows <= FEW_LINKS:
        walked = _walk_here(few)
        if walked is not None:
            return links.sparkSession.createDataFrame(walked)
    return _walk(links)


def edges(jobs: DataFrame) -> DataFrame:
    """Return the dependencies: `source, job_id, history, kind, on_id, on_history, on_finalized_at`."""
    waits = jobs.selectExpr(*HISTORY, "first_seq", _WAITS)
    ends = jobs.selectExpr(
        "source",
        "job_id AS on_id",
        "history AS on_history",
        "first_seq AS on_first_seq",
        "finalized_at AS on_finalized_at",
    )
    # If an id was used again, the dependency is the last job with it that existed when the dependent was enqueued.
    return (
        waits.join(ends, ["source", "on_id"], "inner")
        .where("coalesce(on_first_seq < first_seq, true)")
        .repartition(*HISTORY)  # as all later windows need it
        .selectExpr(*_EDGE, f"row_number() OVER ({_BY_JOB}, kind, on_id ORDER BY on_history DESC) AS place")
        .where("place = 1")
        .select(*_EDGE)
    )


def _each(kind: str, column: str) -> str:
    listed = f"coalesce({column}, {NO_TEXTS})"
    return f"transform({listed}, each -> struct('{kind}' AS kind, each AS on_id))"


_WAITS: Final = f"inline(concat({_each('after', 'after')}, {_each('any', 'after_any')})) AS (kind, on_id)"
_EDGE: Final = (*HISTORY, "kind", "on_id", "on_history", "on_finalized_at")
_BY_JOB: Final = f"PARTITION BY {', '.join(HISTORY)}"


def _critical(links: DataFrame) -> DataFrame:
    """Return edges with `frees`: whether the end of this dependency made the dependent ready."""
    return (
        links.selectExpr("*", f"{_ENDED} AS ended", f"row_number() OVER ({_RANK}) AS rank")
        .selectExpr(*_EDGE, f"row_number() OVER ({_CHOICE}) = 1 AS frees")
        .groupBy(*HISTORY, "on_id", "on_history")
        .agg(F.expr("max(on_finalized_at) AS on_finalized_at"), F.expr("max(frees) AS frees"))
    )


# The last of `after` and the first of `after_any`; the later of the two made the job ready.
_ENDED: Final = "unix_micros(coalesce(on_finalized_at, TIMESTAMP '9999-12-31 00:00:00'))"
_RANK: Final = f"{_BY_JOB}, kind ORDER BY CASE WHEN kind = 'after' THEN -{_ENDED} ELSE {_ENDED} END, on_id"
_CHOICE: Final = f"{_BY_JOB} ORDER BY CASE WHEN rank = 1 THEN 0 ELSE 1 END, ended DESC, on_id"


def _walk(links: DataFrame) -> DataFrame:
    awaited = links.selectExpr("source", "on_id AS job_id", "on_history AS history").distinct()
    level = (
        links.select(*HISTORY)
        .distinct()
        .join(awaited, [*HISTORY], "left_anti")
        .selectExpr(
            "source",
            "job_id AS flow_id",
            "history AS flow_history",
            "job_id",
            "history",
            "0 AS level",
            "true AS on_path",
        )
        .localCheckpoint()
    )
    reached = level
    for number in range(1, MAX_LEVELS):
        level = (
            level.drop("level")
            .join(links, [*HISTORY], "inner")
            .groupBy(*_TREE, F.expr("on_id AS job_id"), F.expr("on_history AS history"))
            .agg(F.expr(f"{number} AS level"), F.expr("max(on_path AND frees) AS on_path"))
            .localCheckpoint()
        )
        if level.isEmpty():
            break
        reached = reached.union(level)
    return reached


def _walk_here(links: pa.Table) -> pa.Table | None:
    """Return the same as `_walk` for few links; None if the walk has too many steps."""
    waits = defaultdict(list)
    awaited = set()
    for source, job_id, history, on_id, on_history, frees in zip(
        *(column.to_pylist() for column in links.columns), strict=True
    ):
        awaited.add((source, on_id, on_history))
        waits[source, job_id, history].append(((source, on_id, on_history), frees))
    rows: list[tuple[str, str, int, str, int, int, bool]] = []
    for root in waits.keys() - awaited:
        level = {root: True}
        for number in range(MAX_LEVELS):
            rows += ((*root, *job[1:], number, on_path) for job, on_path in level.items())
            if len(rows) > MAX_STEPS:
                return None
            below: dict[tuple[str, str, int], bool] = {}
            for job, on_path in level.items():
                for on, frees in waits.get(job, ()):
                    below[on] = below.get(on, False) or (on_path and frees)
            if not below:
                break
            level = below
    columns = zip(*rows, strict=True) if rows else ((),) * len(_MEMBERS)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, _MEMBERS, strict=True)],
        schema=_MEMBERS,
    )


def _summary(members: DataFrame, facts: DataFrame, links: DataFrame) -> DataFrame:
    released = links.where("frees").selectExpr(*HISTORY, "on_finalized_at AS released_at")
    steps = (
        members.join(facts.drop("after", "after_any", "first_seq"), [*HISTORY], "inner")
        .join(released, [*HISTORY], "left")
        .selectExpr("*", "greatest(enqueued_at, released_at) AS ready_at")
    )
    trees = steps.groupBy(*_TREE).agg(*map(F.expr, _OF_TREE))
    return trees.selectExpr("*", "transform(reverse(steps), each -> each.job) AS critical_path").selectExpr(
        *_FLOW
    )


_STEP: Final = (
    "struct(level, struct(job_id, history, type, status, ready_at, started_at, finalized_at AS ended_at,"
    f" {seconds_between('ready_at', 'started_at')} AS wait_seconds,"
    f" {seconds_between('started_at', 'finalized_at')} AS run_seconds) AS job)"
)
_OF_TREE: Final = (
    "collect_set(struct(job_id, history)) AS members",
    "CAST(max(level) + 1 AS int) AS depth",
    "min(enqueued_at) AS enqueued_at",
    # The last job is at level 0.
    "max(CASE WHEN level = 0 THEN type END) AS type",
    "max(CASE WHEN level = 0 THEN status END) AS status",
    "max(CASE WHEN level = 0 THEN finalized_at END) AS ended_at",
    f"array_sort(collect_list(CASE WHEN on_path THEN {_STEP} END)) AS steps",
)


def _total(name: str) -> str:
    return f"aggregate(critical_path, 0.0D, (total, each) -> total + coalesce(each.{name}, 0.0D))"


_FLOW: Final = (
    "source",
    "flow_id",
    "flow_history AS history",
    "type",
    "status",
    "size(members) AS jobs",
    "array_sort(array_distinct(transform(members, each -> each.job_id))) AS job_ids",
    "depth",
    "enqueued_at",
    "ended_at",
    f"{seconds_between('enqueued_at', 'ended_at')} AS seconds",
    f"{_total('wait_seconds')} AS critical_wait_seconds",
    f"{_total('run_seconds')} AS critical_run_seconds",
    "critical_path",
)
