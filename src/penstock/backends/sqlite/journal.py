"""Reads of the journal."""

from __future__ import annotations

from typing import Final

import apsw

from penstock.backends.engine.rows import JOURNAL_COLUMNS, damage_named, journal_entry
from penstock.backends.sqlite.connection import fetch
from penstock.job import JournalEntry

__all__ = ["history", "read", "span", "store_id"]

_ROWS: Final = f"SELECT {', '.join(JOURNAL_COLUMNS)} FROM journal WHERE seq > ? ORDER BY seq LIMIT ?"
_HISTORY: Final = (
    f"SELECT {', '.join(JOURNAL_COLUMNS)} FROM journal WHERE job_seq = ? ORDER BY n DESC LIMIT ?"
)


def read(cursor: apsw.Cursor, after: int, limit: int) -> list[JournalEntry]:
    """See `Backend.read_journal`."""
    found = fetch(cursor, _ROWS, (min(after, 2**62), limit))
    with damage_named():
        return [journal_entry(values) for values in found]


def history(cursor: apsw.Cursor, job_id: str, limit: int) -> list[JournalEntry] | None:
    """Return the latest rows of a job, oldest first; None if there is no such job."""
    job = fetch(cursor, "SELECT seq FROM job WHERE id = ?", (job_id,))
    if not job:
        return None
    found = fetch(cursor, _HISTORY, (job[0][0], limit))
    with damage_named():
        return [journal_entry(values) for values in reversed(found)]


def store_id(cursor: apsw.Cursor) -> str:
    """See `Journal.store_id`."""
    return str(fetch(cursor, "SELECT value FROM setting WHERE name = 'store_id'")[0][0])


def span(cursor: apsw.Cursor, table: str) -> tuple[int, int]:
    """Return the first and the last number of a table, (1, 0) if it is empty."""
    # Two look-ups: one min and max together would walk through the whole table.
    first, last = fetch(cursor, f"SELECT (SELECT min(seq) FROM {table}), (SELECT max(seq) FROM {table})")[0]
    return (1, 0) if first is None else (first, last)
