"""Owners with their heartbeats, and assignees that were declared unresponsive."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.backends.engine.store import Owner
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.overview import OWNERS
from penstock.backends.postgres.statements import Statements
from penstock.backends.postgres.transaction_base import BaseTransaction

__all__ = ["OwnersTransaction", "has_owner", "unresponsive"]


class OwnersTransaction(BaseTransaction):
    """The primitives about owners and unresponsive assignees."""

    def mark_unresponsive(self, assignee_id: str) -> None:
        self.execute(
            self.text(
                "INSERT INTO {schema}.unresponsive (assignee_id, marked_at) VALUES (%(id)s, %(now)s)"
                " ON CONFLICT (assignee_id) DO UPDATE SET marked_at = %(now)s"
            ),
            {"id": assignee_id, "now": self.now},
        )

    def is_unresponsive(self, assignee_id: str) -> bool:
        query = self.text("SELECT FROM {schema}.unresponsive WHERE assignee_id = %(id)s")
        return self.execute(query, {"id": assignee_id}).fetchone() is not None

    def revive(self, assignee_ids: Collection[str]) -> None:
        self.execute(
            self.text("DELETE FROM {schema}.unresponsive WHERE assignee_id = ANY(%(ids)s::text[])"),
            {"ids": sorted(assignee_ids)},
        )

    def owners(self) -> list[Owner]:
        return [Owner(*values) for values in self.execute(self.text(OWNERS))]

    def put_owner(self, owner: Owner) -> None:
        self.shared.own_owners.add(owner.id)
        self.execute(
            self.text(
                "INSERT INTO {schema}.owner (id, host, pid, started, beat_at, opened_at, intakes)"
                " VALUES (%(id)s, %(host)s, %(pid)s, %(started)s, %(beat_at)s, %(opened_at)s, %(intakes)s)"
            ),
            owner._asdict(),
        )

    def beat(self, owner: str, intakes: str | None = None) -> bool:
        also = "" if intakes is None else ", intakes = %(intakes)s"
        done = self.execute(
            self.text("UPDATE {schema}.owner SET beat_at = %(now)s" + also + " WHERE id = %(id)s"),
            {"now": self.now, "id": owner, "intakes": intakes},
        )
        return done.rowcount > 0

    def drop_owners(self, owners: Collection[str]) -> None:
        self.execute(
            self.text("DELETE FROM {schema}.owner WHERE id = ANY(%(ids)s::text[])"), {"ids": sorted(owners)}
        )


def has_owner(connection: BoundedConnection, sql: Statements, owner: str) -> bool:
    """See `Owners.has`."""
    query = sql.text("SELECT EXISTS (SELECT FROM {schema}.owner WHERE id = %s)")
    found = connection.execute(query, (owner,)).fetchone()
    return found is not None and bool(found[0])


def unresponsive(connection: BoundedConnection, sql: Statements, assignee_ids: Sequence[str]) -> set[str]:
    """See `Runtime.unresponsive`."""
    query = sql.text("SELECT assignee_id FROM {schema}.unresponsive WHERE assignee_id = ANY(%s::text[])")
    return {name for (name,) in connection.execute(query, (list(assignee_ids),))}
