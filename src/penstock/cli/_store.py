"""How commands name a store and open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeAlias

import typer

from penstock.backends.base import Backend
from penstock.connection import default_url, open_backend
from penstock.errors import BackendError, InvalidArgumentError, OperationCancelledError
from penstock.queue import Queue
from penstock.scope import cancel_scope

__all__ = ["AsJson", "Url", "open_queue", "open_store"]

#: A server that is not there is waited for so long. Workers wait for as long as the store's own `timeout` says.
CONNECT_SECONDS: Final = 10.0

Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        metavar="URL",
        envvar="PENSTOCK_URL",
        help="The store: sqlite:///jobs.db or postgresql://…; else sqlite:///penstock.db.",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON: one object, or one a line for a list.")
]


@contextmanager
def open_store(url: str | None, *, create: bool = False, **options: Any) -> Iterator[Backend]:
    """Open the store that a command works on, for as long as it does.

    Args:
        url: what `Url` gave.
        create: make the store if it is not there, as commands do that write something new.
        **options: of `open_backend`.

    Raises:
        InvalidArgumentError: the url is wrong, private to another process, or names no store.
        BackendError: the store cannot be opened.
    """
    chosen = url or default_url()
    if chosen.partition(":")[0].lower() == "memory":
        raise InvalidArgumentError(
            "memory: belongs to the process that opened it; "
            "name sqlite:///jobs.db or postgresql://… (--url, PENSTOCK_URL or url in penstock.toml)",
            field="url",
            value=chosen,
        )
    try:
        with cancel_scope(CONNECT_SECONDS):
            backend = open_backend(chosen, create=create, **options)
    except OperationCancelledError:
        raise BackendError(
            f"the store did not answer within {CONNECT_SECONDS:g} s: check its url, and whether it runs",
            retryable=True,
        ) from None
    with backend:
        yield backend


@contextmanager
def open_queue(url: str | None, *, create: bool = False, **options: Any) -> Iterator[Queue]:
    """As `open_store`, with a queue on it."""
    with open_store(url, create=create, **options) as backend, Queue(backend) as queue:
        yield queue
