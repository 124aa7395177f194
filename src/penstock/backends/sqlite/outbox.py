"""Finished jobs with callbacks, deliveries that are pending or given up, and the ticks of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import apsw

from penstock.backends.contract.values import JobEnd
from penstock.backends.engine.rows import JOURNAL_COLUMNS, damage_named, job_end
from penstock.backends.engine.store import DeliveryRow
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.statements import statement
from penstock.backends.sqlite.transaction_base import BaseTransaction
from penstock.job import FINAL

__all__ = ["OutboxTransaction", "count_deliveries", "deliveries", "due_deliveries", "read_ends", "schedules"]

#: Journal rows per read.
_PORTION: Final = 10_000
_FINAL: Final = ", ".join(f"'{status}'" for status in sorted(FINAL))
_HAS_CALLBACKS: Final = """SELECT
    EXISTS (SELECT 1 FROM job INDEXED BY job_callback WHERE callback_url IS NOT NULL),
    (SELECT max(seq) FROM journal)"""
_REACHED: Final = "SELECT max(seq) FROM (SELECT seq FROM journal WHERE seq > ? ORDER BY seq LIMIT ?)"
_ENDS: Final = statement(
    "ends", row_columns=", ".join(f"row.{name}" for name in JOURNAL_COLUMNS), final=_FINAL
)
_DELIVERY: Final = ", ".join(DeliveryRow._fields)
_DUE: Final = statement("due_deliveries", delivery_columns=_DELIVERY)


class OutboxTransaction(BaseTransaction):
    """The primitives about deliveries and schedules."""

    def save_deliveries(self, rows: Sequence[DeliveryRow]) -> None:
        self.cursor.executemany(
            f"INSERT OR REPLACE INTO delivery ({', '.join(DeliveryRow._fields)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def drop_deliveries(self, seqs: Sequence[int]) -> None:
        self.cursor.executemany("DELETE FROM delivery WHERE seq = ?", [(seq,) for seq in seqs])

    def retry_deliveries(self) -> int:
        self.cursor.execute(
            "UPDATE delivery SET due_at = ?1, attempts = 0, updated_at = ?1 WHERE due_at IS NULL", (self.now,)
        )
        return self.cursor.connection.changes()

    def move_schedule(self, name: str, tick: int, after: int | None) -> bool:
        if after is None:
            self.cursor.execute("INSERT OR IGNORE INTO schedule VALUES (?, ?, ?)", (name, tick, self.now))
        else:
            self.cursor.execute(
                "UPDATE schedule SET tick = ?, updated_at = ? WHERE name = ? AND tick = ?",
                (tick, self.now, name, after),
            )
        return self.cursor.connection.changes() > 0

    def drop_schedule(self, name: str) -> bool:
        self.cursor.execute("DELETE FROM schedule WHERE name = ?", (name,))
        return self.cursor.connection.changes() > 0


def read_ends(cursor: apsw.Cursor, after: int, limit: int, max_result: int) -> tuple[list[JobEnd], int]:
    """See `Backend.read_ends`."""
    ((has_callbacks, last),) = fetch(cursor, _HAS_CALLBACKS)
    if not has_callbacks:
        return [], max(after, last or 0)
    portion = (min(after, 2**62), _PORTION)
    found = fetch(cursor, _ENDS, (*portion, max_result, limit))
    with damage_named():
        ends = [job_end(values) for values in found]
    if len(ends) == limit:
        return ends, ends[-1].entry.seq
    ((reached,),) = fetch(cursor, _REACHED, portion)
    return ends, after if reached is None else reached


def due_deliveries(cursor: apsw.Cursor, now: int, limit: int, per_lane: int) -> list[DeliveryRow]:
    """See `Backend.due_deliveries`."""
    return [DeliveryRow(*values) for values in fetch(cursor, _DUE, (now, per_lane, limit))]


def deliveries(cursor: apsw.Cursor, after: int, limit: int) -> list[DeliveryRow]:
    """See `Backend.list_deliveries`."""
    query = f"SELECT {_DELIVERY} FROM delivery WHERE seq > ? ORDER BY seq LIMIT ?"
    return [DeliveryRow(*values) for values in fetch(cursor, query, (min(after, 2**62), limit))]


def count_deliveries(cursor: apsw.Cursor) -> tuple[int, int]:
    """See `Backend.count_deliveries`."""
    query = "SELECT count(due_at), count(*) - count(due_at) FROM delivery"
    waiting, given_up = fetch(cursor, query)[0]
    return waiting, given_up


def schedules(cursor: apsw.Cursor) -> list[Any]:
    """Return all schedules, by name."""
    return fetch(cursor, "SELECT name, tick, updated_at FROM schedule ORDER BY name")
