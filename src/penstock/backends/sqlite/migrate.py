"""Bringing a file to the schema this code knows: numbered, forward-only, safe when two processes start at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

import apsw

from penstock.backends._migrations import Applied, listed
from penstock.backends.sqlite.connection import (
    APPLICATION_ID,
    check_ours,
    fetch,
    open_connection,
    prepare_file,
)
from penstock.backends.sqlite.faults import translate
from penstock.errors import BackendError
from penstock.overview import MigrationStep

__all__ = ["STEPS", "Migration", "list_steps", "migrate", "migrate_file", "migration_sql", "migrations"]


class Migration(NamedTuple):
    """One step: its number, name, SQL, and the oldest schema version whose code may run on the result."""

    number: int
    name: str
    sql: str
    oldest_code: int


def migrations(folder: Traversable | None = None) -> list[Migration]:
    """Return all steps of a folder, by default our own, in order."""
    found = []
    for entry in (folder or resources.files(__package__).joinpath("migrations")).iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            sql = entry.read_text(encoding="utf-8")
            oldest = re.match(r"-- oldest code: (\d+)\n", sql)
            if oldest is None:
                raise RuntimeError(f"{entry.name} does not begin with '-- oldest code: N'")
            found.append(Migration(int(match[1]), match[2], sql, int(oldest[1])))
    return sorted(found)


STEPS: Final = tuple(migrations())
_OPENING: Final = f"""CREATE TABLE migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, oldest_code INTEGER NOT NULL, applied_at INTEGER NOT NULL) STRICT;
PRAGMA application_id = {APPLICATION_ID};
"""


def migrate(connection: apsw.Connection, path: str, steps: Sequence[Migration] = STEPS) -> list[int]:
    """Apply what is missing of `steps` and return the numbers applied. Each step is one transaction.

    Raises:
        BackendError: the file is not a Penstock store, or newer code has made it unreadable for this one.
    """
    applied: list[int] = []
    latest = steps[-1].number
    if _version(connection, path) >= latest:
        _check_readable(connection, path, latest)
        return applied
    for step in steps:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Looked up again under the lock: another process may have just done it.
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
    """Bring a file to this code's version, making it if there is none; return the numbers applied."""
    prepare_file(path)
    with _opened(path, timeout) as connection:
        return migrate(connection, path)


def list_steps(path: str, timeout: float = 10.0) -> list[MigrationStep]:
    """Return every step, applied or not; changes nothing."""
    prepare_file(path, create=False)
    with _opened(path, timeout) as connection:
        known = check_ours(connection, path)
        query = "SELECT number, name, oldest_code, applied_at FROM migration ORDER BY number"
        return listed(STEPS, [Applied(*row) for row in fetch(connection.cursor(), query)] if known else [])


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
    """Return a step's SQL, its record first: a migrator that somehow raced another fails there and changes nothing."""
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
