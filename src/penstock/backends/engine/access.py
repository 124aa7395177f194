"""The store and the options of an engine, shared by its backend and its roles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from penstock.backends.engine.store import Store, Transaction
from penstock.backends.options import StoreOptions
from penstock.errors import InvalidArgumentError

__all__ = ["StoreAccess"]

T = TypeVar("T")


class StoreAccess:
    """Runs work in a store, and refuses writes from inside an iterator that is being stored.

    Attributes:
        store: the store.
        options: the options in force.
        has_own_clock: whether the opener of the store gave it a clock.
        iterating: the threads that are inside an iterator that is being stored.
    """

    def __init__(self, store: Store, options: StoreOptions, *, has_own_clock: bool) -> None:
        self.store = store
        self.options = options
        self.has_own_clock = has_own_clock
        self.iterating: set[int] = set()

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction; see `Store.write`."""
        if self.iterating:
            self.refuse_iterated()
        return self.store.write(work)

    def write_iterated(self, work: Callable[[Transaction], T]) -> T:
        """Run work that reads an iterator: once, because that can be read once, and in a transaction of its own."""
        self.refuse_iterated()
        me = threading.get_ident()
        self.iterating.add(me)
        try:
            return self.store.write(work, alone=True)
        finally:
            self.iterating.discard(me)

    def refuse_iterated(self) -> None:
        """Refuse a write of a thread that is inside such an iterator."""
        # One answer for all stores: with one writer at a time the call would wait for itself for ever, elsewhere the
        # inner write would stay when the batch is rolled back.
        if threading.get_ident() in self.iterating:
            raise InvalidArgumentError(
                "jobs must not write to the store that they are written to while they are iterated; "
                "make a list of them first",
                field="jobs",
            )
