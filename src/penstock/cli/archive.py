"""`penstock archive`: drop old, ended histories from the journal of a store."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from penstock.connection import default_url, open_backend
from penstock.errors import InvalidArgumentError, shown

__all__ = ["archive"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def archive(
    older_than: Annotated[
        str, typer.Option(help="Keep histories whose last change is younger: 90d, 12h, 30m, 10s.")
    ] = "90d",
    url: Annotated[str | None, typer.Option("--url", "-u", help="The store. Default: $PENSTOCK_URL.")] = None,
    store_schema: Annotated[
        str | None,
        typer.Option("--store-schema", envvar="PENSTOCK_SCHEMA", help="The schema of a PostgreSQL store."),
    ] = None,
) -> None:
    """Remove histories from the journal that have ended, are old, and have been read by every consumer.

    Jobs, results and statistics stay. Sync every lake first: what it has not read stays too.
    """
    age = _age(older_than)
    options: dict[str, Any] = {} if store_schema is None else {"schema": store_schema}
    with open_backend(url or default_url(), **options) as backend:
        consumers = backend.list_consumers()
        removed = backend.archive_journal(age)
    typer.echo(f"{removed.histories} histories with {removed.rows} rows were removed")
    for consumer in consumers:
        typer.echo(f"kept for {consumer.name}: what lies after seq {consumer.seq}")


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if match is None:
        raise InvalidArgumentError(
            f"older-than must be a number with s, m, h or d, such as 90d, got {shown(text)}",
            field="older_than",
            value=text,
        )
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])
