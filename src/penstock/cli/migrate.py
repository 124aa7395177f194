"""`penstock migrate`: the schema of a store."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.backends.contract.overview import MigrationStep
from penstock.backends.drivers import list_migrations, migrate_store, migration_script
from penstock.cli._command import Group, add_command
from penstock.cli._output import emit, emit_json, emit_table
from penstock.cli._store import AsJson, Store
from penstock.cli._text import utc_time

__all__ = ["migrate"]

migrate = typer.Typer(
    cls=Group, no_args_is_help=True, help="Show and apply the schema migrations of a store."
)


@migrate.callback()
def _group() -> None:
    """Keep `migrate` a group."""


def up(*, store: Store, as_json: AsJson = False) -> None:
    """Apply the migrations that a store lacks; create the store if there is none.

    A SQLite store and an empty PostgreSQL schema are migrated when they are opened. Several processes may run this at once: one applies the migrations, the others wait. A store that is too new for this code is refused.

    Examples:
        penstock migrate up --url postgresql://app@db/shop
    """
    options = store.connect_options()
    applied = migrate_store(store.url, **options)
    steps = list_migrations(store.url, **options)
    version = _version(steps)
    if as_json:
        emit_json({"applied": applied, "version": version})
        return
    for step in steps:
        if step.number in applied:
            emit(f"applied {step.number} {step.name}")
    emit(f"the store has version {version}{'' if applied else '; no migration was needed'}")


def list_steps(*, store: Store, as_json: AsJson = False) -> None:
    """List the migrations, and when each one was applied.

    OLDEST is the oldest schema version whose code may run on a store with this migration.

    Examples:
        penstock migrate list
        penstock migrate list --json
    """
    steps = list_migrations(store.url, **store.connect_options())
    if as_json:
        for step in steps:
            emit_json(msgspec.structs.asdict(step))
        return
    emit_table(
        ["number", "name", "oldest", "applied"],
        [(step.number, step.name, step.oldest_code, _when(step)) for step in steps],
        right=["number", "oldest"],
    )


def sql(
    *,
    store: Store,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every migration, without connecting to a store.")
    ] = False,
) -> None:
    """Print the SQL that `penstock migrate up` would run.

    Examples:
        penstock migrate sql --url postgresql://app@db/shop
        penstock migrate sql --url postgresql:// --all
    """
    after = 0 if everything else _version(list_migrations(store.url, **store.connect_options()))
    emit(migration_script(store.url, after=after).rstrip("\n"))


def _version(steps: list[MigrationStep]) -> int:
    return max((step.number for step in steps if step.applied_at is not None), default=0)


def _when(step: MigrationStep) -> str:
    when = utc_time(step.applied_at) or "not yet"
    return when if step.is_known else f"{when}, by a newer penstock"


add_command(migrate, "up", up)
add_command(migrate, "list", list_steps)
add_command(migrate, "sql", sql)
