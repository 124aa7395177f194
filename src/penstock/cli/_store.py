"""The options that name a store, and how commands open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import typer

from penstock.backends import Backend
from penstock.backends.drivers import default_url, driver_for, example_urls, open_backend
from penstock.cli._settings import DURATION
from penstock.cli._values import as_seconds
from penstock.errors import BackendError, InvalidArgumentError, OperationCancelledError
from penstock.queue import Queue
from penstock.scope import cancel_scope

__all__ = ["CONNECT_TIMEOUT", "AsJson", "ConnectTimeout", "Store", "connect_options"]

#: How long a store may take to open once it is connected.
OPEN_SECONDS: Final = 10.0
CONNECT_TIMEOUT: Final = "5s"

AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON: one object, or for a list one object per line.")
]
ConnectTimeout: TypeAlias = Annotated[
    str,
    typer.Option(
        "--connect-timeout",
        metavar=DURATION,
        envvar="PENSTOCK_CONNECT_TIMEOUT",
        help="How long to try to connect to a PostgreSQL server.",
    ),
]


def connect_options(url: str, connect_timeout: str) -> dict[str, Any]:
    """Return the backend option for --connect-timeout; none if the url has its own, or needs no connection."""
    seconds = as_seconds(connect_timeout, "connect_timeout")
    driver = driver_for(url)
    if not driver.is_server or "connect_timeout" in driver.options_in(url):
        return {}
    return {"connect_timeout": seconds}


@dataclass(frozen=True)
class Store:
    """The options --url and --connect-timeout, and the store that they name."""

    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "-u",
            metavar="URL",
            envvar="PENSTOCK_URL",
            help="The store: sqlite:///jobs.db or postgresql://… Default: sqlite:///penstock.db.",
            show_default=False,
        ),
    ] = None
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT

    @property
    def address(self) -> str:
        """The url that was given, or the default one."""
        return self.url or default_url()

    def connect_options(self) -> dict[str, Any]:
        """Return the backend options for connecting to the store."""
        return connect_options(self.address, self.connect_timeout)

    @contextmanager
    def open(self, *, create: bool = False, **options: Any) -> Iterator[Backend]:
        """Open the store for the duration of a `with` block.

        Args:
            create: create the store if it does not exist.
            **options: of `open_backend`.

        Raises:
            InvalidArgumentError: the url is wrong, private to another process, or names no store.
            BackendError: the store cannot be opened.
        """
        url = self.address
        driver = driver_for(url)
        if not driver.is_shared:
            raise InvalidArgumentError(
                f"{driver.prefix} belongs to the process that opened it; "
                f"name {example_urls()} (--url, PENSTOCK_URL or url in penstock.toml)",
                field="url",
                value=url,
            )
        options = {**self.connect_options(), **options}
        limit = OPEN_SECONDS + options.get("connect_timeout", 0.0)
        try:
            with cancel_scope(limit):
                backend = open_backend(url, create=create, **options)
        except OperationCancelledError:
            raise BackendError(
                f"the store did not answer within {limit:g} s: check its url, and whether it runs",
                retryable=True,
            ) from None
        with backend:
            yield backend

    @contextmanager
    def open_queue(self, *, create: bool = False, **options: Any) -> Iterator[Queue]:
        """Open the store as `open` does, with a queue on it."""
        with self.open(create=create, **options) as backend, Queue(backend) as queue:
            yield queue
