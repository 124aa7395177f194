"""Running a prepared statement by hand.

psycopg's `execute` spends about 80 µs of a single enqueue on finding types, building cursors and reading results. What is
known beforehand need not be found out for each job: parameters are bytes already and the answer is two small numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from psycopg import errors, generators, pq

from penstock.backends.postgres.connection import BoundedConnection

__all__ = ["DONE", "Prepared", "command", "roll_back"]

DONE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Prepared:
    """A statement with named parameters, prepared once on each connection that runs it."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name.encode()
        self._order: list[str] = []
        self._text = re.sub(r"%\((\w+)\)s", self._number, text).replace("%%", "%").encode()
        self._formats: list[int] = []

    def _number(self, match: re.Match[str]) -> str:
        if match[1] not in self._order:
            self._order.append(match[1])
        return f"${self._order.index(match[1]) + 1}"

    def run(self, connection: BoundedConnection, values: Mapping[str, Any]) -> tuple[bytes | None, ...]:
        """Run it outside a transaction and return the fields of its one row, as text."""
        parameters = [_encoded(values[name]) for name in self._order]
        formats = [1 if type(values[name]) is bytes else 0 for name in self._order]
        with connection.lock:
            try:
                result = self._send(connection, parameters, formats)
            except errors.InvalidSqlStatementName:
                # psycopg gives up all prepared statements when it rolls back to a savepoint.
                connection.prepared_by_hand.clear()
                result = self._send(connection, parameters, formats)
        return tuple(result.get_value(0, column) for column in range(result.nfields))

    def execution(self, connection: BoundedConnection, values: Mapping[str, str]) -> str:
        """Return the command that executes it with these numbers, after preparing it."""
        if self._name not in connection.prepared_by_hand:
            with connection.lock:
                self._prepare(connection)
        return f'EXECUTE "{self._name.decode()}" ({", ".join(values[name] for name in self._order)})'

    def _send(
        self, connection: BoundedConnection, parameters: Sequence[bytes | None], formats: Sequence[int]
    ) -> pq.abc.PGresult:
        if self._name not in connection.prepared_by_hand:
            self._prepare(connection)
        connection.pgconn.send_query_prepared(self._name, parameters, formats, 0)
        result: pq.abc.PGresult = connection.wait(generators.execute(connection.pgconn))[-1]
        _check(result, connection)
        return result

    def _prepare(self, connection: BoundedConnection) -> None:
        connection.pgconn.send_prepare(self._name, self._text)
        _check(connection.wait(generators.execute(connection.pgconn))[-1], connection)
        connection.prepared_by_hand.add(self._name)


def roll_back(connection: BoundedConnection) -> None:
    """End a failed transaction. psycopg would give up all prepared statements with it."""
    command(connection, b"ROLLBACK")


def command(connection: BoundedConnection, text: bytes) -> None:
    """Run a command that has no parameters and whose answer does not matter."""
    with connection.lock:
        connection.pgconn.send_query(text)
        _check(connection.wait(generators.execute(connection.pgconn))[-1], connection)


def _check(result: pq.abc.PGresult, connection: BoundedConnection) -> None:
    if result.status not in DONE:
        raise errors.error_from_result(result, encoding=connection.info.encoding)


def _encoded(value: Any) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    return str(value).encode()
