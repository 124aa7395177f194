"""What the order of all rows decides: the numbers are dense (2) and time does not go back (25).

A window over a whole journal would be one task. The rows are cut into stretches of their numbers instead: each stretch
is checked by itself, given what the stretches before it reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.job import JournalArchive
from penstock.spark.auditing._words import no_violations, row_text, violations

__all__ = ["sequence_checks"]

_STRETCH: Final = 100_000
_COLUMNS: Final = (
    "source",
    "seq",
    "recorded_at",
    "job_id",
    "n",
    "verb",
    "from_status",
    "status",
    "attempt",
    "assignee_id",
)


def sequence_checks(events: DataFrame, archived: Mapping[str, JournalArchive], slack: timedelta) -> DataFrame:
    """Return where numbers are missing or stand twice, and where time goes back by more than `slack`."""
    # Only what is compared is sorted; the few rows that are wrong are looked up afterwards.
    rows = events.select(
        "source", "seq", "recorded_at", F.floor(F.col("seq") / _STRETCH).cast("bigint").alias("stretch")
    )
    reached = rows.groupBy("source", "stretch").agg(
        F.max("seq").alias("top"), F.max("recorded_at").alias("latest")
    )
    earlier = Window.partitionBy("source").orderBy("stretch").rowsBetween(Window.unboundedPreceding, -1)
    start = reached.select(
        "source",
        "stretch",
        F.max("top").over(earlier).alias("top_before"),
        F.max("latest").over(earlier).alias("latest_before"),
    )
    inside = Window.partitionBy("source", "stretch").orderBy("seq")
    before = inside.rowsBetween(Window.unboundedPreceding, -1)
    placed = (
        rows.withColumns(
            {"previous": F.lag("seq").over(inside), "latest_inside": F.max("recorded_at").over(before)}
        )
        .join(F.broadcast(start), ["source", "stretch"], "inner")
        .select(
            "source",
            "seq",
            (F.col("seq") - F.coalesce("previous", "top_before", F.lit(0)) - 1).alias("gap"),
            F.col("recorded_at"),
            F.greatest("latest_inside", "latest_before").alias("latest"),
        )
    )
    wrong = placed.where(
        (F.col("gap") != 0)
        | (F.col("recorded_at") < F.col("latest") - F.expr(f"INTERVAL {_micros(slack)} MICROSECOND"))
    ).localCheckpoint()
    if wrong.isEmpty():
        return no_violations(events)
    return _told(wrong, events, archived, slack)


def _told(
    wrong: DataFrame, events: DataFrame, archived: Mapping[str, JournalArchive], slack: timedelta
) -> DataFrame:
    running = (
        Window.partitionBy("source").orderBy("seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    rows = (
        wrong.withColumn("missing", F.sum(F.greatest("gap", F.lit(0))).over(running))
        .join(events.select(*_COLUMNS).drop("recorded_at"), ["source", "seq"], "inner")
        .dropDuplicates(["source", "seq", "job_id", "n"])
    )
    allowed = _by_source({source: each.rows for source, each in archived.items()})
    upto = _by_source({source: each.upto for source, each in archived.items()})
    is_hole = (
        (F.col("gap") < 0) | (F.col("missing") > allowed) | ((F.col("gap") > 0) & (F.col("seq") > upto + 1))
    )
    goes_back = F.col("recorded_at") < F.col("latest") - F.expr(f"INTERVAL {_micros(slack)} MICROSECOND")
    said = F.when(F.col("gap") < 0, F.lit("its number stands twice")).otherwise(
        F.concat(F.col("missing"), F.lit(" rows are missing so far, "), allowed, F.lit(" were archived"))
    )
    back = F.concat(F.lit("time goes back from "), F.col("latest").cast("string"))
    return violations(rows, [(2, is_hole, said, row_text()), (25, goes_back, back, row_text())])


def _by_source(values: Mapping[str, int]) -> Column:
    found = F.lit(0)
    for source, value in values.items():
        found = F.when(F.col("source") == source, F.lit(value)).otherwise(found)
    return found


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
