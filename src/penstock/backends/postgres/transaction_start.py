"""Begins a transaction in one round trip, or together with its first statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from psycopg import errors

from penstock.backends.postgres import prepared
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.floors import Floors
from penstock.errors import BackendError

__all__ = ["Facts", "Opening"]


class Facts(NamedTuple):
    """What every transaction knows: its time, its xid, whether the queue is blocked, whether a job may be due."""

    now: int
    xid: str
    blocked: bool
    is_due: bool


class Opening:
    """How one transaction begins: not before its first statement.

    BEGIN and the query for the facts go out as one message of two commands. Such a message cannot have parameters and is
    not prepared; so the query is prepared by hand and the message executes it by name, with its two numbers written out.
    Where nothing may be prepared, it is written out whole.

    Attributes:
        begin: the commands to begin with.
        own_clock: the clock, if it is not the server's.
        own_now: its time when the transaction was made.
        since: delayed jobs that were due before that have been moved already.
        may_prepare: whether statements may be prepared, and so travel together with `begin`.
    """

    def __init__(
        self,
        query: prepared.Prepared,
        floors: Floors,
        begin: Sequence[str],
        own_clock: Callable[[], int | None],
        *,
        may_prepare: bool,
    ) -> None:
        self.begin = [each.encode() for each in begin]
        self.own_clock = own_clock
        self.own_now = own_clock()
        self.since = floors.promoted_until()
        self._began = time.monotonic()
        self.may_prepare = may_prepare
        self._query = query
        self._floors = floors

    def run(self, connection: BoundedConnection) -> Facts:
        """Begin the transaction."""
        try:
            found = self._send(connection)
        except errors.InvalidSqlStatementName:
            # psycopg gives up all prepared statements when it rolls back to a savepoint.
            prepared.roll_back(connection)
            connection.prepared_by_hand.clear()
            found = self._send(connection)
        return found._replace(is_due=self.judge(found.now, is_due=found.is_due))

    def judge(self, now: int, *, is_due: bool) -> bool:
        """Return whether a delayed job may be due, and remember if none is."""
        if self.since > now:
            return True  # the clock went back
        if not is_due:
            self._floors.note_promoted(self.since, now, self._began)
        return is_due

    def _send(self, connection: BoundedConnection) -> Facts:
        values = {"since": str(self.since), "own_now": "NULL" if self.own_now is None else str(self.own_now)}
        if self.may_prepare:
            query = self._query.execution(connection, values)
        else:
            query = self._query.source
            for name, value in values.items():
                query = query.replace(f"%({name})s", value)
        begin = b"; ".join(self.begin).decode()
        cursor = connection.execute(f"{begin}; {query}", prepare=False)
        while cursor.nextset():
            pass
        found = cursor.fetchone()
        if found is None:
            raise BackendError("PostgreSQL gave no answer to the start of a transaction", retryable=True)
        now, xid, blocked, is_due = found
        return Facts(now, xid, bool(blocked), is_due)
