"""Opening the shared store by url."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.backends.engine.backend import EngineBackend
from penstock.backends.options import StoreOptions, boolean, read_options, seconds
from penstock.backends.postgres.joined import PostgresJoinedBackend
from penstock.backends.postgres.statements import checked_schema
from penstock.backends.postgres.store import PostgresStore
from penstock.backends.urls import displayed_location
from penstock.clock import Clock
from penstock.errors import invalid

__all__ = ["PostgresBackend", "open_postgres"]

_OWN_OPTIONS: Final = {
    "schema": "penstock",
    "pool_size": 4,
    "timeout": 30.0,
    "connect_timeout": None,
    "migrate": False,
    "pgbouncer": False,
    "create": True,
    "listen": True,
}


class PostgresBackend(EngineBackend):
    """The contract on a schema of a PostgreSQL database."""

    _store: PostgresStore

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        schema: str = "penstock",
        pool_size: int = 4,
        timeout: float = 30.0,
        connect_timeout: float | None = None,
        migrate: bool = False,
        pgbouncer: bool = False,
        create: bool = True,
        listen: bool = True,
    ) -> None:
        store = PostgresStore(
            url,
            clock=clock,
            schema=schema,
            pool_size=pool_size,
            timeout=timeout,
            connect_timeout=connect_timeout,
            migrate=migrate,
            pgbouncer=pgbouncer,
            create=create,
            listen=listen,
        )
        self._location = displayed_location(url, schema)
        super().__init__(store, options or StoreOptions(), has_own_clock=clock is not None)

    def joined(self, connection: object) -> PostgresJoinedBackend:
        return PostgresJoinedBackend(self._store.joined(connection), self.options)

    @property
    def location(self) -> str:
        return self._location

    def __repr__(self) -> str:
        return f"<PostgresBackend {self._location}>"


def open_postgres(url: str, *, clock: Clock | None, options: Mapping[str, Any]) -> PostgresBackend:
    """Open the store at a PostgreSQL url, creating its schema if it is empty.

    Own options:
        schema: where the tables are; "penstock".
        pool_size: connections at most; 4.
        timeout: seconds a call may take in all, waiting and reconnecting included; 30.
        connect_timeout: seconds of these that a call may spend on connecting; None is 5 until the server was reached
            once, and all of them from then on.
        migrate: bring an older schema up to date instead of refusing it; False.
        pgbouncer: the url leads to a pooler in transaction mode: nothing is prepared and no setting outlives a
            transaction; False.
        create: make the store if the schema is empty; False refuses an empty schema, and leaves it as it is.
        listen: keep one more connection, by which others' commits wake waiting streams at once; without it they
            look by themselves. True; never with a pooler.
    """
    common, own = read_options(options, _OWN_OPTIONS, _OWN_READERS, clock=clock)
    return PostgresBackend(
        url,
        clock=clock,
        options=common,
        schema=own["schema"],
        pool_size=own["pool_size"],
        timeout=own["timeout"],
        connect_timeout=own["connect_timeout"],
        migrate=own["migrate"],
        pgbouncer=own["pgbouncer"],
        create=own["create"],
        listen=own["listen"],
    )


def _schema(_: str, value: Any) -> str:
    return checked_schema(value)


def _pool_size(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 100:
        raise invalid(name, "a whole number from 1 to 100", value)
    return value


def _optional_seconds(name: str, value: Any) -> float | None:
    return None if value is None else seconds(name, value)


_OWN_READERS: Final = {
    "schema": _schema,
    "pool_size": _pool_size,
    "timeout": seconds,
    "connect_timeout": _optional_seconds,
    "migrate": boolean,
    "pgbouncer": boolean,
    "create": boolean,
    "listen": boolean,
}
