"""What jobs owe each other: one job for an idempotency key at a time (13), one of a key in flight, in order (14)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.lifecycle import Verb
from penstock.spark.auditing._words import no_violations, row_text, violations
from penstock.spark.transforms._rows import REMOVES, among, is_final, is_in_flight

__all__ = ["idempotency_checks", "key_checks"]

_ROW: Final = ("seq", "n", "verb", "from_status", "status", "attempt", "assignee_id", "recorded_at", "job_id")
_ID: Final = ["source", "job_id"]
_NEVER: Final = 2**62
#: More levels than any store allows by default.
_MAX_LEVELS: Final = 1_000


def idempotency_checks(events: DataFrame, window: timedelta) -> DataFrame:
    """Return jobs that were stored though another one had their idempotency key."""
    rows = events.where(
        F.col("idempotency_key").isNotNull() & among("verb", (Verb.ENQUEUE, *REMOVES))
    ).select("source", "type", "idempotency_key", *_ROW)
    by_key = Window.partitionBy("source", "type", "idempotency_key").orderBy("seq")
    before = by_key.rowsBetween(Window.unboundedPreceding, -1)
    is_new = F.col("verb") == Verb.ENQUEUE.value
    held = rows.withColumn("holder", F.last(F.when(is_new, F.struct(*_ROW)), ignorenulls=True).over(before))
    frees = among("verb", REMOVES) & (F.col("job_id") == F.col("holder.job_id"))
    freed = held.withColumn("freed", F.last(F.when(frees, F.col("seq")), ignorenulls=True).over(before))
    is_free = F.coalesce(F.col("freed") > F.col("holder.seq"), F.lit(False))
    span = F.expr(f"INTERVAL {window // timedelta(microseconds=1)} MICROSECOND")
    is_early = F.col("recorded_at") < F.col("holder.recorded_at") + span
    said = F.concat(F.lit("shares its key with "), F.col("holder.job_id"))
    return violations(
        freed, [(13, is_new & ~is_free & is_early, said, F.concat_ws("; ", row_text("holder."), row_text()))]
    )


def key_checks(events: DataFrame, cut: list[str]) -> DataFrame:
    """Return jobs that were in flight beside another one of their key, or were claimed before their turn."""
    rows = events.where(F.col("key").isNotNull()).select(
        "source", "key", "idempotency_key", "after", "after_any", *_ROW
    )
    rows = rows.persist(StorageLevel.DISK_ONLY)  # asked several times
    return _in_flight(rows).unionByName(_out_of_turn(rows, events, cut))


def _in_flight(rows: DataFrame) -> DataFrame:
    enters = is_in_flight() & ~is_in_flight("from_status")
    leaves = ~is_in_flight() & is_in_flight("from_status")
    by_key = Window.partitionBy("source", "key").orderBy("seq")
    before = by_key.rowsBetween(Window.unboundedPreceding, -1)
    held = rows.withColumns(
        {
            "holders": F.sum(F.when(enters, 1).when(leaves, -1).otherwise(0)).over(before),
            "holder": F.last(F.when(enters, F.struct(*_ROW)), ignorenulls=True).over(before),
        }
    )
    said = F.concat(F.lit("its key is held by "), F.col("holder.job_id"))
    shown = F.concat_ws("; ", row_text("holder."), row_text())
    return violations(held, [(14, enters & (F.col("holders") > 0), said, shown)])


def _out_of_turn(rows: DataFrame, events: DataFrame, cut: list[str]) -> DataFrame:
    """Return claims while an earlier job of the key was unfinished.

    Such a job is in the way from its first row until it has ended: a running maximum over the jobs of a key in their
    order. A job that came back from its end is in the way once more; that is rare, and a join.
    """
    by_job = Window.partitionBy(*_ID).orderBy("seq")
    so_far = by_job.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_new = F.col("verb") == Verb.ENQUEUE.value
    numbered = rows.withColumn("history", F.sum(is_new.cast("int")).over(so_far))
    is_claim = F.col("verb") == Verb.CLAIM.value
    first = F.struct("idempotency_key", (F.size("after") + F.size("after_any")).alias("awaited"))
    jobs = numbered.groupBy("source", "key", "job_id", "history").agg(
        F.min(F.when(is_new, F.col("seq"))).alias("place"),
        F.max(F.when(is_new, first)).alias("first"),
        F.min(F.when(is_claim, F.struct(*_ROW))).alias("claim"),
        F.coalesce(F.min(F.when(is_final(), F.col("seq"))), F.lit(_NEVER)).alias("until"),
    )
    in_order = Window.partitionBy("source", "key").orderBy("place")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    blocked = jobs.where(F.col("place").isNotNull()).withColumn(
        "blocker",
        F.max(F.struct("until", "job_id", F.col("first.awaited").alias("awaited"))).over(before),
    )
    early = blocked.where(F.col("claim.seq") < F.col("blocker.until")).where(
        # A spawned job whose idempotency key was taken is stood for by the job that has it, which then passes those
        # that wait for the parent. The journal does not tell.
        ~(F.col("first.idempotency_key").isNotNull() & (F.col("blocker.awaited") > 0))
    )
    again = _came_back(numbered, jobs)
    found = early.select("source", "job_id", "claim", F.col("blocker.job_id").alias("earlier")).unionByName(
        again
    )
    found = found.localCheckpoint()
    if found.isEmpty():
        return no_violations(rows)
    passing = _may_pass(events, cut)
    rest = found.join(passing, _ID, "left_anti")
    said = F.concat(F.lit("claimed before "), F.col("earlier"), F.lit(", which is first of the key"))
    flat = rest.select("source", "job_id", "claim.attempt", "claim.seq", "claim", "earlier")
    return violations(flat, [(14, F.lit(True), said, row_text("claim."))])


def _came_back(numbered: DataFrame, jobs: DataFrame) -> DataFrame:
    """Return claims while an earlier job of the key was unfinished again."""
    by_job = Window.partitionBy(*_ID).orderBy("seq")
    after = by_job.rowsBetween(1, Window.unboundedFollowing)
    ended = F.first(F.when(is_final(), F.col("seq")), ignorenulls=True).over(after)
    back = (
        numbered.withColumn("ends", F.coalesce(ended, F.lit(_NEVER)))
        .where(is_final("from_status") & ~is_final())
        .join(jobs.select(*_ID, "history", "place"), [*_ID, "history"], "inner")
        .select(
            "source",
            "key",
            F.col("job_id").alias("earlier"),
            F.col("seq").alias("begins"),
            "ends",
            F.col("place").alias("earlier_place"),
        )
    )
    claims = (
        numbered.where(F.col("verb") == Verb.CLAIM.value)
        .join(jobs.select(*_ID, "history", "place"), [*_ID, "history"], "inner")
        .select("source", "key", "job_id", "place", F.struct(*_ROW).alias("claim"))
    )
    in_the_way = (
        (F.col("earlier_place") < F.col("place"))
        & (F.col("begins") < F.col("claim.seq"))
        & (F.col("claim.seq") < F.col("ends"))
    )
    return (
        claims.join(back, ["source", "key"], "inner")
        .where(in_the_way)
        .select("source", "job_id", "claim", "earlier")
    )


def _may_pass(events: DataFrame, cut: list[str]) -> DataFrame:
    """Return the jobs that were spawned, and what those wait for: they pass the jobs that wait for them."""
    firsts = events.where(F.col("verb") == Verb.ENQUEUE.value).select(
        *_ID, "seq", "parent_id", F.concat(_texts("after"), _texts("after_any")).alias("awaited")
    )
    children = firsts.where(F.col("parent_id").isNotNull())
    parents = events.select(
        "source", F.col("job_id").alias("parent_id"), F.col("seq").alias("parent_seq"), "status"
    )
    status = (
        children.select(*_ID, "seq", "parent_id")
        .join(parents, ["source", "parent_id"], "left")
        .groupBy(*_ID, "seq")
        .agg(
            F.max_by("status", F.when(F.col("parent_seq") < F.col("seq"), F.col("parent_seq"))).alias(
                "status"
            ),
            F.count("parent_seq").alias("known"),
        )
    )
    is_lost = F.col("source").isin(cut) & (F.col("known") == 0)
    found = (
        status.where((F.col("status") == JobStatus.RUNNING.value) | is_lost)
        .select(*_ID)
        .distinct()
        .localCheckpoint()
    )
    frontier = found
    for _ in range(_MAX_LEVELS):
        if frontier.isEmpty():
            break
        reached = (
            firsts.join(frontier, _ID, "left_semi")
            .select("source", F.explode("awaited").alias("job_id"))
            .distinct()
        )
        frontier = reached.join(found, _ID, "left_anti").localCheckpoint()
        found = found.unionByName(frontier).localCheckpoint()
    return found


def _texts(name: str) -> Column:
    return F.coalesce(F.col(name), F.array().cast("array<string>"))
