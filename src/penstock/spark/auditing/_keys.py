"""What jobs owe each other: one job for an idempotency key at a time (13), one of a key in flight, in order (14)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.job import JobStatus
from penstock.lifecycle import Verb
from penstock.spark.auditing._flags import flag, flags_of
from penstock.spark.auditing._words import Check, no_violations, row_text, said, two_rows, violations
from penstock.spark.transforms._rows import quoted

__all__ = ["idempotency_checks", "key_checks"]

_ROW: Final = ("seq", "n", "verb", "from_status", "status", "attempt", "assignee_id", "recorded_at", "job_id")
_ID: Final = ["source", "job_id"]
_NEVER: Final = 2**62
#: More levels than any store allows by default.
_MAX_LEVELS: Final = 1_000
_UP_TO_HERE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_BEFORE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_KEY: Final = "xxhash64(source, key) AS line"
_FACTS: Final = (
    "idempotency_key IS NOT NULL AS is_idempotent",
    "coalesce(size(after), 0) + coalesce(size(after_any), 0) AS awaited",
    flags_of(),
)


def idempotency_checks(events: DataFrame, window: timedelta) -> DataFrame:
    """Return jobs that were stored though another one had their idempotency key."""
    rows = events.selectExpr("source", "type", "idempotency_key", *_ROW, flags_of()).where(
        f"idempotency_key IS NOT NULL AND ({flag('enqueues')} OR {flag('removes')})"
    )
    before = f"(PARTITION BY source, type, idempotency_key ORDER BY seq {_BEFORE})"
    held = rows.selectExpr(
        "*",
        f"last(CASE WHEN {flag('enqueues')} THEN struct({', '.join(_ROW)}) END, true) OVER {before} AS holder",
    )
    frees = f"{flag('removes')} AND job_id = holder.job_id"
    freed = held.selectExpr("*", f"last(CASE WHEN {frees} THEN seq END, true) OVER {before} AS freed")
    span = f"INTERVAL {window // timedelta(microseconds=1)} MICROSECOND"
    is_taken = (
        f"{flag('enqueues')} AND NOT coalesce(freed > holder.seq, false)"
        f" AND recorded_at < holder.recorded_at + {span}"
    )
    return violations(
        freed, [Check(13, is_taken, said("shares its key with ", "holder.job_id"), two_rows("holder."))]
    )


def key_checks(events: DataFrame, cut: Sequence[str]) -> DataFrame:
    """Return jobs that were in flight beside another one of their key, or were claimed before their turn.

    Asked of all rows as numbers first; only the keys with which something is wrong are looked at in words.
    """
    keyed = events.where("key IS NOT NULL")
    coded = keyed.selectExpr(_KEY, "xxhash64(source, job_id) AS job", "seq", *_FACTS)
    coded = coded.persist(StorageLevel.DISK_ONLY)  # asked several times
    jobs = _jobs(coded, ["seq"])
    suspects = (
        _held(coded, ["seq"])
        .where(_IS_SECOND)
        .select("line")
        .union(_passed(jobs).select("line"))
        .union(_came_back(coded, jobs, ["seq"]).select("line"))
        .distinct()
        .localCheckpoint()
    )
    coded.unpersist()
    if suspects.isEmpty():
        return no_violations(events)
    rows = keyed.selectExpr(*_ID, _KEY, "xxhash64(source, job_id) AS job", *_ROW[:-1], *_FACTS)
    rows = rows.join(suspects, "line", "left_semi").localCheckpoint()
    return _in_flight(rows).unionByName(_out_of_turn(rows, events, cut))


_ENTERS: Final = f"({flag('is_in_flight')} AND NOT {flag('was_in_flight')})"
_LEAVES: Final = f"(NOT {flag('is_in_flight')} AND {flag('was_in_flight')})"
_IS_SECOND: Final = f"{_ENTERS} AND holders > 0"


def _held(rows: DataFrame, told: Sequence[str]) -> DataFrame:
    """Return rows with how many jobs of the key were in flight before each, and the last that had entered."""
    before = f"(PARTITION BY line ORDER BY seq {_BEFORE})"
    return rows.selectExpr(
        "*",
        f"sum(CASE WHEN {_ENTERS} THEN 1 WHEN {_LEAVES} THEN -1 ELSE 0 END) OVER {before} AS holders",
        f"last(CASE WHEN {_ENTERS} THEN struct({', '.join(told)}) END, true) OVER {before} AS holder",
    )


def _in_flight(rows: DataFrame) -> DataFrame:
    return violations(
        _held(rows, _ROW),
        [Check(14, _IS_SECOND, said("its key is held by ", "holder.job_id"), two_rows("holder."))],
    )


# -- out of turn --------------------------------------------------------------------------------------------------
#
# A job is in the way of those that come after it from its first row until it has ended: a running maximum over the jobs
# of a key in their order. A job that came back from its end is in the way once more; that is rare, and a join.


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        "*",
        f"sum(CAST({flag('enqueues')} AS int)) OVER (PARTITION BY job ORDER BY seq {_UP_TO_HERE}) AS history",
    )


def _jobs(rows: DataFrame, told: Sequence[str]) -> DataFrame:
    """Return a row for each job: its place in the key's order, its first claim as `told`, and when it had ended."""
    return (
        _numbered(rows)
        .groupBy("line", "job", "history")
        .agg(
            F.expr(f"min(CASE WHEN {flag('enqueues')} THEN seq END) AS place"),
            F.expr(f"max(CASE WHEN {flag('enqueues')} THEN struct(is_idempotent, awaited) END) AS first"),
            F.expr(f"min(CASE WHEN {flag('claims')} THEN struct({', '.join(told)}) END) AS claim"),
            F.expr(f"coalesce(min(CASE WHEN {flag('is_final')} THEN seq END), {_NEVER}L) AS until"),
        )
    )


