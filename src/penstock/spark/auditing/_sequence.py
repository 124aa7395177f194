"""Invariants of the whole journal: `seq` has no gaps (2) and time does not go back (25).

A window over a whole journal would be one task. So the rows are divided into ranges of `seq`, and each range is checked by
itself, given the maxima of the ranges before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.job import JournalArchive
from penstock.spark.auditing._words import Check, no_violations, row_text, said, violations
from penstock.spark.transforms.rows import number_of

__all__ = ["sequence_checks"]

_RANGE: Final = 100_000
_COLUMNS: Final = ("source", "seq", "job_id", "n", "verb", "from_status", "status", "attempt", "assignee_id")
_STORE: Final = "xxhash64(source) AS store"


def sequence_checks(events: DataFrame, archived: Mapping[str, JournalArchive], slack: timedelta) -> DataFrame:
    """Return where a `seq` is missing or occurs twice, and where time goes back by more than `slack`."""
    # Only the compared columns are sorted; the few wrong rows are joined afterwards.
    rows = events.selectExpr(
        _STORE, "seq", "recorded_at", f"CAST(floor(seq / {_RANGE}) AS bigint) AS seq_range"
    )
    reached = rows.groupBy("store", "seq_range").agg(
        F.expr("max(seq) AS top"), F.expr("max(recorded_at) AS latest")
    )
    earlier = "(PARTITION BY store ORDER BY seq_range ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    start = reached.selectExpr(
        "store",
        "seq_range",
        f"max(top) OVER {earlier} AS top_before",
        f"max(latest) OVER {earlier} AS latest_before",
    )
    inside = "PARTITION BY store, seq_range ORDER BY seq"
    placed = (
        rows.selectExpr(
            "*",
            f"lag(seq) OVER ({inside}) AS previous",
            f"max(recorded_at) OVER ({inside} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest_inside",
        )
        .join(F.broadcast(start), ["store", "seq_range"], "inner")
        .selectExpr(
            "store",
            "seq",
            "seq - coalesce(previous, top_before, 0) - 1 AS gap",
            "recorded_at",
            "greatest(latest_inside, latest_before) AS latest",
        )
    )
    goes_back = f"recorded_at < latest - INTERVAL {slack // timedelta(microseconds=1)} MICROSECOND"
    wrong = placed.where(f"gap <> 0 OR {goes_back}").localCheckpoint()
    if wrong.isEmpty():
        return no_violations(events)
    return _explained(wrong, events, archived, goes_back)


def _explained(
    wrong: DataFrame, events: DataFrame, archived: Mapping[str, JournalArchive], goes_back: str
) -> DataFrame:
    running = "(PARTITION BY store ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    rows = (
        wrong.selectExpr("*", f"sum(greatest(gap, 0)) OVER {running} AS missing")
        .join(events.selectExpr(*_COLUMNS, _STORE), ["store", "seq"], "inner")
        .dropDuplicates(["source", "seq", "job_id", "n"])
    )
    allowed = number_of({source: each.rows for source, each in archived.items()}, "0")
    upto = number_of({source: each.upto for source, each in archived.items()}, "0")
    is_hole = f"gap < 0 OR missing > {allowed} OR (gap > 0 AND seq > {upto} + 1)"
    what = (
        "CASE WHEN gap < 0 THEN 'its number stands twice'"
        f" ELSE {said('', 'missing', ' rows are missing so far, ', allowed, ' were archived')} END"
    )
    return violations(
        rows,
        [
            Check(2, is_hole, what, row_text()),
            Check(25, goes_back, said("time goes back from ", "latest"), row_text()),
        ],
    )
