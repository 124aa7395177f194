"""Finished jobs with callbacks, deliveries that are pending or given up, and the ticks of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.backends.contract.values import JobEnd
from penstock.backends.engine.rows import JOURNAL_COLUMNS, job_end
from penstock.backends.engine.store import DeliveryRow
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.statements import Statements
from penstock.backends.postgres.transaction_base import BaseTransaction
from penstock.job import FINAL

__all__ = [
    "OutboxTransaction",
    "count_deliveries",
    "deliveries",
    "due_deliveries",
    "has_callbacks",
    "read_ends",
    "schedules",
]

#: Journal rows per read.
_PORTION: Final = 10_000
_COLUMNS: Final = ", ".join(DeliveryRow._fields)


class OutboxTransaction(BaseTransaction):
    """The primitives about deliveries and schedules."""

    def save_deliveries(self, rows: Sequence[DeliveryRow]) -> None:
        if not rows:
            return
        values = ", ".join(f"%({name})s" for name in DeliveryRow._fields)
        changed = ", ".join(f"{name} = excluded.{name}" for name in DeliveryRow._fields[1:])
        self.connection.cursor().executemany(
            self.text(
                f"INSERT INTO {{schema}}.delivery ({_COLUMNS}) VALUES ({values})"
                f" ON CONFLICT (seq) DO UPDATE SET {changed}"
            ),
            [row._asdict() for row in rows],
        )

    def drop_deliveries(self, seqs: Sequence[int]) -> None:
        if seqs:
            self.execute(
                self.text("DELETE FROM {schema}.delivery WHERE seq = ANY(%(seqs)s::bigint[])"),
                {"seqs": sorted(seqs)},
            )

    def retry_deliveries(self) -> int:
        return self.execute(
            self.text(
                "UPDATE {schema}.delivery SET due_at = %(now)s, attempts = 0, updated_at = %(now)s WHERE due_at IS NULL"
            ),
            {"now": self.now},
        ).rowcount

    def move_schedule(self, name: str, tick: int, after: int | None) -> bool:
        if after is None:
            query = (
                "INSERT INTO {schema}.schedule (name, tick, updated_at) VALUES (%(name)s, %(tick)s, %(now)s)"
                " ON CONFLICT (name) DO NOTHING"
            )
        else:
            query = (
                "UPDATE {schema}.schedule SET tick = %(tick)s, updated_at = %(now)s"
                " WHERE name = %(name)s AND tick = %(after)s"
            )
        values = {"name": name, "tick": tick, "after": after, "now": self.now}
        return self.execute(self.text(query), values).rowcount > 0

    def drop_schedule(self, name: str) -> bool:
        done = self.execute(self.text("DELETE FROM {schema}.schedule WHERE name = %(name)s"), {"name": name})
        return done.rowcount > 0


def has_callbacks(connection: BoundedConnection, sql: Statements) -> tuple[bool, int]:
    """Return whether any job has a callback url, and the newest number of the journal."""
    found = connection.execute(
        sql.text(
            "SELECT EXISTS (SELECT FROM {schema}.job WHERE callback_url IS NOT NULL),"
            " (SELECT COALESCE(max(seq), 0) FROM {schema}.journal)"
        )
    ).fetchone()
    return (False, 0) if found is None else (bool(found[0]), int(found[1]))


def read_ends(
    connection: BoundedConnection, sql: Statements, after: int, limit: int, max_result: int
) -> tuple[list[JobEnd], int]:
    """Return the ends among numbered rows, and how far it looked."""
    query = sql.filled("ends", portion_columns=", ".join(f"portion.{name}" for name in JOURNAL_COLUMNS))
    wanted = {
        "after": after, "portion": _PORTION, "max_result": max_result, "limit": limit,
        "final": sorted(map(str, FINAL)),
    }  # fmt: skip
    # Looked at before the ends: what is numbered meanwhile is left to the next call.
    reached = connection.execute(
        sql.text(
            "SELECT max(seq) FROM (SELECT seq FROM {schema}.journal WHERE seq > %(after)s ORDER BY seq"
            " LIMIT %(portion)s) AS portion"
        ),
        {"after": after, "portion": _PORTION},
    ).fetchone()
    ends = [job_end(values) for values in connection.execute(query, wanted)]
    if len(ends) == limit:
        return ends, ends[-1].entry.seq
    upto = after if reached is None or reached[0] is None else int(reached[0])
    return [end for end in ends if end.entry.seq <= upto], upto


def due_deliveries(
    connection: BoundedConnection, sql: Statements, now: int | None, limit: int, per_lane: int
) -> list[DeliveryRow]:
    """See `Backend.due_deliveries`."""
    query = sql.filled(
        "due_deliveries", delivery_columns=", ".join(f"delivery.{name}" for name in DeliveryRow._fields)
    )
    found = connection.execute(query, {"now": now, "limit": limit, "per_lane": per_lane})
    return [DeliveryRow(*values) for values in found]


def deliveries(connection: BoundedConnection, sql: Statements, after: int, limit: int) -> list[DeliveryRow]:
    """See `Backend.list_deliveries`."""
    query = f"SELECT {_COLUMNS} FROM {{schema}}.delivery WHERE seq > %(after)s ORDER BY seq LIMIT %(limit)s"
    found = connection.execute(sql.text(query), {"after": min(after, 2**62), "limit": limit})
    return [DeliveryRow(*values) for values in found]


def count_deliveries(connection: BoundedConnection, sql: Statements) -> tuple[int, int]:
    """See `Backend.count_deliveries`."""
    query = "SELECT count(due_at), count(*) - count(due_at) FROM {schema}.delivery"
    waiting, given_up = connection.execute(sql.text(query)).fetchone() or (0, 0)
    return waiting, given_up


def schedules(connection: BoundedConnection, sql: Statements) -> list[tuple[Any, ...]]:
    """Return name, tick and time of the last change of all schedules, by name."""
    query = "SELECT name, tick, updated_at FROM {schema}.schedule ORDER BY name"
    return connection.execute(sql.text(query)).fetchall()
