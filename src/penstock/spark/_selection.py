"""Which rows a batch read selects: the options `minSeq`, `maxSeq`, `since`, `until`, `statuses` and `types`.

They are part of the read, so they apply to every query on its DataFrame. A filter that Spark pushes down does not: Spark 4.3
keeps the plan of the last query that pushed one, and reuses it for later queries on the same DataFrame that push none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from penstock.backends.engine import arguments
from penstock.clock import to_micros
from penstock.errors import invalid
from penstock.job import JobStatus
from penstock.spark.schemas import JOURNAL, Table
from penstock.spark.stores import SparkStore

__all__ = ["SELECTION", "Selection", "seq_bound", "status_list", "time_bound", "type_list", "whole_number"]

#: The options, by the names that users give them.
SELECTION: Final = ("minSeq", "maxSeq", "since", "until", "statuses", "types")
_MAX_SEQ: Final = 2**63 - 1


class Selection(NamedTuple):
    """The rows that a read selects; None is no condition.

    Attributes:
        min_seq: the first `seq` (journal only).
        max_seq: the last `seq` (journal only).
        since: microseconds; `recorded_at` of a journal row or `created_at` of a job is not before it.
        until: microseconds; `recorded_at` or `created_at` is before it.
        statuses: the row's status is one of these.
        types: the job's type is one of these.
    """

    min_seq: int | None = None
    max_seq: int | None = None
    since: int | None = None
    until: int | None = None
    statuses: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """Return the selected part of a range of `seq`."""
        low = first if self.min_seq is None else max(first, self.min_seq)
        return low, last if self.max_seq is None else min(last, self.max_seq)

    def where(self, store: SparkStore, table: Table) -> str:
        """Return the condition in the store's SQL; "" is none."""
        moment = f'{table.stored}."{"recorded_at" if table is JOURNAL else "created_at"}"'
        conditions = []
        if self.since is not None:
            conditions.append(f"{moment} >= {self.since}")
        if self.until is not None:
            conditions.append(f"{moment} < {self.until}")
        for name, values in (("status", self.statuses), ("type", self.types)):
            if values is not None:
                listed = ", ".join(map(store.quoted, values))
                conditions.append(f'{table.stored}."{name}" IN ({listed})')
        return " AND ".join(conditions)

    def problems(self, table: Table) -> list[str]:
        """Return the problems of options that contradict each other."""
        wrong = []
        if table is not JOURNAL and (self.min_seq is not None or self.max_seq is not None):
            wrong.append(f"minSeq and maxSeq are for the table journal; the table {table.name} has no seq")
        if self.min_seq is not None and self.max_seq is not None and self.min_seq > self.max_seq:
            wrong.append(f"minSeq must not be above maxSeq, got {self.min_seq} and {self.max_seq}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            wrong.append("since must be before until")
        return wrong


def seq_bound(name: str, text: str) -> int:
    """Read the `seq` of a journal row."""
    return whole_number(name, text, 0, _MAX_SEQ)


def whole_number(name: str, text: str, least: int, most: int) -> int:
    """Read an integer within limits."""
    # Check the length first: int() raises another error for thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not is_number or not least <= int(text) <= most:
        raise invalid(name, f"a whole number from {least} to {most}", text)
    return int(text)


def time_bound(name: str, text: str) -> int:
    """Read a moment, in microseconds."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise invalid(name, "a moment with its time zone, such as 2026-11-18T09:00:00Z", text)
    if not arguments.FIRST_YEAR <= moment.year <= arguments.LAST_YEAR:
        raise invalid(name, f"in the years {arguments.FIRST_YEAR} to {arguments.LAST_YEAR}", text)
    return to_micros(moment)


def status_list(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Read statuses, as they are stored."""
    known = [status.value for status in JobStatus]
    wrong = [value for value in values if value.lower() not in known]
    if wrong or not values:
        raise invalid(name, f"one or more of {', '.join(known)}", ", ".join(wrong))
    return tuple(dict.fromkeys(value.lower() for value in values))


def type_list(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Read job types."""
    checked: Callable[[str], str] = lambda value: arguments.text(name, value, arguments.MAX_TYPE)  # noqa: E731
    if not values:
        raise invalid(name, "one or more types of jobs", list(values))
    return tuple(dict.fromkeys(map(checked, values)))
