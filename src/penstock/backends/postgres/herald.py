"""Telling listeners what was committed, in an order that respects cause and effect, without taking commits one by one.

A transaction draws a ticket when its work is done, before it commits; its changes are told in the order of tickets. A
transaction that depends on another (it waited for a row lock, or saw its rows) finished its work after that one had
committed, so it has a later ticket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.backends.base import Change

__all__ = ["Herald"]


class Ticket:
    """A place in the order of what is told; `news` stays None if the transaction did not commit."""

    __slots__ = ("news", "number")

    def __init__(self) -> None:
        self.number = 0
        self.news: Sequence[Change] | None = None


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

    @contextmanager
    def ticket(self, listener: Callable[[Sequence[Change]], None] | None) -> Iterator[Ticket]:
        """Draw a ticket for a commit; at the end of the block its news is told, after that of all earlier tickets.

        Whatever ends the block, the ticket is settled: if it were not, all later ones would wait for it for ever.
        Without a listener there is nothing to draw.
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
                self._settle(drawn.number, None if drawn.news is None else (drawn.news, listener))

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
