"""Migrates a file to the schema of this code: numbered steps, forward only, safe when several processes start at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import Final

import apsw

from penstock.backends.contract.overview import MigrationStep
from penstock.backends.migrations import AppliedMigration, Migration, list_migrations, read_migrations
from penstock.backends.sqlite.connection import (
    APPLICATION_ID,
    check_ours,
    fetch,
    open_connection,
    prepare_file,
)
from penstock.backends.sqlite.faults import translate
from penstock.errors import BackendError

__all__ = ["STEPS", "list_steps", "migrate", "migrate_file", "migration_sql"]

STEPS: Final = read_migrations(resources.files(__package__).joinpath("migrations"))
_OPENING: Final = f"""CREATE TABLE migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, oldest_code INTEGER NOT NULL, applied_at INTEGER NOT NULL) STRICT;
PRAGMA application_id = {APPLICATION_ID};
"""


def migrate(connection: apsw.Connection, path: str, steps: Sequence[Migration] = STEPS) -> list[int]:
    """Apply the missing steps, each in its own transaction, and return their numbers.

    Raises:
        BackendError: the file is not a Penstock store, or its schema needs newer code.
    """
    applied: list[int] = []
    latest = steps[-1].number
    if _version(connection, path) >= latest:
        _check_readable(connection, path, latest)
        return applied
    for step in steps:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again under the lock: another process may have applied the step.
            if _version(connection, path) < step.number:
                _apply(connection, step)
                applied.append(step.number)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    _check_readable(connection, path, latest)
    return applied


def migrate_file(path: str, timeout: float = 10.0) -> list[int]:
    """Migrate a file to this code's version, creating it if it is missing; return the numbers applied."""
    prepare_file(path)
    with _opened(path, timeout) as connection:
        return migrate(connection, path)


def list_steps(path: str, timeout: float = 10.0) -> list[MigrationStep]:
    """Return every step, applied or not; changes nothing."""
    prepare_file(path, create=False)
    with _opened(path, timeout) as connection:
        known = check_ours(connection, path)
        query = "SELECT number, name, oldest_code, applied_at FROM migration ORDER BY number"
        rows = fetch(connection.cursor(), query) if known else []
        return list_migrations(STEPS, [AppliedMigration(*row) for row in rows])


def migration_sql(after: int = 0) -> str:
    """Return, as one script, what `migrate` would run on a store of version `after`."""
    return "".join(f"BEGIN IMMEDIATE;\n{_script(step)}\nCOMMIT;\n" for step in STEPS if step.number > after)


@contextmanager
def _opened(path: str, timeout: float) -> Iterator[apsw.Connection]:
    try:
        connection = open_connection(path, durability="full", timeout=timeout)
        try:
            yield connection
        finally:
            connection.close()
    except apsw.Error as error:
        raise translate(error, path) from error


def _apply(connection: apsw.Connection, step: Migration) -> None:
    connection.execute(_script(step))


def _script(step: Migration) -> str:
    """Return a step's SQL after the insert of its record, which fails if another process has applied it."""
    opening = _OPENING if step.number == 1 else ""
    return (
        f"{opening}INSERT INTO migration (number, name, oldest_code, applied_at)\n"
        f"VALUES ({step.number}, '{step.name}', {step.oldest_code}, CAST(unixepoch('subsec') * 1000000 AS INTEGER));\n"
        f"{step.sql}"
    )


def _version(connection: apsw.Connection, path: str) -> int:
    """Return the highest step applied; 0 for an empty file."""
    if not check_ours(connection, path):
        return 0
    return int(fetch(connection.cursor(), "SELECT max(number) FROM migration")[0][0])


def _check_readable(connection: apsw.Connection, path: str, latest: int) -> None:
    version, oldest = fetch(connection.cursor(), "SELECT max(number), max(oldest_code) FROM migration")[0]
    if oldest > latest:
        raise BackendError(
            f"{path} has schema version {version}, which needs code of version {oldest} or later; "
            f"this code is of version {latest}: upgrade penstock"
        )
