"""Violations as a DataFrame of six columns, made from conditions and texts.

Everything is SQL text: columns built of functions took a call into the JVM per function, about twenty thousand per audit,
and more time than the queries on a small journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from penstock.spark.transforms.rows import quoted

__all__ = ["COLUMNS", "Check", "any_broken", "no_violations", "row_text", "said", "two_rows", "violations"]

COLUMNS: Final = ("invariant", "source", "job_id", "attempt", "seq", "detail")
_NONE: Final = "invariant int, source string, job_id string, attempt int, seq bigint, detail string"


class Check(NamedTuple):
    """The number of an invariant, the condition that violates it, the text, and the rows that show it."""

    invariant: int
    condition: str
    said: str
    shown: str


def any_broken(checks: Sequence[Check]) -> str:
    """Return the condition that a row violates one of the checks."""
    return " OR ".join(f"coalesce({each.condition}, false)" for each in checks)


def violations(rows: DataFrame, checks: Sequence[Check]) -> DataFrame:
    """Return one row per check that a row violates; the rows have `source, job_id, attempt, seq`."""
    each = ", ".join(
        f"CASE WHEN coalesce({check.condition}, false) THEN named_struct('invariant', {check.invariant},"
        f" 'detail', concat({check.said}, ' [', {check.shown}, ']')) END"
        for check in checks
    )
    found = rows.where(any_broken(checks)).selectExpr(
        "source", "job_id", "attempt", "seq", f"explode(array_compact(array({each}))) AS found"
    )
    return found.selectExpr("found.invariant", "source", "job_id", "attempt", "seq", "found.detail")


def no_violations(rows: DataFrame) -> DataFrame:
    """Return no violations, as a DataFrame."""
    return rows.sparkSession.createDataFrame([], _NONE)


def said(*parts: str) -> str:
    """Return the expression for a text of alternating literals and columns."""
    texts = (
        f"coalesce(CAST({part} AS string), 'nothing')" if place % 2 else quoted(part)
        for place, part in enumerate(parts)
    )
    return f"concat({', '.join(texts)})"


def two_rows(earlier: str) -> str:
    """Return the expression for a short text of an earlier row and this one."""
    return f"concat_ws('; ', {row_text(earlier)}, {row_text()})"


def row_text(prefix: str = "") -> str:
    """Return the expression for a short text of a journal row; null if there is no row."""
    p = prefix
    return (
        f"CASE WHEN {p}seq IS NOT NULL THEN concat('seq ', {p}seq, ', n ', {p}n, ': ', {p}verb, ' ',"
        f" coalesce({p}from_status, 'nothing'), ' → ', {p}status, ', attempt ', {p}attempt,"
        f" coalesce(concat(' of ', {p}assignee_id), ''), ', ',"
        f" date_format({p}recorded_at, 'yyyy-MM-dd HH:mm:ss.SSSSSS')) END"
    )
