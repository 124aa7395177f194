"""Where claims may begin, so that dead rows do not slow them.

A claimed job leaves a dead entry at the front of the ready index, and while any session holds an old snapshot no vacuum
can remove it: each claim would walk over all of them. So this process remembers, for each kind of claim and priority,
how far it has come, and begins there.

That is sound because new ready jobs come in behind: their place in the order is their transaction's `now`. A job that
enters the ready set elsewhere (its delay is over, its key's turn came, its creation time was given) is marked `late`,
and while a late job is ready the claim statement ignores floors. What remains is a transaction that was open while the
floor rose past its `now`. Therefore a claim that finds too little looks again, in the same statement: two seconds back,
or from the beginning if it has not done so for a while; and every claim looks from the beginning once a second.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import Any, Final

from penstock.backends.postgres.fast import numbers

__all__ = ["Floors", "Lane", "Place", "lanes"]

#: Where a job stands in its priority: (order_at, seq).
Place = tuple[int, int]

LOWEST: Final = (-(2**62), 0)
PRIORITIES: Final = (0, 1, 2, 3, 4)
FROM_THE_BEGINNING: Final = 2**62
_FULL_LOOK_EVERY: Final = 1.0
_FULL_LOOK_WHEN_SHORT: Final = 0.25
_LOOK_BACK: Final = 2_000_000
_MOST_LANES: Final = 1_000
_BEHIND_ALL: Final = 2**62


class Lane:
    """One kind of claim (its filters), and how far each priority has come."""

    def __init__(self) -> None:
        self._reached: dict[int, Place] = {}
        self._full_at = float("-inf")

    def start(self) -> dict[int, Place]:
        """Return where a claim begins, by priority; empty for a look from the beginning."""
        return {} if time.monotonic() - self._full_at >= _FULL_LOOK_EVERY else self._reached

    def look_back(self) -> int:
        """Return how far back (in microseconds) a claim looks that has found too little from `start` on."""
        is_stale = time.monotonic() - self._full_at >= _FULL_LOOK_WHEN_SHORT
        return FROM_THE_BEGINNING if is_stale else _LOOK_BACK

    def note(self, taken: Iterable[tuple[int, Place]], now: int, *, was_full: bool, is_short: bool) -> None:
        """Remember what a committed claim took; one that came out short has taken everything before `now`."""
        if is_short:
            reached = dict.fromkeys(PRIORITIES, (now - 1, _BEHIND_ALL))
        else:
            reached = {} if was_full else dict(self._reached)
            for priority, place in taken:
                # A job whose place is this very instant, or later, may yet be followed by one that belongs before it.
                if place[0] < now:
                    reached[priority] = max(place, reached.get(priority, LOWEST))
        self._reached = reached
        if was_full:
            self._full_at = time.monotonic()


class Floors:
    """The lanes of one process. `enabled` is false where time is not the server's, so that it may stand or jump."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._lanes: dict[Hashable, Lane] = {}
        self._promoted = -1
        self._all_promoted_at = float("-inf")
        self._leading_tags: dict[tuple[str, ...], tuple[str, float]] = {}

    def leading_tag(self, tags: tuple[str, ...]) -> str | None:
        """Return which of several tags was the rarest a moment ago; None if that has to be found out (again)."""
        tag, until = self._leading_tags.get(tags, (None, 0.0))
        return tag if time.monotonic() < until else None

    def note_leading_tag(self, tags: tuple[str, ...], tag: str) -> None:
        if len(self._leading_tags) >= _MOST_LANES:
            self._leading_tags = {}
        self._leading_tags[tags] = (tag, time.monotonic() + _FULL_LOOK_EVERY)

    def lane(self, kind: Hashable) -> Lane | None:
        if not self._enabled:
            return None
        lane = self._lanes.get(kind)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES:
                self._lanes = {}
            lane = self._lanes[kind] = Lane()
        return lane

    def promoted_until(self) -> int:
        """Return the time up to which due jobs were moved already; -1 to look at all of them."""
        is_stale = time.monotonic() - self._all_promoted_at >= _FULL_LOOK_EVERY
        return -1 if is_stale or not self._enabled else self._promoted

    def note_promoted(self, since: int, now: int) -> None:
        """Remember that a committed pass moved everything that was due."""
        self._promoted = now
        if since < 0:
            self._all_promoted_at = time.monotonic()


def lanes(start: dict[int, Place], look_back: int = FROM_THE_BEGINNING) -> dict[str, Any]:
    """Return the floors as the claim statements take them: five lanes to look through, and five to look back in."""
    if not start:
        return _ALL_LANES
    places = [start.get(priority, LOWEST) for priority in PRIORITIES] * 2
    return {
        "priorities": _TWICE,
        "floor_ats": numbers(place[0] for place in places),
        "floor_seqs": numbers(place[1] for place in places),
        "are_back": _THEN_BACK,
        "look_back": look_back,
    }


_TWICE: Final = numbers(PRIORITIES * 2)
_THEN_BACK: Final = "{f,f,f,f,f,t,t,t,t,t}"
_ALL_LANES: Final = {
    "priorities": numbers(PRIORITIES),
    "floor_ats": numbers(LOWEST[0] for _ in PRIORITIES),
    "floor_seqs": numbers(LOWEST[1] for _ in PRIORITIES),
    "are_back": "{f,f,f,f,f}",
    "look_back": 0,
}
