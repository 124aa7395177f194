"""Prepared statements, run below psycopg's `execute`.

psycopg's `execute` spends about 80 µs of a single enqueue on finding types, building cursors and reading results. What is
known beforehand need not be found out for each job: parameters are text or bytes already, and the answer's columns are
the same each time. By hand a statement can also travel together with the BEGIN before it, which saves a round trip.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors, generators, pq
from psycopg.adapt import Transformer

from penstock.backends.postgres.connection import BoundedConnection

__all__ = ["DONE", "Prepared", "command", "forget", "numbers", "roll_back", "texts"]

DONE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_TEXT: Final = 0
_BINARY: Final = 1


class Prepared:
    """A statement with named parameters, prepared once on each connection that runs it.

    Values are numbers, text, bytes or None; an array is given as text (`numbers`, `texts`). A connection serves one
    schema, so the name need not tell which; the server knows only 63 characters of it.
    """

    def __init__(self, name: str, text: str) -> None:
        self.source = text
        self._name = name.encode()
        self._order: list[str] = []
        self._text = re.sub(r"%\((\w+)\)s", self._number, text).replace("%%", "%").encode()

    def _number(self, match: re.Match[str]) -> str:
        if match[1] not in self._order:
            self._order.append(match[1])
        return f"${self._order.index(match[1]) + 1}"

    def run(self, connection: BoundedConnection, values: Mapping[str, Any]) -> tuple[bytes | None, ...]:
        """Run it and return the fields of its one row, as text."""
        result = self._again_if_forgotten(connection, lambda: self._send(connection, values, _TEXT))
        return tuple(result.get_value(0, column) for column in range(result.nfields))

    def rows(self, connection: BoundedConnection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run it and return its rows."""
        result = self._send(connection, values, _BINARY)
        return self._loaded(connection, result)

    def begin_and_rows(
        self, connection: BoundedConnection, begin: Sequence[bytes], values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Open a transaction, run it there and return its rows: one round trip."""
        return self._loaded(
            connection,
            self._again_if_forgotten(connection, lambda: self._begin_and_send(connection, begin, values)),
        )

    def execution(self, connection: BoundedConnection, values: Mapping[str, str]) -> str:
        """Return the command that executes it with these numbers, after preparing it."""
        if self._name not in connection.prepared_by_hand:
            self._prepare(connection)
        return f'EXECUTE "{self._name.decode()}" ({", ".join(values[name] for name in self._order)})'

    def _again_if_forgotten(self, connection: BoundedConnection, send: Any) -> pq.abc.PGresult:
        try:
            found: pq.abc.PGresult = send()
        except errors.InvalidSqlStatementName:
            # psycopg gives up all prepared statements when it rolls back to a savepoint.
            if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                roll_back(connection)
            connection.prepared_by_hand.clear()
            found = send()
        return found

    def _send(self, connection: BoundedConnection, values: Mapping[str, Any], answer: int) -> pq.abc.PGresult:
        if self._name not in connection.prepared_by_hand:
            self._prepare(connection)
        with connection.lock:
            self._put(connection, values, answer)
            result: pq.abc.PGresult = connection.wait(generators.execute(connection.pgconn))[-1]
        _check(result, connection)
        return result

    def _begin_and_send(
        self, connection: BoundedConnection, begin: Sequence[bytes], values: Mapping[str, Any]
    ) -> pq.abc.PGresult:
        if self._name not in connection.prepared_by_hand:
            self._prepare(connection)
        pgconn = connection.pgconn
        with connection.lock:
            pgconn.enter_pipeline_mode()
            try:
                for each in begin:
                    pgconn.send_query_params(each, None)
                self._put(connection, values, _BINARY)
                pgconn.pipeline_sync()
                results = connection.wait(_answers(pgconn, len(begin) + 2))
            finally:
                with contextlib.suppress(psycopg.Error):  # the connection is broken
                    pgconn.exit_pipeline_mode()
        for result in results:
            _check(result, connection)
        return results[-2]

    def _put(self, connection: BoundedConnection, values: Mapping[str, Any], answer: int) -> None:
        given = [values[name] for name in self._order]
        connection.pgconn.send_query_prepared(
            self._name,
            [_encoded(value) for value in given],
            [_BINARY if type(value) is bytes else _TEXT for value in given],
            answer,
        )

    def _prepare(self, connection: BoundedConnection) -> None:
        with connection.lock:
            connection.pgconn.send_prepare(self._name, self._text)
            _check(connection.wait(generators.execute(connection.pgconn))[-1], connection)
        connection.prepared_by_hand.add(self._name)

    def _loaded(self, connection: BoundedConnection, result: pq.abc.PGresult) -> list[tuple[Any, ...]]:
        transformer = connection.loaders.get(self._name)
        if transformer is None:
            transformer = connection.loaders[self._name] = Transformer(connection)
            transformer.set_pgresult(result)
        else:
            transformer.set_pgresult(result, set_loaders=False)
        rows: list[tuple[Any, ...]] = transformer.load_rows(0, result.ntuples, tuple)
        transformer.set_pgresult(None, set_loaders=False)  # let go of what may be large
        return rows


def _answers(pgconn: pq.abc.PGconn, number: int) -> Generator[Any, Any, list[pq.abc.PGresult]]:
    """Send what is waiting, and return the result of each command of the pipeline, its end included."""
    results = [(yield from generators.execute(pgconn))[-1]]
    for _ in range(number - 1):
        results.append((yield from generators.fetch_many(pgconn))[-1])  # noqa: PERF401 - it yields
    return results


def roll_back(connection: BoundedConnection) -> None:
    """End a failed transaction. psycopg would give up all prepared statements with it."""
    command(connection, b"ROLLBACK")


def command(connection: BoundedConnection, text: bytes) -> pq.abc.PGresult:
    """Run a command that has no parameters."""
    with connection.lock:
        connection.pgconn.send_query(text)
        result: pq.abc.PGresult = connection.wait(generators.execute(connection.pgconn))[-1]
    _check(result, connection)
    return result


def numbers(values: Iterable[int]) -> str:
    """Return whole numbers as the text of an SQL array: the driver takes 3 µs for each, this a tenth."""
    return "{" + ",".join(map(str, values)) + "}"


def forget(connection: BoundedConnection) -> None:
    """Give up what was prepared, as psycopg may have done when it rolled back to a savepoint."""
    command(connection, b"DEALLOCATE ALL")
    connection.prepared_by_hand.clear()


def texts(values: Iterable[str]) -> str:
    """Return texts as the text of an SQL array."""
    quoted = ",".join('"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in values)
    return "{" + quoted + "}"


def _check(result: pq.abc.PGresult, connection: BoundedConnection) -> None:
    if result.status not in DONE and result.status != pq.ExecStatus.PIPELINE_SYNC:
        raise errors.error_from_result(result, encoding=connection.info.encoding)


def _encoded(value: Any) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    return str(value).encode()
