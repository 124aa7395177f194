"""Opens a queue by its url."""

from __future__ import annotations

from typing import Any

from penstock.backends.drivers import open_backend
from penstock.clock import Clock
from penstock.queue.queue import Queue

__all__ = ["connect"]


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
    return Queue(open_backend(url, clock=clock, **options))
