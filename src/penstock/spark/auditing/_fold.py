"""Comparing the stored jobs with the state that the journal folds to (23)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from penstock.job import JournalArchive
from penstock.spark.auditing._flags import flag
from penstock.spark.auditing._histories import JOB, ORIGIN, STATE
from penstock.spark.auditing._words import COLUMNS, said
from penstock.spark.transforms.rows import NO_TEXTS, final, number_of

__all__ = ["fingerprinted", "fold_checks", "fold_suspects"]


def fingerprinted(events: DataFrame) -> DataFrame:
    """Return the rows with a hash of the job's state after each, and one of the columns that a job begins with."""
    return events.selectExpr("*", f"{_fingerprint(STATE)} AS state", f"{_fingerprint(ORIGIN)} AS began")


def fold_suspects(rows: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the jobs, by their hash `job`, that have a wrong row, or whose stored state differs from their last row.

    Some of them may be correct: `fold_checks` considers archived rows, and changes while the jobs were read.

    Args:
        rows: `job, history, state, began, is_last, is_wrong, flags` of rows that are wrong or the last of a history.
        stored: as for `fold_checks`.
    """
    has_history = "history" in stored.columns
    on = ["job", "history"] if has_history else ["job"]
    is_stored = "is_last" if has_history else f"(is_last AND NOT {flag('removes')})"
    journal = rows.selectExpr(
        *on,
        "is_wrong",
        f"CASE WHEN {is_stored} THEN state END AS state",
        f"CASE WHEN {is_stored} THEN began END AS began",
        "CAST(NULL AS bigint) AS kept",
        "CAST(NULL AS bigint) AS kept_began",
    )
    kept = fingerprinted(stored.selectExpr("*", JOB)).selectExpr(
        *on,
        "false AS is_wrong",
        "CAST(NULL AS bigint) AS state",
        "CAST(NULL AS bigint) AS began",
        "state AS kept",
        "began AS kept_began",
    )
    facts = dict.fromkeys(("is_wrong", "state", "began", "kept", "kept_began"), "max")
    both = journal.union(kept).groupBy(*on).agg(facts)
    is_same = "`max(state)` <=> `max(kept)` AND `max(began)` <=> `max(kept_began)`"
    return both.where(f"`max(is_wrong)` OR NOT ({is_same})").select("job")


def _fingerprint(names: tuple[str, ...]) -> str:
    """Return the hash of several columns. xxhash64 skips nulls, so whether each column is null is hashed, too."""
    values = [f"coalesce({name}, {NO_TEXTS})" if name in ("after", "after_any") else name for name in names]
    return f"xxhash64({', '.join([*values, *(f'{value} IS NULL' for value in values)])})"


def fold_checks(
    rows: DataFrame,
    stored: DataFrame,
    archived: Mapping[str, JournalArchive],
    read_after: Mapping[str, int] | None,
) -> DataFrame:
    """Return the differences between stored jobs and the journal's last rows.

    Args:
        rows: of `checked_rows`.
        stored: `source, job_id` and the columns of the state; also `history` if removed jobs are included.
        archived: the archived part of each source's journal.
        read_after: the last `seq` of each journal before `stored` was read; later rows may be in one of the two only.
            None if there are no writers.
    """
    has_history = "history" in stored.columns
    on = ["source", "job_id", "history"] if has_history else ["source", "job_id"]
    last = rows.where("is_last" if has_history else f"is_last AND NOT {flag('removes')}")
    journal = last.selectExpr(
        *on,
        "seq",
        "origin.seq AS first_seq",
        f"{_facts('origin.')} AS journal",
        "origin.after IS NULL AS is_cut",
    )
    kept = stored.selectExpr(*on, f"{_facts()} AS kept")
    both = journal.join(kept, on, "full_outer").selectExpr(
        "*", f"(journal IS NULL AND {final('kept.status')}) AS is_unseen"
    )
    placed = both.selectExpr(
        "*", "row_number() OVER (PARTITION BY source, is_unseen ORDER BY job_id) AS number"
    )
    hidden = number_of({source: each.histories for source, each in archived.items()}, "0")
    differences = ", ".join(_difference(name) for name in (*STATE, *ORIGIN))
    detail = (
        f"CASE WHEN kept IS NULL AND NOT {_since(read_after, 'first_seq')} THEN 'is in the journal alone'"
        f" WHEN journal IS NULL AND NOT (is_unseen AND number <= {hidden})"
        " THEN 'is stored, but the journal does not have it'"
        f" WHEN journal IS NOT NULL AND kept IS NOT NULL AND NOT {_since(read_after, 'seq')}"
        f" THEN nullif(concat_ws(', ', {differences}), '') END"
    )
    found = placed.selectExpr(
        "23 AS invariant",
        "source",
        "job_id",
        "coalesce(journal.attempt, kept.attempt) AS attempt",
        "seq",
        f"concat({detail}, ' [', coalesce(concat('seq ', seq), 'no row'), ']') AS detail",
    )
    return found.where("detail IS NOT NULL").select(*COLUMNS)


def _facts(origin: str = "") -> str:
    """Return the compared columns, of the journal's last row or of a stored job."""
    return (
        f"struct({', '.join(STATE)}, coalesce({origin}after, {NO_TEXTS}) AS after,"
        f" coalesce({origin}after_any, {NO_TEXTS}) AS after_any, {origin}parent_id AS parent_id)"
    )


def _difference(name: str) -> str:
    is_known = "" if name in STATE else "NOT is_cut AND "
    words = said(f"{name} is ", f"kept.{name}", ", the journal says ", f"journal.{name}")
    return f"CASE WHEN {is_known}NOT kept.{name} <=> journal.{name} THEN {words} END"


def _since(marks: Mapping[str, int] | None, column: str) -> str:
    """Return the condition that a `seq` is above the mark of its source."""
    return f"coalesce({column} > {number_of(marks or {}, 'NULL')}, false)"
