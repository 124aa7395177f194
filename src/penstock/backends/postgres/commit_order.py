"""Emits committed changes in causal order, without serialising the commits.

A transaction draws a ticket when its work is done, before it commits; changes are emitted in ticket order. A transaction
that depends on another (it waited for a row lock, or read its rows) finished its work after that one had committed, so
its ticket is later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.backends.contract.values import Change

__all__ = ["CommitOrder"]


class Ticket:
    """A position in the emit order; `changes` stays None if the transaction did not commit."""

    __slots__ = ("changes", "number")

    def __init__(self) -> None:
        self.number = 0
        self.changes: Sequence[Change] | None = None


class CommitOrder:
    """The queue of changes to emit."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the initial state: at first, and in a forked child."""
        self._changed = threading.Condition(threading.Lock())
        self._drawn = 0
        self._emitted = 0
        self._settled: dict[int, tuple[Sequence[Change], Callable[[Sequence[Change]], None]] | None] = {}
        self._emitter: int | None = None

    @contextmanager
    def ticket(self, listener: Callable[[Sequence[Change]], None] | None) -> Iterator[Ticket]:
        """Draw a ticket for a commit; the end of the block emits its changes after those of all earlier tickets.

        The ticket is settled however the block ends: otherwise all later ones would wait for it for ever. Without a
        listener no ticket is drawn.
        """
        drawn = Ticket()
        if listener is None:
            yield drawn
            return
        try:
            with self._changed:
                self._drawn += 1
                drawn.number = self._drawn
            yield drawn
        finally:
            if drawn.number:
                self._settle(drawn.number, None if drawn.changes is None else (drawn.changes, listener))

    def _settle(
        self, ticket: int, changes: tuple[Sequence[Change], Callable[[Sequence[Change]], None]] | None
    ) -> None:
        me = threading.get_ident()
        with self._changed:
            self._settled[ticket] = changes
            if self._emitter == me:
                return  # a listener wrote to the store; those changes are emitted when it returns
            while self._emitted < ticket:
                if self._emitter is None and self._emitted + 1 in self._settled:
                    self._emit_next(me)
                else:
                    self._changed.wait()

    def _emit_next(self, me: int) -> None:
        """Emit one transaction's changes, with the lock released meanwhile."""
        changes = self._settled.pop(self._emitted + 1)
        self._emitter = me
        self._changed.release()
        try:
            if changes is not None:
                changes[1](changes[0])
        finally:
            self._changed.acquire()
            self._emitter = None
            self._emitted += 1
            self._changed.notify_all()
