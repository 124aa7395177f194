"""Adapters for connections that a caller passes in.

A psycopg connection is used as it is. A session or connection of SQLAlchemy is asked for its psycopg connection at every
call, because a session returns its connection when a transaction ends. SQLAlchemy is imported only if one of its objects
is passed in. Async connections are driven from a thread that waits for their event loop, so the statements are written
once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg.rows import tuple_row

from penstock.backends.contract.values import Awaited
from penstock.errors import BackendError, InvalidArgumentError, shown

__all__ = ["CallerConnection", "caller_connection", "unusable"]

T = TypeVar("T")
Wait = Callable[[Awaitable[Any]], Any]
Driver = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_ACCEPTED = "a psycopg.Connection, or a Session or Connection of SQLAlchemy over postgresql+psycopg"
_AIO = "queue = await penstock.aio.connect(…), then await queue.joined(…).submit(…)"


class CallerConnection(Protocol):
    """A caller's connection with plain cursors and tuples, whatever factories it is configured with."""

    #: The caller's connection itself.
    driver: Driver
    #: How its owner begins a transaction.
    advice: str

    def cursor(self) -> Any: ...

    def execute(
        self, query: str, parameters: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Any: ...

    def transaction(self) -> AbstractContextManager[Any]: ...


def caller_connection(connection: object) -> Callable[[], CallerConnection]:
    """Return a function that adapts a connection or session as it is at the time of the call.

    Raises:
        InvalidArgumentError: it is of a kind that cannot be joined; says what to pass instead.
    """
    wait: Wait | None = None
    if isinstance(connection, Awaited):
        connection, wait = connection
    if isinstance(connection, psycopg.Connection):
        caller = _SyncConnection(connection, "open a transaction with connection.transaction()")
        return lambda: caller
    if isinstance(connection, psycopg.AsyncConnection):
        return _constant(_driven(connection, wait, "open a transaction with connection.transaction()"))
    if _is_from("sqlalchemy", connection):
        return _of_sqlalchemy(connection, wait)
    for driver in ("asyncpg", "psycopg2", "pg8000", "aiopg"):
        if _is_from(driver, connection):
            raise _wrong(connection, f"{driver} is another driver than the store's; open it with psycopg 3")
    raise _wrong(connection, "")


def unusable(why: str) -> InvalidArgumentError:
    """Return the error for a connection of the right kind in the wrong state."""
    return InvalidArgumentError(f"the connection cannot be joined: {why}", field="connection")


# -- psycopg ----------------------------------------------------------------------------------------------------


class _SyncConnection:
    def __init__(self, driver: psycopg.Connection[Any], advice: str) -> None:
        self.driver: Driver = driver
        self.advice = advice
        self._connection = driver

    def cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        return psycopg.Cursor(self._connection, row_factory=tuple_row)

    def execute(
        self, query: str, parameters: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.cursor().execute(query, parameters, prepare=prepare, binary=binary)

    def transaction(self) -> AbstractContextManager[psycopg.Transaction]:
        return self._connection.transaction()


class _AsyncConnection:
    def __init__(self, driver: psycopg.AsyncConnection[Any], wait: Wait, advice: str) -> None:
        self.driver: Driver = driver
        self.advice = advice
        self._connection = driver
        self._wait = wait

    def cursor(self) -> _AsyncCursor:
        return _AsyncCursor(psycopg.AsyncCursor(self._connection, row_factory=tuple_row), self._wait)

    def execute(
        self, query: str, parameters: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> _AsyncCursor:
        return self.cursor().execute(query, parameters, prepare=prepare, binary=binary)

    def transaction(self) -> AbstractContextManager[Any]:
        return _entered(self._connection.transaction(), self._wait)


class _AsyncCursor:
    """A cursor of the loop's, as one that blocks: as much of it as our statements use."""

    def __init__(self, cursor: psycopg.AsyncCursor[tuple[Any, ...]], wait: Wait) -> None:
        self._cursor = cursor
        self._wait = wait

    def execute(self, query: str, parameters: Any = None, **options: Any) -> _AsyncCursor:
        self._wait(self._cursor.execute(query, parameters, **options))
        return self

    def fetchone(self) -> Any:
        return self._wait(self._cursor.fetchone())

    def fetchall(self) -> Any:
        return self._wait(self._cursor.fetchall())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @contextmanager
    def copy(self, command: str) -> Iterator[_AsyncCopy]:
        with _entered(self._cursor.copy(command), self._wait) as copy:
            yield _AsyncCopy(copy, self._wait)


class _AsyncCopy:
    def __init__(self, copy: psycopg.AsyncCopy, wait: Wait) -> None:
        self._copy = copy
        self._wait = wait

    def write(self, data: Any) -> None:
        self._wait(self._copy.write(data))


@contextmanager
def _entered(manager: AbstractAsyncContextManager[T], wait: Wait) -> Iterator[T]:
    value: T = wait(manager.__aenter__())
    try:
        yield value
    except BaseException as error:
        if not wait(manager.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        wait(manager.__aexit__(None, None, None))


# -- SQLAlchemy -------------------------------------------------------------------------------------------------


def _of_sqlalchemy(given: Any, wait: Wait | None) -> Callable[[], CallerConnection]:
    import sqlalchemy
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as sa_asyncio

    if isinstance(given, orm.scoped_session | sa_asyncio.async_scoped_session):
        given = given()  # of this thread or task: the next step may run on another
    if isinstance(given, sa_asyncio.AsyncSession | sa_asyncio.AsyncConnection):
        if wait is None:
            raise _needs_aio(given)
        find: Any = _begun_async if isinstance(given, sa_asyncio.AsyncConnection) else _of_async_session
        wait_for_loop = wait
        return lambda: _below(_asked(sqlalchemy, lambda: wait_for_loop(find(given))), wait)
    if isinstance(given, orm.Session):
        return lambda: _below(_asked(sqlalchemy, given.connection), wait)
    if isinstance(given, sqlalchemy.Connection):
        return lambda: _below(_asked(sqlalchemy, lambda: _begun(given)), wait)
    if isinstance(given, sqlalchemy.Engine | sa_asyncio.AsyncEngine):
        raise _wrong(given, "an engine has no transaction; pass the session or connection that has")
    raise _wrong(given, "")


def _begun(connection: Any) -> Any:
    if not connection.in_transaction():
        connection.begin()  # as its first statement would
    return connection


async def _begun_async(connection: Any) -> Any:
    if not connection.in_transaction():
        await connection.begin()
    await connection.get_raw_connection()  # raises if it is closed
    return connection.sync_connection


async def _of_async_session(session: Any) -> Any:
    return (await session.connection()).sync_connection


def _asked(sqlalchemy: Any, find: Callable[[], Any]) -> Any:
    """Ask SQLAlchemy for the connection of the transaction; its errors become ours."""
    try:
        return find()
    except (sqlalchemy.exc.DBAPIError, sqlalchemy.exc.TimeoutError) as error:
        raise BackendError(f"the connection to join cannot be had: {_line(error)}", retryable=True) from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise unusable(_line(error)) from error


def _below(connection: Any, wait: Wait | None) -> CallerConnection:
    """Adapt the psycopg connection below a SQLAlchemy connection whose transaction has begun."""
    dialect = connection.dialect
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        raise unusable(
            f"its engine uses {dialect.name}+{dialect.driver}; make it with create_engine('postgresql+psycopg://…')"
        )
    return _driven(driver, wait, "make its engine without isolation_level='AUTOCOMMIT'")


def _driven(driver: Driver, wait: Wait | None, advice: str) -> CallerConnection:
    if isinstance(driver, psycopg.Connection):
        return _SyncConnection(driver, advice)
    if wait is None:
        raise _needs_aio(driver)
    return _AsyncConnection(driver, wait, advice)


# -- refusals ---------------------------------------------------------------------------------------------------


def _is_from(package: str, value: object) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(value).__mro__)


def _needs_aio(value: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"connection must be {_ACCEPTED}; {_kind(value)} belongs to asyncio, whose loop must not be blocked: {_AIO}",
        field="connection",
    )


def _wrong(value: object, why: str) -> InvalidArgumentError:
    reason = f" ({why})" if why else ""
    seen = _kind(value) if type(value).__module__ != "builtins" else shown(value)
    return InvalidArgumentError(f"connection must be {_ACCEPTED}, got {seen}{reason}", field="connection")


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _constant(caller: CallerConnection) -> Callable[[], CallerConnection]:
    return lambda: caller
