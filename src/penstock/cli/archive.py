"""`penstock archive`: drop old, ended histories from the journal of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli._output import clean, emit
from penstock.cli._store import Url, open_store
from penstock.cli._values import as_duration

__all__ = ["archive"]


def archive(
    older_than: Annotated[
        str,
        typer.Option(metavar="TIME", help="Keep histories whose last change is younger: 90d, 12h, 30m, 10s."),
    ] = "90d",
    url: Url = None,
) -> None:
    """Remove old histories from the journal.

    They go if they have ended and every consumer has read them. Jobs, results and statistics stay. Sync every lake first: what it has not read stays too.

    Examples:
        penstock archive --older-than 30d
    """
    age = as_duration(older_than, "older_than")
    with open_store(url) as backend:
        consumers = backend.list_consumers()
        removed = backend.archive_journal(age)
    emit(f"{removed.histories} histories with {removed.rows} rows were removed")
    for consumer in consumers:
        emit(f"kept for {clean(consumer.name)}: what lies after seq {consumer.seq}")
