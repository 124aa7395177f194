"""Beginning a transaction in one round trip."""

from __future__ import annotations

from typing import Any

from psycopg import errors

from penstock.backends.postgres import fast
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.context import Context
from penstock.errors import BackendError

__all__ = ["Start"]


class Start:
    """BEGIN and the facts every transaction needs.

    Both go out as one message of two commands. Such a message cannot have parameters and is not prepared; so the query
    is prepared by hand and the message executes it by name, with the two numbers it takes written out.
    """

    def __init__(self, context: Context, *, is_prepared: bool) -> None:
        self._floors = context.floors
        self._query = context.sql.filled("start", since="%(since)s", own_now="%(own_now)s")
        self._prepared = (
            fast.Prepared(f"penstock_start_{context.schema}", self._query) if is_prepared else None
        )

    def run(
        self, connection: BoundedConnection, begin: str, own_now: int | None
    ) -> tuple[int, str, bool, bool]:
        """Open a transaction; return its time, its xid, whether the queue is blocked, whether a job may be due."""
        since = self._floors.promoted_until()
        try:
            found = self._send(connection, begin, since, own_now)
        except errors.InvalidSqlStatementName:
            # psycopg gives up all prepared statements when it rolls back to a savepoint.
            fast.roll_back(connection)
            connection.prepared_by_hand.clear()
            found = self._send(connection, begin, since, own_now)
        now, xid, blocked, is_due = found
        if since > now:
            return now, xid, bool(blocked), True  # the clock went back
        if not is_due:
            self._floors.note_promoted(since, now)
        return now, xid, bool(blocked), is_due

    def _send(
        self, connection: BoundedConnection, begin: str, since: int, own_now: int | None
    ) -> tuple[Any, ...]:
        values = {"since": str(since), "own_now": "NULL" if own_now is None else str(own_now)}
        if self._prepared is None:
            query = self._query.replace("%(since)s", values["since"]).replace(
                "%(own_now)s", values["own_now"]
            )
        else:
            query = self._prepared.execution(connection, values)
        cursor = connection.execute(begin + query, prepare=False)
        while cursor.nextset():
            pass
        found = cursor.fetchone()
        if found is None:
            raise BackendError("PostgreSQL gave no answer to the start of a transaction", retryable=True)
        return found
