"""Selections of jobs, by the indexes of this store; see `penstock.backends.engine.selecting`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw

from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.reading import places_of
from penstock.backends.sqlite.tags import rarest_tag
from penstock.job import JobStatus

__all__ = ["SqliteSelectionReader", "ids_from"]

_TABLES: Final = {
    "job": "job",
    "job_tag": "job_tag",
    "tagged_job": "job_tag CROSS JOIN job ON job.seq = job_tag.seq",
}


class SqliteSelectionReader:
    """Reads what a selection needs from one connection."""

    find_text = "instr"

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor

    def fetch(self, query: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        used = set(re.findall(r":(\w+)", query))
        given = {name: value for name, value in parameters.items() if name in used}
        return fetch(self._cursor, query.format_map(_TABLES), given)

    def rarest_tag(self, tags: Sequence[str]) -> str:
        return rarest_tag(self._cursor, tags, "job_tag")

    def status_counts(self) -> dict[str, int]:
        return dict(fetch(self._cursor, "SELECT status, jobs FROM stat WHERE tag = ''"))

    def places(self, status: JobStatus) -> Sequence[str]:
        return [f"job INDEXED BY {each}" for each in places_of(status)]


def ids_from(cursor: apsw.Cursor, first: str, limit: int) -> list[str]:
    """Return ids from `first` on, in their own order."""
    query = "SELECT id FROM job WHERE id >= ? ORDER BY id LIMIT ?"
    return [job_id for (job_id,) in fetch(cursor, query, (first, limit))]
