"""Where claims and upkeep may begin, so that dead rows do not slow them.

A claimed job leaves a dead entry at the front of the ready index, and while any session holds an old snapshot no vacuum
can remove it: each claim would walk over all of them. So this process remembers, for each kind of claim and priority,
how far it has come, and begins there.

That is sound because new ready jobs come in behind: their place in the order is their transaction's `now`. A job that
enters the ready set elsewhere (its delay is over, it is the next of its key, its creation time was given) is marked `late`,
and a claim first reads the late jobs that it wants, one by one at their places below the floor. Late jobs of other
types do not matter, nor those that came before the first one that was still ready at the last claim (`late_since`).
What remains is a transaction that was open while the floor rose past its `now`. Therefore a claim that finds too little
scans again, in the same statement: two seconds back, or from the beginning if that was not done for a second. A claim
that finds enough scans two seconds back once a second, and from the beginning once in five. If a scan from the beginning
takes long, because the dead rows are many, the next one waits: all of them take at most a fiftieth of the time (`Pace`).

What upkeep searches has the same trouble with other indexes, and a memory of its own: jobs in flight (`InFlight`), and
rows whose time has come (`Sweep`: delays, lifetimes, retention, idempotency keys).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import Any, Final, NamedTuple

from penstock.backends.postgres.prepared import numbers
from penstock.backends.postgres.snapshots import Floor

__all__ = [
    "BEHIND_ALL",
    "FROM_THE_FIRST",
    "Floors",
    "InFlight",
    "Lane",
    "Pace",
    "Place",
    "Scan",
    "Sweep",
    "forward_lanes",
    "lanes",
]

#: Where a job stands in its priority: (order_at, seq).
Place = tuple[int, int]

LOWEST: Final = (-(2**62), 0)
PRIORITIES: Final = (0, 1, 2, 3, 4)
FROM_THE_BEGINNING: Final = 2**62
_FULL_SCAN_EVERY: Final = 5.0
_FULL_SCAN_WHEN_SHORT: Final = 1.0
_RECENT_SCAN_EVERY: Final = 1.0
_LEADING_TAG_HOLDS: Final = 1.0
#: A scan from the beginning that took d seconds is followed by the next one after so many times d, or later.
_REST: Final = 50
_NOT_RECENT: Final = -(2**62)
#: Before every time there is.
FROM_THE_FIRST: Final = LOWEST[0]
_SCAN_BACK: Final = 2_000_000
#: Microseconds that a transaction may take to commit a late job; one that takes longer waits for the next full scan.
_LATE_COMMITS: Final = 5_000_000
#: Seconds between two scans of all jobs in flight; between them those known and those claimed since are read.
_IN_FLIGHT_SCAN_EVERY: Final = 15.0
#: Microseconds that a claim may take from reading the clock to having its xid.
_UNTIL_XID: Final = 5_000_000
#: Microseconds before the end of the last sweep that the next one reads again, for late commits.
_SWEPT_AGAIN: Final = 10_000_000
#: How many late jobs a claim reads in a second, carefully guessed, and at least and at most.
_LATE_PER_SECOND: Final = 100_000
_LEAST_LATE: Final = 200
_MOST_LATE: Final = 20_000
_MOST_LANES: Final = 1_000
BEHIND_ALL: Final = 2**62


class Pace:
    """When the next scan from the beginning is due."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self.seconds = 0.0

    def is_due(self, every: float) -> bool:
        """Whether the last one is `every` seconds ago, or longer if it took long."""
        return time.monotonic() - self._at >= max(every, _REST * self.seconds)

    def note(self, began: float) -> None:
        """Note a scan from the beginning that began then and has ended now."""
        self._at = time.monotonic()
        self.seconds = self._at - began


