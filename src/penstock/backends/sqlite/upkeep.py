"""Primitives of upkeep: which process does it, the record of its passes, and expired rows."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.backends.engine.store import GIVEN_UP_KEPT, UNRESPONSIVE_KEPT, UpkeepPass
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.counters import fold_counters
from penstock.backends.sqlite.transaction_base import BaseTransaction, json_array

__all__ = ["UpkeepTransaction"]

_PASS: Final = msgspec.json.Decoder(UpkeepPass)


class UpkeepTransaction(BaseTransaction):
    """The primitives of upkeep."""

    def take_upkeep(self, interval: int) -> bool:
        self.cursor.execute(
            "INSERT INTO setting (name, value) VALUES ('upkeep_at', ?1)"
            " ON CONFLICT (name) DO UPDATE SET value = ?1 WHERE value <= ?1 - ?2 OR value > ?1",
            (self.now, interval),
        )
        return self.cursor.connection.changes() > 0

    def last_pass(self) -> UpkeepPass:
        found = fetch(self.cursor, "SELECT value FROM setting WHERE name = 'upkeep_pass'")
        return _PASS.decode(found[0][0]) if found else UpkeepPass(None, 0, 0)

    def begin_passes(self) -> None:
        self.cursor.execute(
            "INSERT OR IGNORE INTO setting (name, value) VALUES ('upkeep_pass', ?)",
            (json_array(UpkeepPass(self.now, 0, 0)),),
        )

    def record_pass(self, record: UpkeepPass) -> None:
        self.cursor.execute(
            "INSERT OR REPLACE INTO setting (name, value) VALUES ('upkeep_pass', ?)", (json_array(record),)
        )

    def tidy(self) -> None:
        self.cursor.execute("DELETE FROM idempotency WHERE expires_at <= ?", (self.now,))
        self.cursor.execute(
            "DELETE FROM delivery WHERE due_at IS NULL AND updated_at <= ?", (self.now - GIVEN_UP_KEPT,)
        )
        self.cursor.execute("DELETE FROM unresponsive WHERE marked_at <= ?", (self.now - UNRESPONSIVE_KEPT,))
        fold_counters(self.cursor)
        self.folded = True
