"""Bringing a file to the schema this code knows: numbered, forward-only, safe when two processes start at once."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final, NamedTuple

import apsw

from penstock.backends.sqlite.connection import fetch
from penstock.errors import BackendError

__all__ = ["LATEST", "Migration", "migrate", "migrations"]

APPLICATION_ID: Final = 0x70656E73  # "pens"


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


def migrate(connection: apsw.Connection, path: str, *, upto: int = LATEST) -> list[int]:
    """Apply what is missing and return the numbers applied. Each step is one transaction.

    Raises:
        BackendError: the file is not a Penstock store, or newer code has made it unreadable for this one.
    """
    applied: list[int] = []
    if _version(connection, path) >= upto:
        _check_readable(connection, path)
        return applied
    for step in migrations():
        if step.number > upto:
            break
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
    _check_readable(connection, path)
    return applied


def _apply(connection: apsw.Connection, step: Migration) -> None:
    if step.number == 1:
        connection.execute(
            "CREATE TABLE migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, oldest_code INTEGER NOT NULL,"
            " applied_at INTEGER NOT NULL) STRICT"
        )
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(
        "INSERT INTO migration (number, name, oldest_code, applied_at)"
        " VALUES (?, ?, ?, CAST(unixepoch('subsec') * 1000000 AS INTEGER))",
        (step.number, step.name, step.oldest_code),
    )
    connection.execute(step.sql)


def _version(connection: apsw.Connection, path: str) -> int:
    """Return the highest step applied; 0 for an empty file."""
    tables = fetch(connection.cursor(), "SELECT count(*) FROM sqlite_schema")[0][0]
    if tables == 0:
        return 0
    if connection.pragma("application_id") != APPLICATION_ID:
        raise BackendError(f"{path} is an SQLite file, but not a Penstock store; choose another path")
    return int(fetch(connection.cursor(), "SELECT max(number) FROM migration")[0][0])


def _check_readable(connection: apsw.Connection, path: str) -> None:
    version, oldest = fetch(connection.cursor(), "SELECT max(number), max(oldest_code) FROM migration")[0]
    if oldest > LATEST:
        raise BackendError(
            f"{path} has schema version {version}, which needs code of version {oldest} or later; "
            f"this code is of version {LATEST}: upgrade penstock"
        )
