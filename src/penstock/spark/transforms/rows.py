"""SQL expressions over journal rows. Every status and verb comes from the one table of moves.

The transforms use SQL texts: a column built of functions takes a call into the JVM per function, a text takes one, and a
batch uses dozens of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.job import ELIGIBLE, FINAL, IN_FLIGHT, JobStatus
from penstock.lifecycle import LATE_MOVES, Verb

#: The prefix of the assignees of `run_frames`.
FRAMES_ASSIGNEE: Final = "frames:"
#: The verbs that begin an attempt.
TAKES: Final = (Verb.CLAIM, Verb.RESTART)
#: The verbs that end a history.
REMOVES: Final = (Verb.DELETE, Verb.CLEANUP)
#: The statuses after a lost attempt, which may still report.
LOST: Final = (
    JobStatus.UNKNOWN_RETRY,
    JobStatus.UNKNOWN_STOPPED,
    *dict.fromkeys(move.source for move in LATE_MOVES),
)
#: The verbs that report how an attempt ended, also after it was lost.
REPORTS: Final = (
    Verb.COMPLETE,
    Verb.FAIL,
    Verb.STOP,
    Verb.MARK_UNKNOWN_STOPPED,
    Verb.UPDATE_STATUS,
)
#: An empty array of texts, as SQL.
NO_TEXTS: Final = "CAST(array() AS array<string>)"
#: The ids of all dependencies of a row, as SQL.
DEPENDENCIES: Final = f"concat(coalesce(after, {NO_TEXTS}), coalesce(after_any, {NO_TEXTS}))"
#: A job's rows in order, as an SQL window, and its frame up to the current row.
BY_JOB: Final = "PARTITION BY source, job_id ORDER BY seq"
UP_TO_HERE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
SO_FAR: Final = f"({BY_JOB} {UP_TO_HERE})"
#: The columns that identify a job's history in every table; the id alone may have been used before.
HISTORY: Final = ("source", "job_id", "history")


def among_text(column: str, values: Iterable[str]) -> str:
    """Return the condition that a column is one of these values; false, not null, for null."""
    texts = ", ".join(f"'{value}'" for value in sorted(map(str, values)))
    return f"coalesce({column} IN ({texts}), false)"


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def number_of(values: Mapping[str, int], otherwise: str) -> str:
    """Return the expression for the number of a row's source."""
    if not values:
        return otherwise
    each = " ".join(f"WHEN {quoted(source)} THEN {value}" for source, value in values.items())
    return f"(CASE source {each} ELSE {otherwise} END)"


def waiting(column: str = "status") -> str:
    """Return the SQL condition for a status that waits."""
    return among_text(column, ELIGIBLE)


def in_flight(column: str = "status") -> str:
    """Return the SQL condition for a status that holds a slot."""
    return among_text(column, IN_FLIGHT)


def final(column: str = "status") -> str:
    """Return the SQL condition for a final status."""
    return among_text(column, FINAL)


#: Whether the row ends an attempt.
END_OF_ATTEMPT: Final = f"({in_flight('from_status')} AND NOT {in_flight()})"
#: Whether the row reports the end of an attempt that was lost before.
AMENDMENT: Final = f"({among_text('from_status', LOST)} AND {among_text('verb', REPORTS)})"


def seconds_between(begin: str, end: str) -> str:
    """Return the seconds between two moments, null if one is null; never negative, even if a clock was set back."""
    micros = f"(unix_micros({end}) - unix_micros({begin}))"
    return f"CASE WHEN {micros} < 0 THEN 0.0D ELSE {micros} / 1000000.0D END"


# -- the same as columns ------------------------------------------------------------------------------------------


def among(column: str, values: Iterable[str]) -> Column:
    """Return the condition that a column is one of these values; false, not null, for null."""
    return F.expr(among_text(column, values))


def is_waiting(column: str = "status") -> Column:
    """Return the column that says whether a status waits."""
    return F.expr(waiting(column))


def is_in_flight(column: str = "status") -> Column:
    """Return the column that says whether a status holds a slot."""
    return F.expr(in_flight(column))


def is_final(column: str = "status") -> Column:
    """Return the column that says whether a status is final."""
    return F.expr(final(column))
