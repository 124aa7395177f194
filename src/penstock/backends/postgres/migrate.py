"""Bringing a schema to the version this code knows: numbered, forward-only, safe when two processes start at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any, Final, NamedTuple

import psycopg

from penstock.backends._migrations import Applied, listed
from penstock.backends.postgres import faults
from penstock.backends.postgres.statements import NOW, checked_schema
from penstock.errors import BackendError, InvalidArgumentError
from penstock.overview import MigrationStep

__all__ = ["LATEST", "Migration", "check_version", "list_steps", "migrate", "migration_sql", "migrations"]

#: Class of the advisory lock that migrating processes take; the second part is the schema's hash.
_LOCK_CLASS: Final = 0x70656E6D


class Migration(NamedTuple):
    """One step: its number, name, SQL, and the oldest schema version whose code may run on the result."""

    number: int
    name: str
    sql: str
    oldest_code: int


def migrations() -> list[Migration]:
    """Return all steps in order."""
    found = []
    for entry in resources.files(__package__).joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            sql = entry.read_text(encoding="utf-8")
            oldest = re.match(r"-- oldest code: (\d+)\n", sql)
            if oldest is None:
                raise RuntimeError(f"{entry.name} does not begin with '-- oldest code: N'")
            found.append(Migration(int(match[1]), match[2], sql, int(oldest[1])))
    return sorted(found)


LATEST: Final = max(step.number for step in migrations())


def migration_sql(schema: str = "penstock", *, after: int = 0, upto: int = LATEST) -> str:
    """Return, as one script, what `migrate` would run: for reading, or for running by hand."""
    checked_schema(schema)
    parts = [_opening(schema)] if not after else []
    parts += [_script(schema, step) for step in migrations() if after < step.number <= upto]
    return "BEGIN;\n" + "\n".join(parts) + "COMMIT;\n"


def migrate(url: str, schema: str = "penstock", *, upto: int = LATEST) -> list[int]:
    """Apply what is missing and return the numbers applied. Each step is one transaction.

    Raises:
        BackendError: the schema is so new that this code may not touch it.
    """
    with _opened(url, schema) as connection:
        _check_not_newer(schema, *_version(connection, schema))
        return apply(connection, schema, upto=upto)


def list_steps(url: str, schema: str = "penstock") -> list[MigrationStep]:
    """Return every step, applied or not; changes nothing."""
    with _opened(url, schema) as connection:
        applied: list[Applied] = []
        if _version(connection, schema)[0]:
            query = f'SELECT number, name, oldest_code, applied_at FROM "{schema}".migration ORDER BY number'
            applied = [Applied(*row) for row in connection.execute(query, prepare=False)]
        return listed(migrations(), applied)


@contextmanager
def _opened(url: str, schema: str) -> Iterator[psycopg.Connection[Any]]:
    checked_schema(schema)
    try:
        with psycopg.connect(
            url, autocommit=True, prepare_threshold=None, client_encoding="UTF8", connect_timeout=10
        ) as connection:
            yield connection
    except psycopg.Error as error:
        raise faults.translate(error) from error


def apply(connection: psycopg.Connection[Any], schema: str, *, upto: int = LATEST) -> list[int]:
    """Apply what is missing on a connection in autocommit mode."""
    _check_encoding(connection)
    applied = []
    for step in migrations():
        if step.number > upto:
            break
        with connection.transaction():
            # Taken before anything is looked at, so that whoever comes second finds the first one's work done.
            connection.execute(
                "SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK_CLASS, schema), prepare=False
            )
            if _version(connection, schema)[0] < step.number:
                opening = _opening(schema) if step.number == 1 else ""
                connection.execute(opening + _script(schema, step), prepare=False)
                applied.append(step.number)
    return applied


def check_version(
    connection: psycopg.Connection[Any], schema: str, *, may_migrate: bool, may_create: bool = True
) -> None:
    """Make sure this code and the schema fit; an empty schema is filled, an older one only if that was asked for.

    Raises:
        InvalidArgumentError: there is no store, and none is to be made.
        BackendError: the schema is older, or so new that this code may not run on it.
    """
    version, oldest = _version(connection, schema)
    if version == 0 and not may_create:
        raise InvalidArgumentError(
            f"the schema {schema} of this database holds no store: check the url and the schema; "
            "the first job that is submitted makes it, or penstock migrate up",
            field="url",
        )
    if version < LATEST and (version == 0 or may_migrate):
        apply(connection, schema)
        version, oldest = _version(connection, schema)
    if version < LATEST:
        raise BackendError(
            f"the schema {schema} has version {version}, this code needs version {LATEST}: run penstock migrate"
        )
    _check_not_newer(schema, version, oldest)


def _check_not_newer(schema: str, version: int, oldest: int) -> None:
    if oldest > LATEST:
        raise BackendError(
            f"the schema {schema} has version {version}, which needs code of version {oldest} or later; "
            f"this code is of version {LATEST}: upgrade penstock"
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
    """Return a step's SQL, its record first: a migrator that somehow raced another fails there and changes nothing."""
    return (
        f'INSERT INTO "{schema}".migration (number, name, oldest_code, applied_at)\n'
        f"VALUES ({step.number}, '{step.name}', {step.oldest_code}, {NOW});\n"
        + step.sql.replace("{schema}", f'"{schema}"')
    )


def _version(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    """Return the highest step applied (0 for none) and the oldest code that may run on it."""
    # Not to_regclass: it may answer from what this session knew before it waited for the lock.
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
