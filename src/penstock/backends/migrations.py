"""Schema migrations: the steps that the code knows, and those that a store has recorded as applied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources.abc import Traversable
from typing import NamedTuple

from penstock.backends.contract.overview import MigrationStep
from penstock.backends.engine.rows import moment_at

__all__ = ["AppliedMigration", "Migration", "list_migrations", "read_migrations"]


class Migration(NamedTuple):
    """One step: its number, name, SQL, and the oldest schema version whose code may run on the result."""

    number: int
    name: str
    sql: str
    oldest_code: int


class AppliedMigration(NamedTuple):
    """A step as a store has recorded it."""

    number: int
    name: str
    oldest_code: int
    applied_at: int


def read_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """Return the steps of a folder, by number.

    Raises:
        RuntimeError: a step does not state the oldest code that may run on its result.
    """
    found = []
    for entry in folder.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            sql = entry.read_text(encoding="utf-8")
            oldest = re.match(r"-- oldest code: (\d+)\n", sql)
            if oldest is None:
                raise RuntimeError(f"{entry.name} does not begin with '-- oldest code: N'")
            found.append(Migration(int(match[1]), match[2], sql, int(oldest[1])))
    return tuple(sorted(found))


def list_migrations(known: Iterable[Migration], applied: Sequence[AppliedMigration]) -> list[MigrationStep]:
    """Return the steps that the code knows or the store has recorded, by number."""
    at = {step.number: moment_at(step.applied_at) for step in applied}
    found = {
        step.number: MigrationStep(
            number=step.number,
            name=step.name,
            oldest_code=step.oldest_code,
            applied_at=at.get(step.number),
        )
        for step in known
    }
    for step in applied:
        if step.number not in found:
            found[step.number] = MigrationStep(
                number=step.number,
                name=step.name,
                oldest_code=step.oldest_code,
                applied_at=at[step.number],
                is_known=False,
            )
    return [found[number] for number in sorted(found)]
