"""What a violation says: one frame of six columns, made from pairs of conditions and texts.

Everything is SQL in texts: a column made of functions is a call into the JVM for each of them, some twenty thousand for
an audit, and took longer than the queries on a small journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from penstock.spark.transforms._rows import quoted

__all__ = ["COLUMNS", "Check", "any_broken", "no_violations", "row_text", "said", "two_rows", "violations"]

COLUMNS: Final = ("invariant", "source", "job_id", "attempt", "seq", "detail")
_NONE: Final = "invariant int, source string, job_id string, attempt int, seq bigint, detail string"


class Check(NamedTuple):
    """The number of an invariant, when it is broken, what to say, and the rows that show it."""

    invariant: int
    condition: str
    said: str
    shown: str


def any_broken(checks: Sequence[Check]) -> str:
    """Return the condition that a row breaks something."""
    return " OR ".join(f"coalesce({each.condition}, false)" for each in checks)


def violations(rows: DataFrame, checks: Sequence[Check]) -> DataFrame:
    """Return a row for every check that a row breaks; the rows have `source, job_id, attempt, seq`."""
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
    """Return what rows that are in order give."""
    return rows.sparkSession.createDataFrame([], _NONE)


def said(*parts: str) -> str:
    """Return a text: literal words and columns by turns."""
    texts = (
        f"coalesce(CAST({part} AS string), 'nothing')" if place % 2 else quoted(part)
        for place, part in enumerate(parts)
    )
    return f"concat({', '.join(texts)})"


def two_rows(earlier: str) -> str:
    """Return an earlier row and this one in a few words each."""
    return f"concat_ws('; ', {row_text(earlier)}, {row_text()})"


def row_text(prefix: str = "") -> str:
    """Return a journal row in a few words; null where there is no row."""
    p = prefix
    return (
        f"CASE WHEN {p}seq IS NOT NULL THEN concat('seq ', {p}seq, ', n ', {p}n, ': ', {p}verb, ' ',"
        f" coalesce({p}from_status, 'nothing'), ' → ', {p}status, ', attempt ', {p}attempt,"
        f" coalesce(concat(' of ', {p}assignee_id), ''), ', ',"
        f" date_format({p}recorded_at, 'yyyy-MM-dd HH:mm:ss.SSSSSS')) END"
    )
