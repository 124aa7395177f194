"""The current state of each job: one row per history, folded from the journal in one pass over each job's rows.

Every value is a running aggregate of one window (`source, job_id` by `seq`), so the rows are shuffled and sorted once.
The result of an earlier fold is used as if it were the first row of its history.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from penstock.job import JobStatus
from penstock.lifecycle import Verb
from penstock.spark.transforms.rows import BY_JOB, REMOVES, SO_FAR, among_text, final

__all__ = ["latest"]

# Columns of a history's last row.
_STATE: Final = (
    "n",
    "type",
    "key",
    "tags",
    "priority",
    "idempotency_key",
    "status",
    "attempt",
    "retry_count",
    "failures",
    "max_attempts",
    "assignee_id",
    "due_at",
    "progress",
    "error_category",
    "error_code",
    "error_message",
)
# Columns of an earlier row that later rows do not repeat.
_CARRIED: Final = (
    "first_seq",
    "enqueued_at",
    "after",
    "after_any",
    "parent_id",
    "started_at",
    "finalized_at",
    "removed_at",
)


_IS_REMOVAL: Final = among_text("verb", REMOVES)
_MOMENT: Final = "struct<seq: bigint, recorded_at: timestamp>"


def latest(events: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """Return one row per job, with the columns of the table `jobs`; an id that was used again has one row per history.

    Args:
        events: journal rows, in any order.
        known: rows that this function returned for earlier events of the same jobs. They are returned as changed by
            the events.
    """
    rows = events.selectExpr(*_FROM_EVENTS)
    if known is not None:
        rows = rows.union(known.selectExpr(*_FROM_KNOWN))
    return rows.selectExpr(*_FOLDED).where("is_last").selectExpr(*_AS_JOB)


# A job leaves INITIAL_PENDING once, so the claim from there is its first.
_IS_FIRST_CLAIM: Final = f"verb = '{Verb.CLAIM}' AND from_status = '{JobStatus.INITIAL_PENDING}'"
# As in the store: a later correction does not change when the job ended, unless it is a completion.
_IS_END: Final = (
    f"{final()} AND (NOT {final('from_status')} OR verb = '{Verb.COMPLETE}') AND NOT {_IS_REMOVAL}"
)
_FROM_EVENTS: Final = (
    "source",
    "job_id",
    "seq",
    "recorded_at",
    "verb",
    *_STATE,
    "n = 1 AS begins",
    "CAST(null AS int) AS known_history",
    (
        "CASE WHEN n = 1 THEN struct(seq AS first_seq, recorded_at AS enqueued_at, after, after_any, parent_id,"
        " CAST(null AS timestamp) AS started_at, CAST(null AS timestamp) AS finalized_at,"
        " CAST(null AS timestamp) AS removed_at) END AS base"
    ),
    f"CASE WHEN {_IS_FIRST_CLAIM} THEN struct(seq, recorded_at) END AS began",
    f"CASE WHEN {_IS_END} THEN struct(seq, recorded_at) END AS ended",
)
#: Rows of an earlier fold, in the same columns.
_FROM_KNOWN: Final = (
    "source",
    "job_id",
    "last_seq AS seq",
    "updated_at AS recorded_at",
    "CAST(null AS string) AS verb",
    *_STATE,
    "true AS begins",
    "history AS known_history",
    f"struct({', '.join(_CARRIED)}) AS base",
    f"CAST(null AS {_MOMENT}) AS began",
    f"CAST(null AS {_MOMENT}) AS ended",
)
_FOLDED: Final = (
    "source",
    "job_id",
    "seq",
    "recorded_at",
    "verb",
    *_STATE,
    (
        f"CAST(greatest(coalesce(max(known_history) OVER {SO_FAR}, 0)"
        f" + sum(CASE WHEN begins AND known_history IS NULL THEN 1 ELSE 0 END) OVER {SO_FAR}, 1) AS int) AS history"
    ),
    *(f"last({name}, true) OVER {SO_FAR} AS {name}" for name in ("base", "began", "ended")),
    f"coalesce(lead(begins) OVER ({BY_JOB}), true) AS is_last",
)


def _moment(name: str, kept: str) -> str:
    # A value from an earlier history of the id, or from before the known row, is not this job's.
    is_own = f"coalesce({name}.seq >= base.first_seq, true)"
    return f"coalesce(CASE WHEN {is_own} THEN {name}.recorded_at END, base.{kept})"


_AS_JOB: Final = (
    "source",
    "job_id",
    "history",
    *_STATE,
    "base.after AS after",
    "base.after_any AS after_any",
    "base.parent_id AS parent_id",
    "base.enqueued_at AS enqueued_at",
    f"{_moment('began', 'started_at')} AS started_at",
    f"CASE WHEN {final()} THEN {_moment('ended', 'finalized_at')} END AS finalized_at",
    f"coalesce(CASE WHEN {_IS_REMOVAL} THEN recorded_at END, base.removed_at) AS removed_at",
    "recorded_at AS updated_at",
    "base.first_seq AS first_seq",
    "seq AS last_seq",
)
