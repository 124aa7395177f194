"""`penstock migrate`: the schema of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli._output import emit, emit_json, emit_table, local
from penstock.cli._store import AsJson, Url
from penstock.connection import list_migrations, migrate_store, migration_script
from penstock.overview import MigrationStep

__all__ = ["migrate"]

migrate = typer.Typer(no_args_is_help=True, help="Bring a store to the version that this code needs.")


@migrate.callback()
def _group() -> None:
    """Keep `migrate` a group."""


@migrate.command("up")
def up(url: Url = None, as_json: AsJson = False) -> None:
    """Apply the steps that a store lacks, making the store if there is none.

    A SQLite store does this by itself when it is opened, and so does an empty PostgreSQL schema. Each step is one
    transaction; several may be started at once. A store that is too new for this code is refused.

    Examples:
        penstock migrate up --url postgresql://app@db/shop
    """
    applied = migrate_store(url)
    steps = list_migrations(url)
    version = _version(steps)
    if as_json:
        emit_json({"applied": applied, "version": version})
        return
    for step in steps:
        if step.number in applied:
            emit(f"applied {step.number} {step.name}")
    emit(f"the store has version {version}{'' if applied else '; there was nothing to do'}")


@migrate.command("list")
def list_steps(url: Url = None, as_json: AsJson = False) -> None:
    """Show every step, and when it was applied. Changes nothing.

    OLDEST is the oldest version of the code that may run on a store with this step.

    Examples:
        penstock migrate list
        penstock migrate list --json
    """
    steps = list_migrations(url)
    if as_json:
        for step in steps:
            emit_json(
                {
                    "number": step.number,
                    "name": step.name,
                    "oldest_code": step.oldest_code,
                    "applied_at": step.applied_at,
                    "is_known": step.is_known,
                }
            )
        return
    emit_table(
        ["number", "name", "oldest", "applied"],
        [(step.number, step.name, step.oldest_code, _when(step)) for step in steps],
        right=["number", "oldest"],
    )


@migrate.command("sql")
def sql(
    url: Url = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every step, whatever was applied; reaches for no store.")
    ] = False,
) -> None:
    """Print the SQL that `up` would run. Changes nothing.

    Examples:
        penstock migrate sql --url postgresql://app@db/shop
        penstock migrate sql --url postgresql:// --all
    """
    after = 0 if everything else _version(list_migrations(url))
    emit(migration_script(url, after=after).rstrip("\n"))


def _version(steps: list[MigrationStep]) -> int:
    return max((step.number for step in steps if step.applied_at is not None), default=0)


def _when(step: MigrationStep) -> str:
    when = local(step.applied_at) or "not yet"
    return when if step.is_known else f"{when}, by a newer penstock"
