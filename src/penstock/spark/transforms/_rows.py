"""What a journal row means, as column expressions. Every status and verb comes from the one table of moves."""

from __future__ import annotations

from collections.abc import Iterable
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


def among(column: str, values: Iterable[str]) -> Column:
    """Whether a column holds one of these; false, not null, where it holds nothing."""
    # As text: of functions it would be a dozen calls into the JVM, and a batch asks such things dozens of times.
    texts = ", ".join(f"'{value}'" for value in sorted(map(str, values)))
    return F.expr(f"coalesce({column} IN ({texts}), false)")


def is_waiting(column: str = "status") -> Column:
    return among(column, ELIGIBLE)


def is_in_flight(column: str = "status") -> Column:
    return among(column, IN_FLIGHT)


def is_final(column: str = "status") -> Column:
    return among(column, FINAL)


def is_end_of_attempt() -> Column:
    """Whether the row ends the hold of an attempt."""
    return is_in_flight("from_status") & ~is_in_flight()


def is_amendment() -> Column:
    """Whether the row tells what became of an attempt that was given up before."""
    return among("from_status", UNKNOWN) & among("verb", REPORTS)


def seconds_between(begin: str, end: str) -> Column:
    """Return the time between two moments, null if one is unknown; never negative, though a clock may be set back."""
    micros = f"(unix_micros({end}) - unix_micros({begin}))"
    return F.expr(f"CASE WHEN {micros} < 0 THEN 0.0D ELSE {micros} / 1000000.0D END")
