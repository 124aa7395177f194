"""Invariants between jobs: one job per idempotency key at a time (13), one job per key in flight, in order (14)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.lifecycle import ENQUEUES
from penstock.spark.auditing._flags import flag, flags_of
from penstock.spark.auditing._words import Check, no_violations, row_text, said, two_rows, violations
from penstock.spark.transforms.rows import DEPENDENCIES, UP_TO_HERE, among_text, quoted

__all__ = ["idempotency_checks", "key_checks"]

_ROW: Final = ("seq", "n", "verb", "from_status", "status", "attempt", "assignee_id", "recorded_at", "job_id")
_ID: Final = ["source", "job_id"]
_NEVER: Final = 2**62
#: More levels than any store allows by default.
_MAX_LEVELS: Final = 1_000
_BEFORE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_KEY: Final = "xxhash64(source, key) AS key_hash"
_FACTS: Final = (
    "idempotency_key IS NOT NULL AS is_idempotent",
    "coalesce(size(after), 0) + coalesce(size(after_any), 0) AS awaited",
    flags_of(),
)


def idempotency_checks(events: DataFrame, window: timedelta) -> DataFrame:
    """Return jobs that were enqueued although another one had their idempotency key."""
    changes_end = f"({flag('enqueues')} OR {flag('removes')} OR {flag('is_final')} OR {flag('was_final')})"
    rows = events.selectExpr("source", "type", "idempotency_key", *_ROW, flags_of()).where(
        f"idempotency_key IS NOT NULL AND {changes_end}"
    )
    before = f"(PARTITION BY source, type, idempotency_key ORDER BY seq {_BEFORE})"
    held = rows.selectExpr(
        "*",
        f"last(CASE WHEN {flag('enqueues')} THEN struct({', '.join(_ROW)}, flags) END, true) OVER {before} AS holder",
    )
    is_of_holder = "job_id = holder.job_id"
    freed = held.selectExpr(
        "*",
        f"last(CASE WHEN {flag('removes')} AND {is_of_holder} THEN seq END, true) OVER {before} AS freed",
        f"last(CASE WHEN {is_of_holder} THEN struct(seq, {flag('is_final')} AS is_final) END, true)"
        f" OVER {before} AS latest",
    )
    span = f"INTERVAL {window // timedelta(microseconds=1)} MICROSECOND"
    is_holder_unique = flag("is_unique", "holder.flags")
    has_ended = "coalesce(latest.seq > holder.seq AND latest.is_final, false)"
    is_taken = (
        f"{flag('enqueues')} AND holder IS NOT NULL AND NOT coalesce(freed > holder.seq, false)"
        f" AND NOT ({has_ended} AND ({is_holder_unique} OR {flag('is_unique')}))"
        f" AND ({is_holder_unique} OR recorded_at < holder.recorded_at + {span})"
    )
    return violations(
        freed, [Check(13, is_taken, said("shares its key with ", "holder.job_id"), two_rows("holder."))]
    )


def key_checks(events: DataFrame, cut: Sequence[str]) -> DataFrame:
    """Return jobs that were in flight together with another one of their key, or were claimed out of order.

    A first pass over all rows uses hashes only; a second one reads the full rows of the keys that the first has found.
    """
    keyed = events.where("key IS NOT NULL")
    coded = keyed.selectExpr(_KEY, "xxhash64(source, job_id) AS job", "seq", *_FACTS)
    coded = coded.persist(StorageLevel.DISK_ONLY)  # used several times
    jobs = _jobs(coded, ["seq"])
    suspects = (
        _held(coded, ["seq"])
        .where(_IS_SECOND)
        .select("key_hash")
        .union(_passed(jobs).select("key_hash"))
        .union(_reopened(coded, jobs, ["seq"]).select("key_hash"))
        .distinct()
        .localCheckpoint()
    )
    coded.unpersist()
    if suspects.isEmpty():
        return no_violations(events)
    rows = keyed.selectExpr(*_ID, _KEY, "xxhash64(source, job_id) AS job", *_ROW[:-1], *_FACTS)
    rows = rows.join(suspects, "key_hash", "left_semi").localCheckpoint()
    return _in_flight(rows).unionByName(_out_of_turn(rows, events, cut))


_ENTERS: Final = f"({flag('is_in_flight')} AND NOT {flag('was_in_flight')})"
_LEAVES: Final = f"(NOT {flag('is_in_flight')} AND {flag('was_in_flight')})"
_IS_SECOND: Final = f"{_ENTERS} AND holders > 0"


def _held(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return rows with the number of jobs of the key in flight before each, and the last one that was claimed."""
    before = f"(PARTITION BY key_hash ORDER BY seq {_BEFORE})"
    return rows.selectExpr(
        "*",
        f"sum(CASE WHEN {_ENTERS} THEN 1 WHEN {_LEAVES} THEN -1 ELSE 0 END) OVER {before} AS holders",
        f"last(CASE WHEN {_ENTERS} THEN struct({', '.join(columns)}) END, true) OVER {before} AS holder",
    )


def _in_flight(rows: DataFrame) -> DataFrame:
    return violations(
        _held(rows, _ROW),
        [Check(14, _IS_SECOND, said("its key is held by ", "holder.job_id"), two_rows("holder."))],
    )


