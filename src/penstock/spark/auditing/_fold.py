"""Whether the stored jobs are what the journal says they are (23)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.job import JournalArchive
from penstock.spark.auditing._histories import ORIGIN, STATE
from penstock.spark.auditing._words import COLUMNS
from penstock.spark.transforms._rows import REMOVES, among, is_final

__all__ = ["fingerprinted", "fold_checks", "fold_suspects"]

_NAMES = (*STATE, *ORIGIN)


def fingerprinted(events: DataFrame) -> DataFrame:
    """Return the rows with a number for the state that each tells, and one for what its job began with."""
    return events.withColumns({"state": _fingerprint(STATE), "began": _fingerprint(ORIGIN)})


def fold_suspects(rows: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the jobs, `source, job_id`, whose stored state is not, number for number, what their last row tells.

    Some of them may be in order: `fold_checks` knows what was archived, and what came while the jobs were read.

    Args:
        rows: the last ones of `checked_rows` of `fingerprinted` events, with `origin.began`.
        stored: as for `fold_checks`.
    """
    has_history = "history" in stored.columns
    on = ["source", "job_id", "history"] if has_history else ["source", "job_id"]
    last = rows.where("is_last") if has_history else rows.where(F.col("is_last") & ~among("verb", REMOVES))
    told = last.select(*on, "state", "began")
    kept = fingerprinted(stored).select(*on, F.col("state").alias("kept"), F.col("began").alias("kept_began"))
    is_same = F.col("state").eqNullSafe(F.col("kept")) & F.col("began").eqNullSafe(F.col("kept_began"))
    return told.join(kept, on, "full_outer").where(~is_same).select("source", "job_id")


def _fingerprint(names: tuple[str, ...]) -> Column:
    """Return a number for the values of columns. A hash passes over nulls, so it is told where they are."""
    values = [
        F.coalesce(F.col(name), _no_texts()) if name in ("after", "after_any") else F.col(name)
        for name in names
    ]
    return F.xxhash64(*values, *(value.isNull() for value in values))


def fold_checks(
    rows: DataFrame,
    stored: DataFrame,
    archived: Mapping[str, JournalArchive],
    read_after: Mapping[str, int] | None,
) -> DataFrame:
    """Return where stored jobs and the journal's last rows differ.

    Args:
        rows: of `checked_rows`.
        stored: `source, job_id` and the columns of the state; also `history` if removed jobs are among them.
        archived: what was removed from the journal of each source.
        read_after: the last number of each journal before `stored` was read; what came later may be in one of the two
            alone. None if nobody writes.
    """
    has_history = "history" in stored.columns
    on = ["source", "job_id", "history"] if has_history else ["source", "job_id"]
    last = rows.where("is_last")
    if not has_history:
        last = last.where(~among("verb", REMOVES))
    told = last.select(
        *on,
        "seq",
        F.col("origin.seq").alias("first_seq"),
        F.struct(
            *STATE,
            F.coalesce("origin.after", _no_texts()).alias("after"),
            F.coalesce("origin.after_any", _no_texts()).alias("after_any"),
            F.col("origin.parent_id").alias("parent_id"),
        ).alias("told"),
        (F.col("origin.after").isNull()).alias("is_cut"),
    )
    kept = stored.select(
        *on,
        F.struct(
            *STATE,
            F.coalesce("after", _no_texts()).alias("after"),
            F.coalesce("after_any", _no_texts()).alias("after_any"),
            "parent_id",
        ).alias("kept"),
    )
    both = told.join(kept, on, "full_outer")
    newer = _since(read_after, "seq")
    unseen = F.row_number().over(Window.partitionBy("source", "is_unseen").orderBy("job_id"))
    placed = both.withColumn("is_unseen", F.col("told").isNull() & is_final("kept.status")).withColumn(
        "number", unseen
    )
    hidden = _hidden(archived)
    alone = F.when(
        F.col("kept").isNull() & ~_since(read_after, "first_seq"), F.lit("is in the journal alone")
    ).when(
        F.col("told").isNull() & ~(F.col("is_unseen") & (F.col("number") <= hidden)),
        F.lit("is stored, but the journal does not have it"),
    )
    differ = F.when(
        F.col("told").isNotNull() & F.col("kept").isNotNull() & ~newer,
        F.concat_ws(", ", *(_difference(name) for name in _NAMES)),
    )
    detail = F.coalesce(alone, F.when(differ != "", differ))
    attempt = F.coalesce("told.attempt", "kept.attempt")
    found = placed.select(
        F.lit(23).alias("invariant"),
        "source",
        "job_id",
        attempt.alias("attempt"),
        "seq",
        F.concat(
            detail,
            F.lit(" ["),
            F.coalesce(F.concat(F.lit("seq "), F.col("seq")), F.lit("no row")),
            F.lit("]"),
        ).alias("detail"),
    )
    return found.where(F.col("detail").isNotNull()).select(*COLUMNS)


def _difference(name: str) -> Column:
    ours, theirs = F.col(f"kept.{name}"), F.col(f"told.{name}")
    is_known = F.lit(True) if name in STATE else ~F.col("is_cut")
    return F.when(
        is_known & ~ours.eqNullSafe(theirs),
        F.concat(F.lit(f"{name} is "), _shown(ours), F.lit(", the journal says "), _shown(theirs)),
    )


def _shown(column: Column) -> Column:
    return F.coalesce(column.cast("string"), F.lit("nothing"))


def _no_texts() -> Column:
    return F.array().cast("array<string>")


def _since(marks: Mapping[str, int] | None, column: str) -> Column:
    found = F.lit(False)
    for source, seq in (marks or {}).items():
        found = found | ((F.col("source") == source) & (F.col(column) > seq))
    return F.coalesce(found, F.lit(False))


def _hidden(archived: Mapping[str, JournalArchive]) -> Column:
    found = F.lit(0)
    for source, each in archived.items():
        found = F.when(F.col("source") == source, F.lit(each.histories)).otherwise(found)
    return found
