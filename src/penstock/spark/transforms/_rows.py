"""What a journal row means, as expressions. Every status and verb comes from the one table of moves.

The transforms are made of texts: a column made of functions is a call into the JVM for each of them, a text is one call,
and a batch asks such things dozens of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.job import ELIGIBLE, FINAL, IN_FLIGHT, JobStatus
from penstock.lifecycle import Verb

#: The verbs that begin an attempt.
TAKES: Final = (Verb.CLAIM, Verb.RESTART)
#: The verbs that end a history.
REMOVES: Final = (Verb.DELETE, Verb.CLEANUP)
#: The statuses in which nobody knows what became of the last attempt, which may still report.
UNKNOWN: Final = (JobStatus.UNKNOWN_RETRY, JobStatus.UNKNOWN_STOPPED)
#: The verbs by which the last attempt, or a person who knows, tells what became of it.
REPORTS: Final = (
    Verb.COMPLETE,
    Verb.FAIL,
    Verb.STOP,
    Verb.MARK_UNKNOWN_STOPPED,
    Verb.UPDATE_STATUS,
)
#: What names a job's history in every table: the id alone may have been used before.
HISTORY: Final = ("source", "job_id", "history")


def among_text(column: str, values: Iterable[str]) -> str:
    """Whether a column holds one of these; false, not null, where it holds nothing."""
    texts = ", ".join(f"'{value}'" for value in sorted(map(str, values)))
    return f"coalesce({column} IN ({texts}), false)"


def quoted(text: str) -> str:
    """Return a text as it is written in SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def number_of(values: Mapping[str, int], otherwise: str) -> str:
    """Return the number that a row's source has."""
    if not values:
        return otherwise
    each = " ".join(f"WHEN {quoted(source)} THEN {value}" for source, value in values.items())
    return f"(CASE source {each} ELSE {otherwise} END)"


def waiting(column: str = "status") -> str:
    return among_text(column, ELIGIBLE)


def in_flight(column: str = "status") -> str:
    return among_text(column, IN_FLIGHT)


def final(column: str = "status") -> str:
    return among_text(column, FINAL)


#: Whether the row ends the hold of an attempt.
END_OF_ATTEMPT: Final = f"({in_flight('from_status')} AND NOT {in_flight()})"
#: Whether the row tells what became of an attempt that was given up before.
AMENDMENT: Final = f"({among_text('from_status', UNKNOWN)} AND {among_text('verb', REPORTS)})"


def seconds_between(begin: str, end: str) -> str:
    """Return the time between two moments, null if one is unknown; never negative, though a clock may be set back."""
    micros = f"(unix_micros({end}) - unix_micros({begin}))"
    return f"CASE WHEN {micros} < 0 THEN 0.0D ELSE {micros} / 1000000.0D END"


# -- the same as columns ------------------------------------------------------------------------------------------


def among(column: str, values: Iterable[str]) -> Column:
    """Whether a column holds one of these; false, not null, where it holds nothing."""
    return F.expr(among_text(column, values))


def is_waiting(column: str = "status") -> Column:
    return F.expr(waiting(column))


def is_in_flight(column: str = "status") -> Column:
    return F.expr(in_flight(column))


def is_final(column: str = "status") -> Column:
    return F.expr(final(column))
