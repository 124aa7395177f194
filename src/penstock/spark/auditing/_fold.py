"""Whether the stored jobs are what the journal says they are (23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from penstock.job import JournalArchive
from penstock.spark.auditing._flags import flag
from penstock.spark.auditing._histories import JOB, ORIGIN, STATE
from penstock.spark.auditing._words import COLUMNS, said
from penstock.spark.transforms._rows import final, number_of

__all__ = ["fingerprinted", "fold_checks", "fold_suspects"]

_NO_TEXTS: Final = "CAST(array() AS array<string>)"


def fingerprinted(events: DataFrame) -> DataFrame:
    """Return the rows with a number for the state that each tells, and one for what its job began with."""
    return events.selectExpr("*", f"{_fingerprint(STATE)} AS state", f"{_fingerprint(ORIGIN)} AS began")


def fold_suspects(rows: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the jobs, by their number `job`, that are wrong, or not stored as, number for number, their last row tells.

    Some of them may be in order: `fold_checks` knows what was archived, and what came while the jobs were read.

    Args:
        rows: `job, history, state, began, is_last, is_wrong, flags` of rows that are wrong or the last of a history.
        stored: as for `fold_checks`.
    """
    has_history = "history" in stored.columns
    on = ["job", "history"] if has_history else ["job"]
    stays = "is_last" if has_history else f"(is_last AND NOT {flag('removes')})"
    told = rows.selectExpr(
        *on,
        "is_wrong",
        f"CASE WHEN {stays} THEN state END AS state",
        f"CASE WHEN {stays} THEN began END AS began",
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
    both = told.union(kept).groupBy(*on).agg(facts)
    is_same = "`max(state)` <=> `max(kept)` AND `max(began)` <=> `max(kept_began)`"
    return both.where(f"`max(is_wrong)` OR NOT ({is_same})").select("job")


def _fingerprint(names: tuple[str, ...]) -> str:
    """Return a number for the values of columns. A hash passes over nulls, so it is told where they are."""
    values = [f"coalesce({name}, {_NO_TEXTS})" if name in ("after", "after_any") else name for name in names]
    return f"xxhash64({', '.join([*values, *(f'{value} IS NULL' for value in values)])})"


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
    last = rows.where("is_last" if has_history else f"is_last AND NOT {flag('removes')}")
    told = last.selectExpr(
        *on,
        "seq",
        "origin.seq AS first_seq",
        f"{_facts('origin.')} AS told",
        "origin.after IS NULL AS is_cut",
    )
    kept = stored.selectExpr(*on, f"{_facts()} AS kept")
    both = told.join(kept, on, "full_outer").selectExpr(
        "*", f"(told IS NULL AND {final('kept.status')}) AS is_unseen"
    )
    placed = both.selectExpr(
        "*", "row_number() OVER (PARTITION BY source, is_unseen ORDER BY job_id) AS number"
    )
    hidden = number_of({source: each.histories for source, each in archived.items()}, "0")
    differences = ", ".join(_difference(name) for name in (*STATE, *ORIGIN))
    detail = (
        f"CASE WHEN kept IS NULL AND NOT {_since(read_after, 'first_seq')} THEN 'is in the journal alone'"
        f" WHEN told IS NULL AND NOT (is_unseen AND number <= {hidden})"
        " THEN 'is stored, but the journal does not have it'"
        f" WHEN told IS NOT NULL AND kept IS NOT NULL AND NOT {_since(read_after, 'seq')}"
        f" THEN nullif(concat_ws(', ', {differences}), '') END"
    )
    found = placed.selectExpr(
        "23 AS invariant",
        "source",
        "job_id",
        "coalesce(told.attempt, kept.attempt) AS attempt",
        "seq",
        f"concat({detail}, ' [', coalesce(concat('seq ', seq), 'no row'), ']') AS detail",
    )
    return found.where("detail IS NOT NULL").select(*COLUMNS)


def _facts(origin: str = "") -> str:
    """Return what is compared, of the journal's last row or of a stored job."""
    return (
        f"struct({', '.join(STATE)}, coalesce({origin}after, {_NO_TEXTS}) AS after,"
        f" coalesce({origin}after_any, {_NO_TEXTS}) AS after_any, {origin}parent_id AS parent_id)"
    )


def _difference(name: str) -> str:
    is_known = "" if name in STATE else "NOT is_cut AND "
    words = said(f"{name} is ", f"kept.{name}", ", the journal says ", f"told.{name}")
    return f"CASE WHEN {is_known}NOT kept.{name} <=> told.{name} THEN {words} END"


def _since(marks: Mapping[str, int] | None, column: str) -> str:
    """Return the condition that a number is above the mark of its source."""
    return f"coalesce({column} > {number_of(marks or {}, 'NULL')}, false)"
