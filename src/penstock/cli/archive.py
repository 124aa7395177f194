"""`penstock archive`: drop old, ended histories from the journal of a store."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final

import typer

from penstock.cli._store import StoreSchema, Url, open_store
from penstock.errors import InvalidArgumentError, shown

__all__ = ["archive"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def archive(
    older_than: Annotated[
        str, typer.Option(help="Keep histories whose last change is younger: 90d, 12h, 30m, 10s.")
    ] = "90d",
    url: Url = None,
    store_schema: StoreSchema = None,
) -> None:
    """Remove histories from the journal that have ended, are old, and have been read by every consumer.

    Jobs, results and statistics stay. Sync every lake first: what it has not read stays too.

    Examples:
        penstock archive --older-than 30d
    """
    age = _age(older_than)
    with open_store(url, store_schema) as backend:
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
