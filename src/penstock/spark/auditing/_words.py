"""What a violation says: one frame of six columns, made from pairs of conditions and texts."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = ["COLUMNS", "Check", "broken", "no_violations", "row_text", "told", "violations"]

COLUMNS: Final = ("invariant", "source", "job_id", "attempt", "seq", "detail")

#: The number of an invariant, when it is broken, what to say, and the rows that show it.
Check = tuple[int, Column, Column, Column]


def broken(checks: list[Check]) -> Column:
    """Return what a row breaks, as an array."""
    return F.array_compact(
        F.array(
            *(
                F.when(
                    F.coalesce(is_broken, F.lit(False)),
                    F.struct(
                        F.lit(number).alias("invariant"),
                        F.concat(said, F.lit(" ["), shown, F.lit("]")).alias("detail"),
                    ),
                )
                for number, is_broken, said, shown in checks
            )
        )
    )


def told(rows: DataFrame) -> DataFrame:
    """Return a violation for everything that rows have `found`."""
    return (
        rows.where(F.size("found") > 0)
        .select("source", "job_id", "attempt", "seq", F.explode("found").alias("found"))
        .select("found.invariant", "source", "job_id", "attempt", "seq", "found.detail")
    )


def violations(rows: DataFrame, checks: list[Check]) -> DataFrame:
    """Return a row for every check that a row breaks; the rows have `source, job_id, attempt, seq`."""
    return told(rows.select("source", "job_id", "attempt", "seq", broken(checks).alias("found")))


def no_violations(rows: DataFrame) -> DataFrame:
    """Return what rows that are in order give."""
    return violations(rows.limit(0), [(0, F.lit(False), F.lit(""), F.lit(""))])


def row_text(prefix: str = "") -> Column:
    """Return a journal row in a few words; null where there is no row."""

    def of(name: str) -> Column:
        return F.col(f"{prefix}{name}")

    return F.when(
        of("seq").isNotNull(),
        F.concat(
            F.lit("seq "),
            of("seq"),
            F.lit(", n "),
            of("n"),
            F.lit(": "),
            of("verb"),
            F.lit(" "),
            F.coalesce(of("from_status"), F.lit("nothing")),
            F.lit(" → "),
            of("status"),
            F.lit(", attempt "),
            of("attempt"),
            F.coalesce(F.concat(F.lit(" of "), of("assignee_id")), F.lit("")),
            F.lit(", "),
            F.date_format(of("recorded_at"), "yyyy-MM-dd HH:mm:ss.SSSSSS"),
        ),
    )
