"""Telling listeners what was committed, in an order that respects cause and effect, without taking commits one by one.

A transaction draws a ticket when its work is done, before it commits; its changes are told in the order of tickets. A
transaction that depends on another (it waited for a row lock, or saw its rows) finished its work after that one had
committed, so it has a later ticket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.backends.base import Change

__all__ = ["Herald"]


class Herald:
    """The queue of what is to be told."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: at first, and in a forked child."""
        self._changed = threading.Condition(threading.Lock())
        self._drawn = 0
        self._told = 0
        self._settled: dict[int, tuple[Sequence[Change], Callable[[Sequence[Change]], None]] | None] = {}
        self._teller: int | None = None

    def ticket(self) -> int:
        with self._changed:
            self._drawn += 1
            return self._drawn

    def withdraw(self, ticket: int) -> None:
        """Give a ticket up: its transaction did not commit."""
        self._settle(ticket, None)

    def tell(
        self, ticket: int, changes: Sequence[Change], listener: Callable[[Sequence[Change]], None]
    ) -> None:
        """Call the listener when all earlier tickets are settled; return after that."""
        self._settle(ticket, (changes, listener))

    def _settle(
        self, ticket: int, news: tuple[Sequence[Change], Callable[[Sequence[Change]], None]] | None
    ) -> None:
        me = threading.get_ident()
        with self._changed:
            self._settled[ticket] = news
            if self._teller == me:
                return  # a listener wrote to the store; its own changes are told when it returns
            while self._told < ticket:
                if self._teller is None and self._told + 1 in self._settled:
                    self._tell_next(me)
                else:
                    self._changed.wait()

    def _tell_next(self, me: int) -> None:
        """Tell one transaction's changes, with the lock given up meanwhile."""
        news = self._settled.pop(self._told + 1)
        self._teller = me
        self._changed.release()
        try:
            if news is not None:
                news[1](news[0])
        finally:
            self._changed.acquire()
            self._teller = None
            self._told += 1
            self._changed.notify_all()
