"""Reclaiming jobs: the attempt is lost, and the job eligible again if its policy allows another one."""

from __future__ import annotations

from penstock.backends.engine import decisions
from penstock.backends.engine.rows import Row
from penstock.backends.engine.settlement import settle
from penstock.backends.engine.store import Reach, Transaction, save_rows
from penstock.lifecycle import Verb

__all__ = ["mark_unresponsive", "reclaim", "reclaim_in_flight", "renew"]


def mark_unresponsive(tx: Transaction, assignee_id: str) -> None:
    """Reclaim the jobs of an assignee, which streams serve no more until a sign of life."""
    tx.mark_unresponsive(assignee_id)
    reclaim_in_flight(tx, assignee_id, Verb.UNRESPONSIVE)


def reclaim_in_flight(tx: Transaction, assignee_id: str | None, verb: Verb) -> int:
    """Reclaim the jobs in flight of an assignee, or all of them; return how many."""
    tx.expect(Reach.ALL)
    return reclaim(tx, tx.rows_in_flight(assignee_id), verb)


def reclaim(tx: Transaction, rows: list[Row], verb: Verb) -> int:
    """Reclaim jobs in flight; return how many."""
    for row in rows:
        decisions.lose(row, verb, tx.now)
    save_rows(tx, rows)
    settle(tx, rows)
    return len(rows)


def renew(tx: Transaction, assignee_id: str, attempts: dict[str, int] | None) -> int:
    """Renew the leases of an assignee, and count it as alive; return how many jobs it holds."""
    tx.revive([assignee_id])
    return tx.renew(assignee_id, attempts)
