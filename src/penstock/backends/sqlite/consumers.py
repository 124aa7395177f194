"""Consumers of the journal, and its archive."""

from __future__ import annotations

from typing import Final

import apsw

from penstock.backends.engine.store import Archived, Consumer
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.transaction_base import BaseTransaction, json_array
from penstock.job import FINAL, JournalArchive

__all__ = ["ConsumersTransaction", "archived", "consumers"]

_FINAL: Final = ", ".join(f"'{status}'" for status in sorted(FINAL))
_PORTION: Final = "SELECT seq, job_seq, n, status, recorded_at FROM journal WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3"
_SEEN: Final = f"SELECT max(seq), min(recorded_at) FROM ({_PORTION})"
_ENDED: Final = f"""SELECT job_seq, seq FROM ({_PORTION}) AS last
WHERE status IN ({_FINAL}) AND recorded_at <= ?4
    AND NOT EXISTS (SELECT 1 FROM journal AS later WHERE later.job_seq = last.job_seq AND later.n > last.n)"""
# The newest row stays, so that its number is not assigned again; so do rows that are not folded into the counters.
_LIMITS: Final = """SELECT min(
    (SELECT coalesce(max(seq), 0) - 1 FROM journal),
    (SELECT value FROM setting WHERE name = 'folded'),
    (SELECT coalesce(min(seq), 9223372036854775807) FROM consumer))"""
_NAMES: Final = ("archived_histories", "archived_rows", "archived_upto")


class ConsumersTransaction(BaseTransaction):
    """The primitives about consumers and the archive."""

    def consumer(self, name: str) -> Consumer | None:
        query = "SELECT name, seq, holder, held_until, updated_at FROM consumer WHERE name = ?"
        found = fetch(self.cursor, query, (name,))
        return Consumer(*found[0]) if found else None

    def add_consumer(self, consumer: Consumer) -> None:
        self.cursor.execute("INSERT OR IGNORE INTO consumer VALUES (?, ?, ?, ?, ?)", consumer)

    def save_consumer(self, consumer: Consumer) -> None:
        self.cursor.execute("INSERT OR REPLACE INTO consumer VALUES (?, ?, ?, ?, ?)", consumer)

    def drop_consumer(self, name: str) -> bool:
        self.cursor.execute("DELETE FROM consumer WHERE name = ?", (name,))
        return self.cursor.connection.changes() > 0

    def last_seq(self) -> int:
        return int(self.fetch_value("SELECT coalesce(max(seq), 0) FROM journal"))

    def archive(self, after: int, before: int, limit: int) -> Archived | None:
        return _archive(self.cursor, after, before, limit)


def consumers(cursor: apsw.Cursor) -> list[Consumer]:
    """Return all consumers, by name."""
    found = fetch(cursor, "SELECT name, seq, holder, held_until, updated_at FROM consumer ORDER BY name")
    return [Consumer(*values) for values in found]


def archived(cursor: apsw.Cursor) -> JournalArchive:
    """Return what was ever removed."""
    known = dict(fetch(cursor, "SELECT name, value FROM setting WHERE name LIKE 'archived_%'"))
    histories, rows, upto = (known[name] for name in _NAMES)
    return JournalArchive(histories=histories, rows=rows, upto=upto)


def _archive(cursor: apsw.Cursor, after: int, before: int, limit: int) -> Archived | None:
    ((upto,),) = fetch(cursor, _LIMITS)
    ((reached, oldest_at),) = fetch(cursor, _SEEN, (after, upto, limit))
    if reached is None:
        return None
    ended = dict(fetch(cursor, _ENDED, (after, upto, limit, before)))
    if not ended:
        return Archived(0, 0, 0, reached, oldest_at)
    gone = (json_array(ended),)
    of_them = "FROM journal WHERE job_seq IN (SELECT value FROM json_each(?))"
    ((histories,),) = fetch(cursor, f"SELECT count(*) {of_them} AND n = 1", gone)
    cursor.execute(f"DELETE {of_them}", gone)
    done = Archived(histories, cursor.connection.changes(), max(ended.values()), reached, oldest_at)
    cursor.executemany(
        "UPDATE setting SET value = value + ? WHERE name = ?",
        zip((done.histories, done.rows), _NAMES, strict=False),
    )
    cursor.execute("UPDATE setting SET value = max(value, ?) WHERE name = 'archived_upto'", (done.upto,))
    return done
