"""Opening the embedded store by url."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from penstock.backends.engine.backend import EngineBackend
from penstock.backends.options import StoreOptions, boolean, read_options, seconds
from penstock.backends.sqlite.store import SqliteStore
from penstock.clock import Clock
from penstock.errors import invalid

__all__ = ["SqliteBackend", "open_sqlite"]

_OWN_OPTIONS: Final = {"durability": "full", "timeout": 10.0, "create": True}


class SqliteBackend(EngineBackend):
    """The contract on a SQLite file, or in memory."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        durability: str = "full",
        timeout: float = 10.0,
        create: bool = True,
    ) -> None:
        self.path = path
        self._location = "memory:" if path == ":memory:" else f"sqlite:///{os.path.abspath(path)}"  # noqa: PTH100  # a path whose folder is gone has no resolve
        self.durability = durability
        is_new = path != ":memory:" and not _has_content(path)
        store = SqliteStore(path, clock=clock, durability=durability, timeout=timeout, create=create)
        super().__init__(store, options or StoreOptions(), has_own_clock=clock is not None, is_new=is_new)

    @property
    def location(self) -> str:
        return self._location

    def __repr__(self) -> str:
        return f"<SqliteBackend {self.path} durability={self.durability}>"


def open_sqlite(path: str, *, clock: Clock | None, options: Mapping[str, Any]) -> SqliteBackend:
    """Open the store at a path (":memory:" for one of its own), creating and migrating it as needed.

    Own options:
        durability: "full" (an acknowledged change survives a power cut) or "normal" (the last instants may be lost
            when the machine, not the process, fails).
        timeout: seconds to wait for other processes before BackendError.
        create: make the store if there is none; False refuses a path without one, and leaves it as it is.
    """
    readers = {"durability": _durability, "timeout": seconds, "create": boolean}
    common, own = read_options(options, _OWN_OPTIONS, readers, clock=clock)
    return SqliteBackend(
        path,
        clock=clock,
        options=common,
        durability=own["durability"],
        timeout=own["timeout"],
        create=own["create"],
    )


def _has_content(path: str) -> bool:
    """Whether a file is there that may hold a store: an empty one is as good as none."""
    try:
        return os.stat(path).st_size > 0  # noqa: PTH116  # no Path is needed
    except (OSError, ValueError):
        return False


def _durability(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in ("full", "normal"):
        raise invalid(name, "'full' or 'normal'", value)
    return str(value)