def _passed(jobs: DataFrame) -> DataFrame:
    """Return the jobs that were claimed while an earlier one of the key was unfinished, with that one as `blocker`."""
    before = f"(PARTITION BY line ORDER BY place {_BEFORE})"
    blocked = jobs.where("place IS NOT NULL").selectExpr(
        "*", f"max(struct(until, job, first.awaited AS awaited)) OVER {before} AS blocker"
    )
    # A spawned job whose idempotency key was taken is stood for by the job that has it, which then passes those that
    # wait for the parent. The journal does not tell.
    return blocked.where("claim.seq < blocker.until AND NOT (first.is_idempotent AND blocker.awaited > 0)")


def _came_back(rows: DataFrame, jobs: DataFrame, told: Sequence[str]) -> DataFrame:
    """Return claims while an earlier job of the key was unfinished again: `line, job, claim, earlier`."""
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
            "line",
            "job AS earlier",
            "seq AS begins",
            f"coalesce(next_end, {_NEVER}L) AS ends",
            "place AS earlier_place",
        )
    )
    claims = (
        numbered.where(flag("claims"))
        .join(places, on, "inner")
        .selectExpr("line", "job", "place", f"struct({', '.join(told)}) AS claim")
    )
    return (
        claims.join(back, "line", "inner")
        .where("earlier_place < place AND begins < claim.seq AND claim.seq < ends")
        .select("line", "job", "claim", "earlier")
    )


def _out_of_turn(rows: DataFrame, events: DataFrame, cut: Sequence[str]) -> DataFrame:
    told = (*_ROW, "source")
    jobs = _jobs(rows, told)
    early = _passed(jobs).selectExpr("job", "claim", "blocker.job AS earlier")
    again = _came_back(rows, jobs, told).select("job", "claim", "earlier")
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
    """Return the jobs that were spawned, and what those wait for: they pass the jobs that wait for them."""
    both = ", ".join(f"coalesce({name}, CAST(array() AS array<string>))" for name in ("after", "after_any"))
    firsts = events.where(f"verb = '{Verb.ENQUEUE}'").selectExpr(
        *_ID, "seq", "parent_id", f"concat({both}) AS awaited"
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
