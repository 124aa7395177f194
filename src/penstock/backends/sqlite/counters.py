"""Counts of jobs per tag and status, folded from the journal.

A writer that knows every change since the last fold, because no other process has written, passes them in, so the
journal is not read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final, TypeAlias

import apsw

from penstock.backends.engine.rows import decode_strings
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.statements import statement

__all__ = ["Tally", "fold_counters"]

#: What was journaled: (type, tags, from_status, status, verb, retry_count), and how often; any number of times each.
Tally: TypeAlias = list[tuple[tuple[str, str, str | None, str, str, int], int]]

# Counted here, and not by GROUP BY: SQLite would sort the rows, which takes twice as long.
_CHANGES: Final = (
    "SELECT type, tags, from_status, status, verb, retry_count FROM journal WHERE seq > ? AND seq <= ?"
)
_PORTION: Final = 20_000
_BEFORE_UPDATES: Final = statement("before_updates")
_ADD: Final = """INSERT INTO stat (tag, status, jobs, retries) VALUES (?, ?, ?, ?)
ON CONFLICT (tag, status) DO UPDATE SET jobs = jobs + excluded.jobs, retries = retries + excluded.retries"""
_ADD_TYPE: Final = """INSERT INTO type_stat (type, status, jobs, entered) VALUES (?, ?, ?, ?)
ON CONFLICT (type, status) DO UPDATE SET jobs = jobs + excluded.jobs, entered = entered + excluded.entered"""
_COUNTED_RETRY: Final = frozenset({"fail", "time_out", "release", "stop_with_retry"})
_REMOVED: Final = frozenset({"delete", "cleanup"})


def fold_counters(cursor: apsw.Cursor, tally: Tally | None = None) -> None:
    """Add what the journal's tail says to the counters; `tally` is what it says, if that is known."""
    ((folded, last),) = fetch(
        cursor, "SELECT (SELECT value FROM setting WHERE name = 'folded'), coalesce(max(seq), 0) FROM journal"
    )
    if last <= folded:
        return
    deltas: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

    def add(tags: str, status: str, jobs: int, retries: int) -> None:
        for tag in ("", *decode_strings(tags)):
            delta = deltas[tag, status]
            delta[0] += jobs
            delta[1] += retries

    typed: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    if tally is None:
        tally = _read_tally(cursor, folded, last)
    has_updates = False
    for (type_, tags, source, status, verb, retry_count), count in tally:
        retries = count * retry_count
        if source != status:
            if source is not None:
                typed[type_, source][0] -= count
            typed[type_, status][0] += count
            typed[type_, status][1] += count
        elif verb in _REMOVED:
            typed[type_, source][0] -= count
        if source is None:
            add(tags, status, count, retries)
        elif verb in _REMOVED:
            add(tags, source, -count, -retries)
        elif verb == "update":
            has_updates = True
            add(tags, status, count, retries)
        else:
            add(tags, source, -count, 0)
            add(tags, status, count, count if verb in _COUNTED_RETRY else 0)
    if has_updates:
        for tags, status, count, retries in fetch(cursor, _BEFORE_UPDATES, (folded, last)):
            add(tags, status, -count, -retries)
    cursor.executemany(_ADD, [(tag, status, *delta) for (tag, status), delta in deltas.items() if any(delta)])
    cursor.execute("DELETE FROM stat WHERE jobs = 0 AND retries = 0")
    cursor.executemany(
        _ADD_TYPE, [(type_, status, *delta) for (type_, status), delta in typed.items() if any(delta)]
    )
    cursor.execute("UPDATE setting SET value = ? WHERE name = 'folded'", (last,))


def _read_tally(cursor: apsw.Cursor, folded: int, last: int) -> Tally:
    counts: Counter[Any] = Counter()
    for start in range(folded, last, _PORTION):
        counts.update(fetch(cursor, _CHANGES, (start, min(start + _PORTION, last))))
    return list(counts.items())
