"""Selects the tag to search by first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw

from penstock.backends.sqlite.connection import fetch

__all__ = ["rarest_tag"]

_FIRST_PROBE: Final = 64


def rarest_tag(cursor: apsw.Cursor, tags: Sequence[str], table: str) -> str:
    """Return the tag with the fewest rows. Costs no more than a few times that number of rows."""
    probe = _FIRST_PROBE
    while True:
        counts = {
            tag: fetch(
                cursor, f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE tag = ? LIMIT ?)", (tag, probe)
            )[0][0]
            for tag in tags
        }
        rarest = min(counts, key=lambda tag: counts[tag])
        if counts[rarest] < probe:
            return rarest
        probe *= 8
