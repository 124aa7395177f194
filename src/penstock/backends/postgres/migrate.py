"""Migrates a schema to the version of this code: numbered steps, forward only, safe when several processes start at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any, Final

import psycopg

from penstock.backends.contract.overview import MigrationStep
from penstock.backends.migrations import AppliedMigration, Migration, list_migrations, read_migrations
from penstock.backends.postgres import faults
from penstock.backends.postgres.connection import Dialing, parameters
from penstock.backends.postgres.retries import Patience
from penstock.backends.postgres.statements import NOW, checked_schema
from penstock.errors import BackendError, InvalidArgumentError

__all__ = [
    "STEPS",
    "check_version",
    "drop_schema",
    "list_steps",
    "migrate",
    "migration_sql",
]

STEPS: Final = read_migrations(resources.files(__package__).joinpath("migrations"))
#: Class of the advisory lock that migrating processes take; the second part is the schema's hash.
_LOCK_CLASS: Final = 0x70656E6D


def migration_sql(schema: str = "penstock", *, after: int = 0) -> str:
    """Return, as one script, what `migrate` would run: for reading, or for running by hand."""
    checked_schema(schema)
    parts = [_opening(schema)] if not after else []
    parts += [_script(schema, step) for step in STEPS if step.number > after]
    return "BEGIN;\n" + "\n".join(parts) + "COMMIT;\n"


def migrate(
    url: str, schema: str = "penstock", connect_timeout: float = 5.0, *, upto: int | None = None
) -> list[int]:
    """Apply the missing steps, up to `upto` or all, in one transaction, and return their numbers.

    Raises:
        BackendError: the schema needs newer code.
    """
    with _opened(url, schema, connect_timeout) as connection:
        _check_not_newer(schema, *_version(connection, schema))
        return apply(connection, schema, upto=upto)


def list_steps(url: str, schema: str = "penstock", connect_timeout: float = 5.0) -> list[MigrationStep]:
    """Return every step, applied or not; changes nothing."""
    with _opened(url, schema, connect_timeout) as connection:
        applied: list[AppliedMigration] = []
        if _version(connection, schema)[0]:
            query = f'SELECT number, name, oldest_code, applied_at FROM "{schema}".migration ORDER BY number'
            applied = [AppliedMigration(*row) for row in connection.execute(query, prepare=False)]
        return list_migrations(STEPS, applied)


def drop_schema(url: str, schema: str, connect_timeout: float = 5.0) -> None:
    """Remove a store with all its jobs, if it exists."""
    with _opened(url, schema, connect_timeout) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE', prepare=False)


@contextmanager
def _opened(url: str, schema: str, connect_timeout: float) -> Iterator[psycopg.Connection[Any]]:
    checked_schema(schema)
    options = {
        **parameters(url),
        "autocommit": True, "prepare_threshold": None, "connect_timeout": max(2, math.ceil(connect_timeout)),
    }  # fmt: skip
    try:
        with Dialing(options).wait(Patience(connect_timeout)) as connection:
            yield connection
    except psycopg.Error as error:
        raise faults.translate(error) from error


def apply(connection: psycopg.Connection[Any], schema: str, *, upto: int | None = None) -> list[int]:
    """Apply the missing steps in one transaction, on a connection in autocommit mode."""
    last = _latest() if upto is None else upto
    _check_encoding(connection)
    with connection.transaction():
        _lock(connection, schema)
        version = _version(connection, schema)[0]
        missing = [step for step in STEPS if version < step.number <= last]
        for step in missing:
            opening = _opening(schema) if step.number == 1 else ""
            connection.execute(opening + _script(schema, step), prepare=False)
    return [step.number for step in missing]


def check_version(
    connection: psycopg.Connection[Any], schema: str, *, may_migrate: bool, may_create: bool = True
) -> None:
    """Check that this code may run on the schema; create an empty one, and migrate an older one if `may_migrate`.

    An empty or older schema is checked again once a migration by another process has ended.

    Raises:
        InvalidArgumentError: there is no store and `may_create` is False.
        BackendError: the schema is older, or needs newer code.
    """
    latest = _latest()
    version, oldest = _version(connection, schema)
    if version < latest:
        version, oldest = _version_when_settled(connection, schema)
    if version == 0 and not may_create:
        raise InvalidArgumentError(
            f"the schema {schema} of this database holds no store: check the url and the schema; "
            "the first job that is submitted makes it, or penstock migrate up",
            field="url",
        )
    if version < latest and (version == 0 or may_migrate):
        apply(connection, schema)
        version, oldest = _version(connection, schema)
    if version < latest:
        raise BackendError(
            f"the schema {schema} has version {version}, this code needs version {latest}: "
            "run penstock migrate up"
        )
    _check_not_newer(schema, version, oldest)


def _version_when_settled(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    """Return `_version` once a migration under way has ended."""
    with connection.transaction():
        _lock(connection, schema)
        return _version(connection, schema)


def _lock(connection: psycopg.Connection[Any], schema: str) -> None:
    """Lock the schema against other migrations until the transaction ends."""
    query = "SELECT pg_advisory_xact_lock(%s, hashtext(%s))"
    connection.execute(query, (_LOCK_CLASS, schema), prepare=False)


def _latest() -> int:
    return STEPS[-1].number


def _check_not_newer(schema: str, version: int, oldest: int) -> None:
    if oldest > _latest():
        raise BackendError(
            f"the schema {schema} has version {version}, which needs code of version {oldest} or later; "
            f"this code is of version {_latest()}: upgrade penstock"
        )


def _opening(schema: str) -> str:
    return f"""CREATE SCHEMA IF NOT EXISTS "{schema}";
CREATE TABLE IF NOT EXISTS "{schema}".migration (
    number      integer PRIMARY KEY,
    name        text    NOT NULL,
    oldest_code integer NOT NULL,
    applied_at  bigint  NOT NULL
);
"""


def _script(schema: str, step: Migration) -> str:
    """Return a step's SQL after the insert of its record, which fails if another process has applied it."""
    return (
        f'INSERT INTO "{schema}".migration (number, name, oldest_code, applied_at)\n'
        f"VALUES ({step.number}, '{step.name}', {step.oldest_code}, {NOW});\n"
        + step.sql.replace("{schema}", f'"{schema}"')
    )


def _version(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    """Return the highest step applied (0 for none) and the oldest code that may run on it."""
    # Not to_regclass: it may answer from what the session cached before it waited for the lock.
    known = connection.execute(
        "SELECT FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = %s AND relname = 'migration'",
        (schema,),
        prepare=False,
    ).fetchone()
    if known is None:
        return 0, 0
    row = connection.execute(
        f'SELECT coalesce(max(number), 0), coalesce(max(oldest_code), 0) FROM "{schema}".migration',
        prepare=False,
    ).fetchone()
    return (0, 0) if row is None else (row[0], row[1])


def _check_encoding(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("SHOW server_encoding", prepare=False).fetchone()
    if row is not None and row[0] != "UTF8":
        raise BackendError(
            f"the database has the encoding {row[0]}; Penstock needs UTF8: create one with that encoding"
        )