class Lane:
    """One kind of claim (its filters), and how far each priority has come."""

    def __init__(self) -> None:
        self._reached: dict[int, Place] = {}
        self._pace = Pace()
        self._recent_at = float("-inf")
        #: Late jobs that came up to this time lie above the floors.
        self.late_since = LOWEST[0]

    def start(self) -> dict[int, Place]:
        """Return where a claim begins, by priority; empty for a scan from the beginning."""
        return {} if self._pace.is_due(_FULL_SCAN_EVERY) else self._reached

    def most_late(self) -> int:
        """Return how many late jobs a claim reads by themselves before a scan from the beginning is cheaper."""
        return min(max(int(self._pace.seconds * _LATE_PER_SECOND), _LEAST_LATE), _MOST_LATE)

    def recent(self) -> int:
        """Return how far back (in microseconds) from now a claim begins at least, once a second."""
        now = time.monotonic()
        if now - self._recent_at < _RECENT_SCAN_EVERY:
            return _NOT_RECENT
        self._recent_at = now
        return _SCAN_BACK

    def scan_back(self) -> int:
        """Return how far back (in microseconds) a claim scans that has found too little from `start` on."""
        return FROM_THE_BEGINNING if self._pace.is_due(_FULL_SCAN_WHEN_SHORT) else _SCAN_BACK

    def note_full(self, began: float) -> None:
        """Note that a claim scanned from the beginning, whatever becomes of it."""
        self._pace.note(began)
        self._recent_at = time.monotonic()

    def note(
        self,
        claimed: Iterable[tuple[int, Place]],
        now: int,
        late_from: int | None,
        *,
        was_full: bool,
        is_short: bool,
    ) -> None:
        """Remember what was claimed by a committed claim; one that came out short has claimed everything before `now`.

        Args:
            claimed: priority and place of each job.
            now: the time of the claim.
            late_from: when the first of the late jobs that it saw came; None if it saw none.
            was_full: it scanned from the beginning.
            is_short: it found fewer jobs than it wanted.
        """
        if is_short:
            reached = dict.fromkeys(PRIORITIES, (now - 1, BEHIND_ALL))
        else:
            reached = {} if was_full else dict(self._reached)
            for priority, place in claimed:
                # A job whose place is this very instant, or later, may yet be followed by one that belongs before it.
                if place[0] < now:
                    reached[priority] = max(place, reached.get(priority, LOWEST))
        self._reached = reached
        settled = now - _LATE_COMMITS
        if was_full:
            self.late_since = settled
        else:
            self.late_since = max(
                self.late_since, settled if late_from is None else min(settled, late_from - 1)
            )


class InFlight(NamedTuple):
    """Jobs in flight: those known from the last scan, and the time from which claims are unknown.

    The next scan reads all of them if `is_full`, whatever is known.
    """

    known: tuple[int, ...] = ()
    floor: Floor = Floor(LOWEST[0])
    is_full: bool = True

    def parameters(self) -> dict[str, Any]:
        return {"known": numbers(self.known), **self.floor.parameters()}

    def seen(self, known: Iterable[int], opened_at: int, snapshot: str, own_xid: int) -> InFlight:
        """Return what is known after a scan.

        Args:
            known: the jobs that it found.
            opened_at: a time before its transaction had its xid: a claim whose xid is higher is not much older.
            snapshot: what the scan could see.
            own_xid: of its transaction.
        """
        return InFlight(
            tuple(known), self.floor.risen(opened_at - _UNTIL_XID, snapshot, own_xid), is_full=False
        )


class Sweep:
    """Up to which time everything of a kind whose time had come was dealt with."""

    def __init__(self) -> None:
        self._upto = FROM_THE_FIRST
        self._pace = Pace()
        self._back_at = float("-inf")

    def since(self, now: int) -> int:
        """Return the time after which to scan; below every time for a scan from the beginning."""
        if self._upto > now or self._pace.is_due(_FULL_SCAN_EVERY):  # the clock went back
            return FROM_THE_FIRST
        if time.monotonic() - self._back_at >= _RECENT_SCAN_EVERY:
            self._back_at = time.monotonic()
            return self._upto - _SWEPT_AGAIN
        return self._upto

    def note(self, since: int, upto: int, began: float) -> None:
        """Note that everything after `since` and up to `upto` was dealt with, by work that is committed."""
        self._upto = upto
        if since == FROM_THE_FIRST:
            self._pace.note(began)


