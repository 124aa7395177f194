"""`penstock archive`: remove old histories of ended jobs from the journal."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli._output import emit
from penstock.cli._store import Store
from penstock.cli._text import clean
from penstock.cli._values import as_duration

__all__ = ["archive"]


def archive(
    *,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Keep histories whose last change is younger than this, such as 90d or 12h."
        ),
    ] = "90d",
    store: Store,
) -> None:
    """Remove old histories from the journal.

    A history is removed if its job has ended and every consumer has read it. Jobs, results and statistics stay. Sync every lake first: rows that a lake has not read stay too.

    Examples:
        penstock archive --older-than 30d
    """
    age = as_duration(older_than, "older_than")
    with store.open() as backend:
        consumers = backend.journal.list_consumers()
        removed = backend.journal.archive(age)
    emit(f"{removed.histories} histories with {removed.rows} rows were removed")
    for consumer in consumers:
        emit(f"kept for {clean(consumer.name)}: rows after seq {consumer.seq}")
