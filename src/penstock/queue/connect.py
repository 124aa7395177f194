"""Opens a queue by its url."""

from __future__ import annotations

import logging
from typing import Any

from penstock.backends import Backend
from penstock.backends.drivers import open_backend
from penstock.clock import Clock
from penstock.queue.queue import Queue

__all__ = ["connect", "warn_of_new_store"]

logger = logging.getLogger("penstock")


def connect(url: str | None = None, *, clock: Clock | None = None, **options: Any) -> Queue:
    """Open a queue.

    Args:
        url: "memory:", "sqlite:///file.db" (four slashes for an absolute path), or "postgresql://…". None is
            `$PENSTOCK_URL`, else `url` in penstock.toml, else sqlite:///penstock.db.
        clock: replaces the store's clock; anything with `now()`.
        **options: those of `open_backend`, such as `max_pending` and `retention`.

    Example:
        with penstock.connect("sqlite:///jobs.db") as queue:
            queue.submit("resize", {"image": "cat.png"})

    Raises:
        InvalidArgumentError: an unknown kind of url, or options that are wrong; all of them are named at once.
        BackendError: the store cannot be opened.
    """
    backend = open_backend(url, clock=clock, **options)
    if url is None:
        warn_of_new_store(backend)
    return Queue(backend)


def warn_of_new_store(backend: Backend) -> None:
    """Log that this process has made the store, if it has: a program in the wrong folder makes one by mistake."""
    if backend.runtime.is_new:
        logger.warning(
            "a new store was made: %s; jobs submitted here wait until a worker claims from this very store",
            backend.location,
        )
