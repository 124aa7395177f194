"""Invariants of single jobs (1 to 9, 11, 12 and a part of 25), checked in one ordered pass over the rows of each job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame

from penstock.clock import to_micros
from penstock.spark.auditing._flags import flag, flags_of
from penstock.spark.auditing._words import Check, row_text, said, two_rows

__all__ = ["HISTORY_CHECKS", "JOB", "ORIGIN", "STATE", "checked_rows", "coded", "flagged", "left_over"]

#: Columns in which the folded rows of a job are compared with the stored job.
STATE: Final = (
    "n",
    "type",
    "status",
    "attempt",
    "retry_count",
    "failures",
    "max_attempts",
    "priority",
    "key",
    "tags",
    "idempotency_key",
    "assignee_id",
    "error_category",
    "error_code",
    "error_message",
)
ORIGIN: Final = ("after", "after_any", "parent_id")
#: A job as a hash, for the pass over all rows; after a collision both jobs are checked in the second pass.
JOB: Final = "xxhash64(source, job_id) AS job"
_SEEN: Final = (
    "seq",
    "n",
    "verb",
    "from_status",
    "status",
    "attempt",
    "assignee_id",
    "recorded_at",
    "retry_count",
    "failures",
    "due_at",
    "flags",
)
#: Columns of a history's first row that checks use, and those that are never null.
_FIRST: Final = ("seq", "failures", "max_attempts", *ORIGIN, "began")
_NEVER_NULL: Final = ("seq", "failures", "began")


def flagged(events: DataFrame, cut: Iterable[str], slack: timedelta) -> DataFrame:
    """Return the rows with their `flags`."""
    return events.selectExpr("*", flags_of(cut, slack))


def coded(events: DataFrame, cut: Iterable[str], slack: timedelta) -> DataFrame:
    """Return the rows as numbers: all columns that the checks' conditions need, in half as many bytes.

    `hash(NULL)` is not NULL, so comparing hashes is null-safe.
    """
    return events.selectExpr(
        JOB,
        *("seq", "n", "attempt", "retry_count", "failures", "max_attempts", "recorded_at", "due_at"),
        *(f"hash({name}) AS {name}" for name in ("status", "from_status", "assignee_id")),
        *(name for name in ("state", "began") if name in events.columns),
        flags_of(cut, slack),
    )


def checked_rows(rows: DataFrame, job: Sequence[str]) -> DataFrame:
    """Return rows with the columns of earlier rows that the checks need: one shuffle, one sort.

    Every column of an earlier row is a window function of its own, and the structs are built at the end, so that Spark
    can drop the unused ones.

    Args:
        rows: `coded` or `flagged`.
        job: the columns that identify a job.
    """
    seen = [name for name in _SEEN if name in rows.columns]
    first = [name for name in _FIRST if name in rows.columns]
    ordered = f"PARTITION BY {', '.join(job)} ORDER BY seq"
    so_far = f"({ordered} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    before = f"({ordered} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    looked_back = rows.selectExpr(
        "*",
        f"coalesce(lag({flag('removes')}) OVER ({ordered}), true) AS begins",
        *(f"lag({name}) OVER ({ordered}) AS was_{name}" for name in seen),
        *(f"{_latest(name, flag('succeeds'), before)} AS success_{name}" for name in seen),
        f"(lead(seq) OVER ({ordered}) IS NULL OR {flag('removes')}) AS is_last",
    )
    placed = looked_back.selectExpr(
        "*",
        *(f"{_latest(name, 'begins', so_far)} AS origin_{name}" for name in first),
        f"CAST(sum(CAST(begins AS int)) OVER {so_far} AS int) AS history",
    )
    return placed.selectExpr(
        *rows.columns,
        *("begins", "history", "is_last"),
        _struct("was", seen),
        _struct("success", seen),
        _struct("origin", first),
    )


def _latest(name: str, condition: str, window: str) -> str:
    """Return a column of the latest row that meets a condition."""
    if name in _NEVER_NULL:
        return f"last(CASE WHEN {condition} THEN {name} END, true) OVER {window}"
    # `last` skips nulls and would return an earlier row's value; a struct around the null is not skipped.
    return f"(last(CASE WHEN {condition} THEN struct({name}) END, true) OVER {window}).{name}"


def _struct(prefix: str, names: Sequence[str]) -> str:
    return f"struct({', '.join(f'{prefix}_{name} AS {name}' for name in names)}) AS {prefix}"


_STEPS: Final = f"NOT begins AND NOT {flag('enqueues')}"
_FOLLOWS: Final = f"{_STEPS} AND from_status <=> was.status"
#: A late move is legal after a loss only; without the row before it that cannot be checked.
_IS_LEGAL: Final = f"({flag('is_legal')} OR ({flag('is_late')} AND {flag('loses', 'was.flags')}))"
_MAY_BE_LEGAL: Final = f"({flag('is_legal')} OR {flag('is_late')})"
_WAS_FINAL: Final = flag("is_final", "was.flags")
_LIMIT: Final = "greatest(origin.max_attempts, origin.failures)"
_MAY_NOT: Final = said("", "verb", " may not lead from ", "was.status", " to ", "status")
_BOTH: Final = two_rows("was.")

#: Checks of a row of `checked_rows`.
HISTORY_CHECKS: Final = (
    Check(
        1,
        f"begins AND NOT {flag('is_cut')} AND NOT {flag('is_first')}",
        said("the history does not begin with enqueue, n = 1"),
        row_text(),
    ),
    Check(
        1,
        f"begins AND {flag('is_cut')} AND NOT ({flag('was_final')} AND {_MAY_BE_LEGAL})",
        said("its beginning is missing, and it had not ended there"),
        row_text(),
    ),
    Check(1, f"NOT begins AND {flag('enqueues')}", said("enqueued again without removal"), _BOTH),
    Check(2, f"{_STEPS} AND n <> was.n + 1", said("n goes from ", "was.n", " to ", "n"), _BOTH),
    Check(
        3,
        f"{_STEPS} AND NOT from_status <=> was.status",
        said("", "verb", " starts from ", "from_status"),
        _BOTH,
    ),
    Check(3, f"{_FOLLOWS} AND NOT {_IS_LEGAL} AND NOT {_WAS_FINAL}", _MAY_NOT, _BOTH),
    Check(4, f"{_FOLLOWS} AND NOT {_IS_LEGAL} AND {_WAS_FINAL}", _MAY_NOT, _BOTH),
    Check(
        5,
        f"{_STEPS} AND attempt <> was.attempt + CAST({flag('takes')} AS int)",
        said("", "verb", " takes attempt from ", "was.attempt", " to ", "attempt"),
        _BOTH,
    ),
    Check(
        6,
        f"{_STEPS} AND {flag('takes')} AND {flag('is_in_flight', 'was.flags')}",
        said("taken while an attempt holds it"),
        _BOTH,
    ),
    Check(
        7,
        f"{_STEPS} AND NOT {flag('takes')} AND NOT assignee_id <=> was.assignee_id",
        said("", "verb", " changes the assignee"),
        _BOTH,
    ),
    Check(
        7,
        f"{_STEPS} AND (retry_count < was.retry_count OR failures < was.failures)",
        said("", "verb", " takes a counter back"),
        _BOTH,
    ),
    Check(
        8, f"{flag('succeeds')} AND success.seq >= origin.seq", said("succeeded twice"), two_rows("success.")
    ),
    Check(
        11,
        f"origin.max_attempts IS NOT NULL AND failures > {_LIMIT} AND NOT (NOT begins AND was.failures > {_LIMIT})",
        said("", "failures", " counted failures of ", "origin.max_attempts", " allowed"),
        row_text(),
    ),
    Check(
        12,
        f"{_STEPS} AND {flag('claims')} AND recorded_at < was.due_at",
        said("claimed before ", "was.due_at"),
        _BOTH,
    ),
    Check(
        12,
        flag("starts_early"),
        said("the attempt started at ", "started_at", ", before the job was ready at ", "ready_at"),
        row_text(),
    ),
    Check(25, flag("ends_early"), said("the attempt ended before it started at ", "started_at"), row_text()),
)


def left_over(drained_at: datetime) -> Check:
    """Return the check that every job that was due by then has ended (invariant 9)."""
    is_later = f"coalesce(due_at > timestamp_micros({to_micros(drained_at)}), false)"
    ended = f"{flag('removes')} OR {flag('is_final')} OR ({flag('is_waiting')} AND {is_later})"
    return Check(9, f"is_last AND NOT ({ended})", said("is left ", "status"), row_text())
