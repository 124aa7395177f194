"""Consumers of the journal, and the archive."""

from __future__ import annotations

from typing import Final

from penstock.backends.engine.store import Archived, Consumer
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.statements import Statements
from penstock.backends.postgres.transaction_base import BaseTransaction
from penstock.job import FINAL, JournalArchive

__all__ = ["ConsumersTransaction", "archived", "consumers"]

_COLUMNS: Final = "name, seq, holder, held_until, updated_at"


class ConsumersTransaction(BaseTransaction):
    """The primitives about consumers and the archive."""

    def consumer(self, name: str) -> Consumer | None:
        found = self.execute(
            self.text(
                f"SELECT {_COLUMNS}, {{now}} FROM ("
                f"SELECT {_COLUMNS} FROM {{schema}}.consumer WHERE name = %(name)s FOR UPDATE) AS locked"
            ),
            {"name": name},
        ).fetchone()
        if found is None:
            return None
        self.advance_now(found[-1])
        return Consumer(*found[:-1])

    def add_consumer(self, consumer: Consumer) -> None:
        self.execute(
            self.text(
                f"INSERT INTO {{schema}}.consumer ({_COLUMNS}) VALUES"
                " (%(name)s, %(seq)s, %(holder)s, %(held_until)s, %(updated_at)s) ON CONFLICT (name) DO NOTHING"
            ),
            consumer._asdict(),
        )

    def save_consumer(self, consumer: Consumer) -> None:
        self.execute(
            self.text(
                "UPDATE {schema}.consumer SET seq = %(seq)s, holder = %(holder)s, held_until = %(held_until)s,"
                " updated_at = %(updated_at)s WHERE name = %(name)s"
            ),
            consumer._asdict(),
        )

    def drop_consumer(self, name: str) -> bool:
        done = self.execute(self.text("DELETE FROM {schema}.consumer WHERE name = %(name)s"), {"name": name})
        return done.rowcount > 0

    def last_seq(self) -> int:
        found = self.execute(self.text("SELECT COALESCE(max(seq), 0) FROM {schema}.journal")).fetchone()
        return 0 if found is None else int(found[0])

    def archive(self, after: int, before: int, limit: int) -> Archived | None:
        found = self.execute(
            self.sql["archive"],
            {"after": after, "before": before, "limit": limit, "final": sorted(map(str, FINAL))},
        ).fetchone()
        return None if found is None or found[3] is None else Archived(*found)


def consumers(connection: BoundedConnection, sql: Statements) -> list[Consumer]:
    """Return all consumers, by name."""
    found = connection.execute(sql.text(f"SELECT {_COLUMNS} FROM {{schema}}.consumer ORDER BY name"))
    return [Consumer(*values) for values in found]


def archived(connection: BoundedConnection, sql: Statements) -> JournalArchive:
    """Return what was ever removed."""
    found = connection.execute(sql.text("SELECT histories, rows, upto FROM {schema}.archive")).fetchone()
    histories, rows, upto = found or (0, 0, 0)
    return JournalArchive(histories=histories, rows=rows, upto=upto)
