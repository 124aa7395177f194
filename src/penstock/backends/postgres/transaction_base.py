"""The base of the primitives: statements on the transaction's connection, and the rows that they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import psycopg

from penstock.backends.contract.values import Change
from penstock.backends.engine.rows import Row
from penstock.backends.engine.store import Transaction
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.prepared import Prepared
from penstock.backends.postgres.shared_state import SharedState
from penstock.backends.postgres.transaction_start import Opening

__all__ = ["BaseTransaction"]


class BaseTransaction(Transaction):
    """A transaction, open from its first statement on.

    Attributes:
        opened_at: the time of its first statement, before it had its xid; 0 if another clock is used.
        xid: by which the server knows what became of it; None while nothing was written.
        may_hand_out: streams of this process that wait for jobs may claim some in this transaction.
        is_long: others may commit much while this transaction is open, so its ready jobs count as late.
        is_due: a delayed job may be due; false if there was none at the transaction's time.
        after_commit: what this process may remember once the commit is known.
        wants_upkeep: the journal is to be numbered and folded after the commit.
        is_news: streams of other processes want to know: a job became ready, or one they hold was changed.
        witness: insertion number, step and time of a journal row that is there if, and only if, the commit succeeded.
    """

    def __init__(
        self, connection: BoundedConnection, shared: SharedState, opening: Opening, *, has_listeners: bool
    ) -> None:
        self._connection = connection
        self._opening = opening
        self._now: int | None = None
        self.opened_at = 0
        self._blocked: bool | None = None
        self.xid: str | None = None
        self.shared = shared
        self.sql = shared.sql
        self.has_listeners = has_listeners
        self.changes: list[Change] = []
        self.is_long = False
        self.may_hand_out = False
        self.is_due = True
        self.wants_upkeep = False
        self.is_news = False
        self.witness: tuple[int, int, int] | None = None
        self.after_commit: list[Callable[[], None]] = []
        self.loaded_tags: dict[int, str] = {}
        self.resultless: set[int] = set()
        self.held_elsewhere: set[int] = set()

    # -- opening ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._now is not None

    @property
    def now(self) -> int:
        if self._now is None:
            self.open()
        return self._now or 0

    @now.setter
    def now(self, value: int) -> None:
        self._now = value

    @property
    def blocked(self) -> bool:
        """Whether the queue is blocked."""
        if self._blocked is None:
            found = self.execute(self.text("SELECT blocked FROM {schema}.control")).fetchone()
            self._blocked = found is not None and bool(found[0])
        return self._blocked

    @property
    def connection(self) -> BoundedConnection:
        """The connection, in the open transaction, with its xid known, because the caller may write."""
        if self._now is None:
            self.open()
        elif self.xid is None:
            found = self._connection.execute("SELECT pg_current_xact_id()::text").fetchone()
            self.xid = None if found is None else found[0]
        return self._connection

    def open(self) -> None:
        """Begin now, instead of with the first statement."""
        self._now, self.xid, self._blocked, self.is_due = self._opening.run(self._connection)
        self.opened_at = self._now

    def advance_now(self, moment: int) -> None:
        """Advance the transaction's time to when its locks were granted: it may have waited for them."""
        own = self._opening.own_clock()
        self._now = max(self._now or 0, moment if own is None else own)

    def own_now(self) -> int | None:
        """Return the time for a statement that may be the first one; None if the server reads its own clock."""
        return self._opening.own_now if self._now is None else self._now

    def since(self) -> int | None:
        """Return from where a statement that may be the first one searches due jobs; None if it need not."""
        return self._opening.since if self._now is None else None

    def answer(self, statement: Prepared, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement whose rows, one at least, begin with the transaction's time, xid and `is_due`; return them.

        If it is the first one it opens the transaction on its way.
        """
        if self._now is None and self._opening.may_prepare:
            found = statement.begin_and_rows(self._connection, self._opening.begin, values)
            now, _, is_due = found[0][:3]
            self._now = self.opened_at = now
            self.is_due = self._opening.judge(now, is_due=is_due)
        elif self._opening.may_prepare:
            found = statement.rows(self._connection, values)
        else:
            found = self.run(statement, values)
            self.advance_now(found[0][0])
        if found[0][1] is not None:
            self.xid = found[0][1]
        return found

    def run(self, statement: Prepared, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement in the open transaction and return its rows."""
        connection = self.connection
        if not self._opening.may_prepare:
            return connection.execute(statement.source, values, binary=True).fetchall()
        return statement.rows(connection, values)

    # -- statements ---------------------------------------------------------------------------------------------

    def execute(
        self, query: str, parameters: Mapping[str, Any] | None = None
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.connection.execute(query, parameters)

    def text(self, template: str) -> str:
        return _text(self.sql, template)

    def fetch_rows(self, tail: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the jobs selected by what follows FROM job, as they are."""
        return self._noted([Row(*values) for values in self.execute(self.sql.select + tail, parameters)])

    def lock_rows(self, tail: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Lock and return the jobs selected by what follows FROM job."""
        return self.locked_rows(self.sql.lock.replace("TAIL", tail), parameters)

    def locked_rows(self, query: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the jobs that a statement locks; its last column is the time at which it had done so."""
        found = self.execute(query, parameters).fetchall()
        if found:
            self.advance_now(found[-1][-1])
        return self._noted([Row(*values[:-1]) for values in found])

    def _noted(self, rows: list[Row]) -> list[Row]:
        for row in rows:
            if row.tags != "[]":
                self.loaded_tags[row.seq] = row.tags
            if row.owner is not None and row.owner not in self.shared.own_owners:
                self.held_elsewhere.add(row.seq)
        return rows


@lru_cache(maxsize=512)
def _text(statements: Any, template: str) -> str:
    text: str = statements.text(template)
    return text
