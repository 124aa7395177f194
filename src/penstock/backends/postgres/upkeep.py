"""Primitives of upkeep: which process does it, the record of its passes, and expired rows."""

from __future__ import annotations

import time

from penstock.backends.engine.store import GIVEN_UP_KEPT, UNRESPONSIVE_KEPT, UpkeepPass
from penstock.backends.postgres.transaction_base import BaseTransaction

__all__ = ["UpkeepTransaction"]


class UpkeepTransaction(BaseTransaction):
    """The primitives of upkeep."""

    def take_upkeep(self, interval: int) -> bool:
        done = self.execute(
            self.text(
                "UPDATE {schema}.upkeep SET taken_at = %(now)s"
                " WHERE taken_at <= %(now)s - %(interval)s OR taken_at > %(now)s"
            ),
            {"now": self.now, "interval": interval},
        )
        return done.rowcount > 0

    def last_pass(self) -> UpkeepPass:
        (found,) = self.execute(
            self.text("SELECT passed_at, gap, judges_from FROM {schema}.upkeep FOR UPDATE")
        ).fetchall()
        return UpkeepPass(*found)

    def begin_passes(self) -> None:
        self.execute(
            self.text("UPDATE {schema}.upkeep SET passed_at = %(now)s WHERE passed_at IS NULL"),
            {"now": self.now},
        )

    def record_pass(self, record: UpkeepPass) -> None:
        self.execute(
            self.text(
                "UPDATE {schema}.upkeep"
                " SET passed_at = %(passed_at)s, gap = %(gap)s, judges_from = %(judges_from)s"
            ),
            record._asdict(),
        )

    def tidy(self) -> None:
        self._forget("idempotency", "expires_at", self.now)
        self._forget("delivery", "updated_at", self.now - GIVEN_UP_KEPT, "due_at IS NULL")
        self.execute(
            self.text("DELETE FROM {schema}.unresponsive WHERE marked_at <= %(before)s"),
            {"before": self.now - UNRESPONSIVE_KEPT},
        )
        # Numbering and folding take transactions of their own, so that no reader waits for a long one.
        self.wants_upkeep = True

    def _forget(self, table: str, column: str, upto: int, condition: str = "true") -> None:
        """Delete the rows whose time in `column` has come, from where the last pass ended."""
        sweep, began = self.shared.floors.sweep(table), time.monotonic()
        since = sweep.since(upto)
        self.execute(
            self.text(
                f"DELETE FROM {{schema}}.{table} WHERE {condition}"
                f" AND {column} <= %(upto)s AND {column} >= %(since)s"
            ),
            {"upto": upto, "since": since},
        )
        self.after_commit.append(lambda: sweep.note(since, upto, began))