class Floors:
    """The memory of one process. `enabled` is false where time is not the server's, so that it may stand or jump."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._lanes: dict[Hashable, Lane] = {}
        self._in_flight: dict[str | None, tuple[InFlight, Pace]] = {}
        self._sweeps: dict[Hashable, Sweep] = {}
        self._promoted = Sweep()
        self._leading_tags: dict[tuple[str, ...], tuple[str, float]] = {}

    def leading_tag(self, tags: tuple[str, ...]) -> str | None:
        """Return which of several tags was the rarest a moment ago; None if that has to be found out (again)."""
        tag, until = self._leading_tags.get(tags, (None, 0.0))
        return tag if time.monotonic() < until else None

    def note_leading_tag(self, tags: tuple[str, ...], tag: str) -> None:
        if len(self._leading_tags) >= _MOST_LANES:
            self._leading_tags = {}
        self._leading_tags[tags] = (tag, time.monotonic() + _LEADING_TAG_HOLDS)

    def lane(self, kind: Hashable) -> Lane | None:
        if not self._enabled:
            return None
        lane = self._lanes.get(kind)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES:
                self._lanes = {}
            lane = self._lanes[kind] = Lane()
        return lane

    def in_flight(self, assignee_id: str | None, now: int) -> InFlight:
        """Return what is known of the jobs in flight, of one assignee or (None) of all."""
        known, pace = self._in_flight.get(assignee_id, (None, None))
        if not self._enabled or known is None or pace is None or known.floor.floor > now:
            return InFlight()
        return known._replace(is_full=pace.is_due(_IN_FLIGHT_SCAN_EVERY))

    def note_in_flight(self, assignee_id: str | None, seen: InFlight, full_since: float | None) -> None:
        """Remember what a scan found; `full_since` is when it began, if it began at the first job."""
        if not self._enabled:
            return
        if assignee_id not in self._in_flight and len(self._in_flight) >= _MOST_LANES:
            self._in_flight = {}
        pace = self._in_flight.get(assignee_id, (None, Pace()))[1]
        if full_since is not None:
            pace.note(full_since)
        self._in_flight[assignee_id] = (seen, pace)

    def sweep(self, kind: Hashable) -> Sweep:
        """Return the memory of a kind of sweep; a new one each time where time is not the server's."""
        return self._sweeps.setdefault(kind, Sweep()) if self._enabled else Sweep()

    def promoted_until(self) -> int:
        """Return the time up to which due jobs were moved already; below every time to read all of them."""
        return self._promoted.since(BEHIND_ALL) if self._enabled else FROM_THE_FIRST

    def note_promoted(self, since: int, now: int, began: float) -> None:
        """Remember that a committed pass moved everything that was due."""
        self._promoted.note(since, now, began)


class Scan(NamedTuple):
    """Where a claim begins, and how far it scans back; see `Lane`."""

    start: dict[int, Place]
    scan_back: int = FROM_THE_BEGINNING
    recent: int = _NOT_RECENT
    late_since: int = LOWEST[0]
    most_late: int = _LEAST_LATE

    @classmethod
    def of(cls, lane: Lane | None) -> Scan:
        """Return how a claim in this lane scans; without a lane from the beginning."""
        if lane is None:
            return cls({})
        return cls(lane.start(), lane.scan_back(), lane.recent(), lane.late_since, lane.most_late())

    def was_full(self, *, is_short: bool) -> bool:
        """Whether a claim with this scan has read from the beginning."""
        return not self.start or (is_short and self.scan_back == FROM_THE_BEGINNING)


def lanes(scan: Scan) -> dict[str, Any]:
    """Return the floors as the claim statements expect them: five lanes to scan, and five to scan back in."""
    if not scan.start:
        return _ALL_LANES
    places = [scan.start.get(priority, LOWEST) for priority in PRIORITIES] * 2
    return {
        "priorities": _TWICE,
        "floor_ats": numbers(place[0] for place in places),
        "floor_seqs": numbers(place[1] for place in places),
        "are_back": _THEN_BACK,
        "scan_back": scan.scan_back,
        "recent": scan.recent,
        "late_since": scan.late_since,
        "most_late": scan.most_late,
    }


def forward_lanes(scan: Scan) -> dict[str, Any]:
    """Return the floors for a statement that scans five lanes, and does not scan back."""
    places = [scan.start.get(priority, LOWEST) for priority in PRIORITIES]
    return {
        **_ALL_LANES,
        "floor_ats": numbers(place[0] for place in places),
        "floor_seqs": numbers(place[1] for place in places),
        "recent": scan.recent,
        "late_since": scan.late_since,
        "most_late": scan.most_late,
    }


_TWICE: Final = numbers(PRIORITIES * 2)
_THEN_BACK: Final = "{f,f,f,f,f,t,t,t,t,t}"
_ALL_LANES: Final = {
    "priorities": numbers(PRIORITIES),
    "floor_ats": numbers(LOWEST[0] for _ in PRIORITIES),
    "floor_seqs": numbers(LOWEST[1] for _ in PRIORITIES),
    "are_back": "{f,f,f,f,f}",
    "scan_back": 0,
    "recent": _NOT_RECENT,
    "most_late": _LEAST_LATE,
    "late_since": BEHIND_ALL,  # late jobs lie above the lowest place like all others
}