# -- out of turn --------------------------------------------------------------------------------------------------
#
# A job blocks the later jobs of its key from its first row until its end, which is a running maximum over the jobs of the
# key in their order. A job that left a final status blocks them again; that is rare, and takes a join.


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        "*",
        f"sum(CAST({flag('enqueues')} AS int)) OVER (PARTITION BY job ORDER BY seq {UP_TO_HERE}) AS history",
    )


def _jobs(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return one row per job: its place in the key's order, the `columns` of its first claim, and the `seq` of its end."""
    return (
        _numbered(rows)
        .groupBy("key_hash", "job", "history")
        .agg(
            F.expr(f"min(CASE WHEN {flag('enqueues')} THEN seq END) AS place"),
            F.expr(f"max(CASE WHEN {flag('enqueues')} THEN struct(is_idempotent, awaited) END) AS first"),
            F.expr(f"min(CASE WHEN {flag('claims')} THEN struct({', '.join(columns)}) END) AS claim"),
            F.expr(f"coalesce(min(CASE WHEN {flag('is_final')} THEN seq END), {_NEVER}L) AS until"),
        )
    )


def _passed(jobs: DataFrame) -> DataFrame:
    """Return the jobs that were claimed while an earlier one of the key was unfinished, with that one as `blocker`."""
    before = f"(PARTITION BY key_hash ORDER BY place {_BEFORE})"
    blocked = jobs.where("place IS NOT NULL").selectExpr(
        "*", f"max(struct(until, job, first.awaited AS awaited)) OVER {before} AS blocker"
    )
    # If the idempotency key of a spawned job is taken, the job that has it takes its place, and may run before jobs that
    # wait for the parent. The journal does not record that.
    return blocked.where("claim.seq < blocker.until AND NOT (first.is_idempotent AND blocker.awaited > 0)")


def _reopened(rows: DataFrame, jobs: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return claims while an earlier job of the key was unfinished again: `key_hash, job, claim, earlier`."""
    after = "(PARTITION BY job ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    numbered = _numbered(rows)
    places = jobs.select("job", "history", "place")
    on = ["job", "history"]
    back = (
        numbered.selectExpr(
            "*", f"first(CASE WHEN {flag('is_final')} THEN seq END, true) OVER {after} AS next_end"
        )
        .where(f"{flag('was_final')} AND NOT {flag('is_final')}")
        .join(places, on, "inner")
        .selectExpr(
            "key_hash",
            "job AS earlier",
            "seq AS begins",
            f"coalesce(next_end, {_NEVER}L) AS ends",
            "place AS earlier_place",
        )
    )
    claims = (
        numbered.where(flag("claims"))
        .join(places, on, "inner")
        .selectExpr("key_hash", "job", "place", f"struct({', '.join(columns)}) AS claim")
    )
    return (
        claims.join(back, "key_hash", "inner")
        .where("earlier_place < place AND begins < claim.seq AND claim.seq < ends")
        .select("key_hash", "job", "claim", "earlier")
    )


def _out_of_turn(rows: DataFrame, events: DataFrame, cut: Sequence[str]) -> DataFrame:
    columns = (*_ROW, "source")
    jobs = _jobs(rows, columns)
    early = _passed(jobs).selectExpr("job", "claim", "blocker.job AS earlier")
    again = _reopened(rows, jobs, columns).select("job", "claim", "earlier")
    names = rows.selectExpr("job AS earlier", "job_id AS earlier_id").distinct()
    found = (
        early.union(again)
        .join(names, "earlier", "inner")
        .selectExpr(
            "claim.source", "claim.job_id", "claim.attempt", "claim.seq", "claim", "earlier_id AS earlier"
        )
        .localCheckpoint()
    )
    if found.isEmpty():
        return no_violations(rows)
    rest = found.join(_may_pass(events, cut), _ID, "left_anti")
    words = said("claimed before ", "earlier", ", which is first of the key")
    return violations(rest, [Check(14, "true", words, row_text("claim."))])


def _may_pass(events: DataFrame, cut: Sequence[str]) -> DataFrame:
    """Return spawned jobs and their dependencies: they may run before the jobs that wait for them."""
    firsts = events.where(among_text("verb", ENQUEUES)).selectExpr(
        *_ID, "seq", "parent_id", f"{DEPENDENCIES} AS awaited"
    )
    parents = events.selectExpr("source", "job_id AS parent_id", "seq AS parent_seq", "status")
    status = (
        firsts.where("parent_id IS NOT NULL")
        .select(*_ID, "seq", "parent_id")
        .join(parents, ["source", "parent_id"], "left")
        .groupBy(*_ID, "seq")
        .agg(
            F.expr("max_by(status, CASE WHEN parent_seq < seq THEN parent_seq END) AS status"),
            F.expr("count(parent_seq) AS known"),
        )
    )
    among = ", ".join(map(quoted, cut))
    is_lost = f"source IN ({among}) AND known = 0" if among else "false"
    found = status.where(f"status = '{JobStatus.RUNNING}' OR {is_lost}").select(*_ID).distinct()
    found = found.localCheckpoint()
    frontier = found
    for _ in range(_MAX_LEVELS):
        if frontier.isEmpty():
            break
        reached = (
            firsts.join(frontier, _ID, "left_semi")
            .selectExpr("source", "explode(awaited) AS job_id")
            .distinct()
        )
        frontier = reached.join(found, _ID, "left_anti").localCheckpoint()
        found = found.unionByName(frontier).localCheckpoint()
    return found
