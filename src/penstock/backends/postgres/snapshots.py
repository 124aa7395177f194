"""Where the next scan along a growing number begins, beside transactions that are still open.

A transaction draws numbers (ids of the inbox, times of claims) before it commits, so a reader that goes on from the
highest number it saw would miss what commits later. A floor says: no row at or below it is unknown, except those of
transactions that were open at the last scan. It remembers these by xid, each with the place from which to scan once it
has ended. Only transactions that write have an xid: one that holds an old snapshot keeps no floor down.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock.backends.sql_files import read_sql

__all__ = ["START", "Floor"]

#: The place after which a statement that is given `Floor.parameters` begins.
START: Final = read_sql(__package__, "floor_start")


class Floor(NamedTuple):
    """Where the next scan begins."""

    floor: int = 0
    stragglers: tuple[tuple[str, int], ...] = ()

    def parameters(self) -> dict[str, Any]:
        return {
            "floor": self.floor,
            "xids": [xid for xid, _ in self.stragglers],
            "places": [place for _, place in self.stragglers],
        }

    def risen(self, last: int, snapshot: str, own_xid: int) -> Floor:
        """Return the floor after everything up to `last` that `snapshot` shows was seen.

        Open transactions are those the snapshot lists, and those from its upper end on: that end is the last
        transaction completed, not the last one begun. A number up to `last` was drawn by a transaction with an xid below
        `own_xid`.
        """
        _, upper, listed = snapshot.split(":")
        open_xids = listed.split(",") if listed else []
        open_xids += map(str, range(int(upper), own_xid))
        known = dict(self.stragglers)
        return Floor(last, tuple((xid, known.get(xid, self.floor)) for xid in open_xids))
