"""Opening the embedded store by url."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.backends._options import StoreOptions, boolean, read_options
from penstock.backends.engine import EngineBackend
from penstock.backends.sqlite.store import SqliteStore
from penstock.clock import Clock
from penstock.errors import InvalidArgumentError, shown

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
        self.durability = durability
        store = SqliteStore(path, clock=clock, durability=durability, timeout=timeout, create=create)
        super().__init__(store, options or StoreOptions(), has_own_clock=clock is not None)

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
    readers = {"durability": _durability, "timeout": _timeout, "create": boolean}
    common, own = read_options(options, _OWN_OPTIONS, readers, clock=clock)
    return SqliteBackend(
        path,
        clock=clock,
        options=common,
        durability=own["durability"],
        timeout=own["timeout"],
        create=own["create"],
    )


def _durability(name: str, value: Any) -> str:
    if value not in ("full", "normal"):
        raise InvalidArgumentError(f"{name} must be 'full' or 'normal', got {shown(value)}")
    return str(value)


def _timeout(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
        raise InvalidArgumentError(f"{name} must be a number of seconds up to 3600, got {shown(value)}")
    return float(value)
