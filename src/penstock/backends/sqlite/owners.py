"""Owners with their heartbeats, and assignees that were declared unresponsive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import apsw
import msgspec

from penstock.backends.engine.store import Owner
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.transaction_base import BaseTransaction

__all__ = ["OWNERS", "OwnersTransaction", "has_owner", "unresponsive"]

#: In the order of `Owner`.
OWNERS: Final = "SELECT id, host, pid, started, beat_at, opened_at, intakes FROM owner"


class OwnersTransaction(BaseTransaction):
    """The primitives about owners and unresponsive assignees."""

    def mark_unresponsive(self, assignee_id: str) -> None:
        self.cursor.execute("INSERT OR REPLACE INTO unresponsive VALUES (?, ?)", (assignee_id, self.now))

    def is_unresponsive(self, assignee_id: str) -> bool:
        return bool(fetch(self.cursor, "SELECT 1 FROM unresponsive WHERE assignee_id = ?", (assignee_id,)))

    def revive(self, assignee_ids: Collection[str]) -> None:
        self.cursor.executemany(
            "DELETE FROM unresponsive WHERE assignee_id = ?", [(each,) for each in assignee_ids]
        )

    def owners(self) -> list[Owner]:
        found = fetch(self.cursor, OWNERS)
        return [Owner(*values) for values in found]

    def put_owner(self, owner: Owner) -> None:
        self.cursor.execute(
            "INSERT INTO owner (id, host, pid, started, beat_at, opened_at, intakes) VALUES (?, ?, ?, ?, ?, ?, ?)",
            owner,
        )

    def beat(self, owner: str, intakes: str | None = None) -> bool:
        self.cursor.execute(
            "UPDATE owner SET beat_at = ?1, intakes = coalesce(?2, intakes) WHERE id = ?3",
            (self.now, intakes, owner),
        )
        return self.cursor.connection.changes() > 0

    def drop_owners(self, owners: Collection[str]) -> None:
        self.cursor.executemany("DELETE FROM owner WHERE id = ?", [(owner,) for owner in owners])


def has_owner(cursor: apsw.Cursor, owner: str) -> bool:
    """See `Owners.has`."""
    return bool(fetch(cursor, "SELECT 1 FROM owner WHERE id = ?", (owner,)))


def unresponsive(cursor: apsw.Cursor, assignee_ids: Sequence[str]) -> set[str]:
    """See `Runtime.unresponsive`."""
    query = "SELECT assignee_id FROM unresponsive WHERE assignee_id IN (SELECT value FROM json_each(?))"
    return {name for (name,) in fetch(cursor, query, (msgspec.json.encode(assignee_ids).decode(),))}
