"""What the parts of one store share: statements, lock classes, and the floors of claims."""

from __future__ import annotations

import zlib
from typing import Any, Final

from penstock.backends.postgres.floors import Floors
from penstock.backends.postgres.journal import Journal
from penstock.backends.postgres.prepared import Prepared
from penstock.backends.postgres.snapshots import START
from penstock.backends.postgres.statements import Statements

__all__ = ["SharedState"]

#: Keys are locked by stripe, not one by one: a batch of thousands of keys would overflow the server's lock table.
#: Advisory locks, not rows of a table: they need no write, no clean-up, and leave no dead rows.
STRIPES: Final = 512


class SharedState:
    """The constants of a store, and what this process has learned about it."""

    def __init__(self, schema: str, *, has_own_clock: bool) -> None:
        self.schema = schema
        self.sql = Statements(schema)
        self.floors = Floors(enabled=not has_own_clock)
        # Advisory locks are shared by the whole database: the class separates schemas and other applications.
        self.lock_class = _lock_class(schema, "store")
        self.journal = Journal(self.sql, self.lock_class)
        self.key_locks: dict[str, Any] = {"lock_class": _lock_class(schema, "key"), "stripes": STRIPES - 1}
        self.idempotency_locks: dict[str, Any] = {
            "lock_class": _lock_class(schema, "idempotency"), "stripes": STRIPES - 1
        }  # fmt: skip
        #: Liveness rows that were written through this object: what they hold is held here.
        self.own_owners: set[str] = set()
        self._enqueue = {
            tagged: self.sql.filled("enqueue", tagging=self._tagging(tagged)) for tagged in (False, True)
        }
        self.enqueue_prepared = {
            tagged: Prepared(f"penstock_enqueue_{int(tagged)}", text)
            for tagged, text in self._enqueue.items()
        }
        self._enqueue_many = {
            tagged: self.sql.filled("enqueue_many", tagging=self._tagging(tagged)) for tagged in (False, True)
        }
        self.claims = {
            name: Prepared(f"penstock_claim_{name}", text) for name, text in self.sql.claims.items()
        }
        self._in_flight = {
            (name, is_full): self._about_in_flight(name, is_full=is_full)
            for name in ("lost", "overdue", "renew")
            for is_full in (False, True)
        }
        self.whole = Prepared("penstock_whole", self.sql["whole"])
        self._complete_one, self._complete_many = (
            Prepared(
                f"penstock_{name}",
                self.sql.filled("complete_simple", found=self.sql[name], has_simple=has_simple),
            )
            for name, has_simple in (
                ("complete_one", "false"),
                ("complete_many", "(SELECT bool_or(named.is_simple) FROM named)"),
            )
        )
        self.start = Prepared(
            "penstock_start", self.sql.filled("start", since="%(since)s", own_now="%(own_now)s")
        )
        self.insert = self.sql.filled(
            "insert", tagging=self.sql["tagging"], journal_new=self.sql["journal_new"]
        )
        self._copied = {
            tagged: self.sql.filled(
                "copied", tagging=self._tagging(tagged), journal_new=self.sql["journal_new"]
            )
            for tagged in (False, True)
        }

    def enqueue(self, *, is_tagged: bool) -> str:
        """Return the statement that stores one plain job; without tags it is shorter."""
        return self._enqueue[is_tagged]

    def enqueue_many(self, *, is_tagged: bool) -> str:
        """Return the statement that stores a few plain jobs."""
        return self._enqueue_many[is_tagged]

    def complete_simple(self, count: int) -> Prepared:
        """Return the statement that completes so many simple jobs; for one it is shorter."""
        return self._complete_one if count == 1 else self._complete_many

    def in_flight(self, name: str, *, is_full: bool) -> str:
        """Return a statement about jobs in flight: all of them, or those from a floor on."""
        return self._in_flight[name, is_full]

    def _about_in_flight(self, name: str, *, is_full: bool) -> str:
        of_whom = "job.assignee_id = %(assignee_id)s" if name == "renew" else "true"
        since = "true" if is_full else f"job.assigned_at > {START}"
        return self.sql.filled(name, held=self.sql.filled("held", of_whom=of_whom, since=since))

    def copied(self, *, is_tagged: bool) -> str:
        """Return the statement that journals and tags jobs stored by COPY."""
        return self._copied[is_tagged]

    def _tagging(self, tagged: bool) -> str:
        return self.sql["tagging"] if tagged else ""


def _lock_class(schema: str, subject: str) -> int:
    return zlib.crc32(f"penstock/{schema}/{subject}".encode()) & 0x7FFFFFFF
