"""One row per attempt.

The row that ends an attempt has the times at which it became ready and started, so most attempts need only a filter.
Two cases need the other rows of the job: a lost attempt may still report (its row is amended), and an id may be used
again after its job was removed (its histories are numbered). One window over a job's rows covers both.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from penstock.job import JobStatus
from penstock.lifecycle import Verb
from penstock.spark.transforms.rows import (
    AMENDMENT,
    BY_JOB,
    END_OF_ATTEMPT,
    SO_FAR,
    among_text,
    in_flight,
    seconds_between,
)

__all__ = ["attempts", "plain_attempts"]

_KEPT: Final = ("source", "job_id", "attempt", "type", "key", "tags", "assignee_id")
_ERRORS: Final = ("error_category", "error_code", "error_message")


def attempts(
    events: DataFrame, histories: DataFrame | None = None, known: DataFrame | None = None
) -> DataFrame:
    """Return one row per ended attempt, with the columns of the table `attempts`.

    Args:
        events: journal rows, in any order.
        histories: `source, job_id, history, first_seq` of every history except the first of its id, if the caller has
            them; else histories are counted from the first one in the events.
        known: rows that this function returned for earlier events and that these events amend.
    """
    begins = "n = 1" if histories is None else "false"
    rows = events.where(f"{END_OF_ATTEMPT} OR {AMENDMENT} OR {begins}").selectExpr(
        *_KEPT,
        "seq",
        "ready_at",
        "started_at",
        "recorded_at AS ended_at",
        "status AS outcome",
        _RELEASED,
        *_OWN_ERRORS,
        f"{begins} AS begins",
        "CAST(null AS int) AS number",
    )
    if histories is not None:
        rows = rows.unionByName(histories.selectExpr(*_BEGINNING), allowMissingColumns=True)
    if known is not None:
        rows = rows.union(known.selectExpr(*_KNOWN))
    # Each attempt as its last report leaves it: the last of its rows, which are adjacent.
    last = rows.selectExpr(*_NUMBERED).where(f"NOT begins AND is_last AND NOT {in_flight('outcome')}")
    return last.selectExpr(*_COLUMNS)


def plain_attempts(events: DataFrame) -> DataFrame:
    """Return the same as `attempts` with a filter only, for events without late reports and ids that were used once."""
    rows = events.where(END_OF_ATTEMPT).selectExpr(
        *_KEPT,
        "1 AS history",
        "ready_at",
        "started_at",
        "recorded_at AS ended_at",
        "status AS outcome",
        _RELEASED,
        *_OWN_ERRORS,
    )
    return rows.selectExpr(*_COLUMNS)


_RELEASED: Final = f"verb = '{Verb.RELEASE}' AS released"
# The journal repeats the failure of an earlier attempt.
_LOST: Final = among_text("verb", (Verb.LOSE, Verb.RESET, Verb.UNRESPONSIVE, Verb.ACKNOWLEDGE))
_HAS_OWN: Final = f"status != '{JobStatus.COMPLETED}' AND (status = '{JobStatus.DEAD_LETTER}' OR NOT {_LOST})"
_OWN_ERRORS: Final = (
    f"CASE WHEN {_HAS_OWN} THEN error_category END AS error_category",
    f"CASE WHEN {_HAS_OWN} THEN error_code END AS error_code",
    f"CASE WHEN {_HAS_OWN} AND error_message != '' THEN error_message END AS error_message",
)
_BEGINNING: Final = (
    "source",
    "job_id",
    "first_seq AS seq",
    "true AS begins",
    "CAST(history AS int) AS number",
)
#: Earlier attempts, in the columns of the event rows.
_KNOWN: Final = (
    *_KEPT,
    "0L AS seq",
    "ready_at",
    "started_at",
    "ended_at",
    "outcome",
    "released",
    *_ERRORS,
    "false AS begins",
    "history AS number",
)
_NUMBERED: Final = (
    *_KEPT,
    (
        f"CAST(greatest(coalesce(last(number, true) OVER {SO_FAR}, 0)"
        f" + sum(CASE WHEN begins AND number IS NULL THEN 1 ELSE 0 END) OVER {SO_FAR}, 1) AS int) AS history"
    ),
    f"last(ready_at, true) OVER {SO_FAR} AS ready_at",
    f"last(started_at, true) OVER {SO_FAR} AS started_at",
    "ended_at",
    "outcome",
    "released",
    *_ERRORS,
    "begins",
    f"coalesce(lead(begins) OVER ({BY_JOB}), true) OR lead(attempt) OVER ({BY_JOB}) != attempt AS is_last",
)
_COLUMNS: Final = (
    "source",
    "job_id",
    "history",
    "attempt",
    "type",
    "key",
    "tags",
    "assignee_id",
    "ready_at",
    "started_at",
    "ended_at",
    f"{seconds_between('ready_at', 'started_at')} AS wait_seconds",
    f"{seconds_between('started_at', 'ended_at')} AS run_seconds",
    "outcome",
    *_ERRORS,
    "released",
)
