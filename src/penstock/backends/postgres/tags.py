"""Which of several tags to begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

__all__ = ["rarest_tag"]

_FIRST_PROBE: Final = 64


def rarest_tag(
    execute: Callable[[str, dict[str, Any]], psycopg.Cursor[tuple[Any, ...]]],
    text: Callable[[str], str],
    tags: Sequence[str],
    table: str,
) -> str:
    """Return the tag with the fewest rows in `table`. Costs no more than a few times that number of rows."""
    if len(tags) == 1:
        return tags[0]
    query = text(
        "SELECT wanted.tag, (SELECT count(*) FROM (SELECT FROM {schema}." + table + " AS known"
        " WHERE known.tag = wanted.tag LIMIT %(probe)s) AS found) FROM unnest(%(tags)s::text[]) AS wanted (tag)"
    )
    probe = _FIRST_PROBE
    while True:
        found = execute(query, {"tags": list(tags), "probe": probe}).fetchall()
        rarest, count = min(found, key=lambda each: each[1])
        if count < probe:
            return str(rarest)
        probe *= 8
