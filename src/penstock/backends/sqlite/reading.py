"""Lists, counts and statistics, for people and their tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import apsw

from penstock.backends.engine.rows import COLUMNS
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.tags import rarest_tag
from penstock.errors import JobNotFoundError

__all__ = [
    "RELEASED",
    "count_by_tag",
    "count_by_tags",
    "count_released",
    "places_of",
    "select_page",
]

_COLUMNS: Final = ", ".join(f"job.{name}" for name in COLUMNS)
# Where the jobs of a status are, in the words of the indexes' own conditions; those of a status not named here have ended.
_ENDED: Final = ("job_ended WHERE closed = 1",)
_IN_FLIGHT: Final = ("job_assignee WHERE status IN ('running', 'cancelling')",)
_PLACES: Final = {
    "initial_pending": (
        "job_ready WHERE gate = 0",
        "job_delayed WHERE gate = 1",
        "job_waiting WHERE gate >= 2",
    ),
    "failed_retry": ("job_retrying WHERE status = 'failed_retry'",),
    "unknown_retry": ("job_retrying WHERE status = 'unknown_retry'",),
    "running": _IN_FLIGHT,
    "cancelling": _IN_FLIGHT,
}
# Jobs that are looked at one after the other for each one wanted, before an index is: where every hundredth has the
# status, that is quicker, and an index that is not in this order would be walked to its end for every page.
_LOOKED_AT: Final = 100
RELEASED: Final = "job INDEXED BY job_released WHERE status = 'failed_retry' AND verb = 'release'"
Counts = list[tuple[str, int, int]]


def count_keyed(cursor: apsw.Cursor, key: str | None, type: str | None) -> int:
    """Count the waiting jobs of a key, or of all keys."""
    found = fetch(cursor, f"SELECT count(*) FROM job {_waiting(key, type)}", {"key": key, "type": type})
    return int(found[0][0])


def list_keyed(cursor: apsw.Cursor, key: str | None, type: str | None, upto: int, limit: int) -> list[str]:
    """Return ids of waiting jobs of a key, or of all keys, in no order."""
    query = f"SELECT id FROM job {_waiting(key, type)} AND seq <= :upto LIMIT :limit"
    given = {"key": key, "type": type, "upto": upto, "limit": limit}
    return [job_id for (job_id,) in fetch(cursor, query, given)]


def _waiting(key: str | None, type: str | None) -> str:
    # Written so that the index of unfinished jobs by key serves it.
    return (
        f"INDEXED BY job_key WHERE {'key IS NOT NULL' if key is None else 'key = :key'} AND closed = 0"
        " AND status NOT IN ('running', 'cancelling')" + ("" if type is None else " AND type = :type")
    )


def select_page(
    cursor: apsw.Cursor,
    status: str | None,
    type: str | None,
    tags: Sequence[str],
    after: str | None,
    limit: int,
    *,
    newest: bool,
) -> list[tuple[Any, ...]]:
    """Return rows in insertion order, or the other way round, driven by the rarest tag if there are tags."""
    way = _BACKWARDS if newest else _FORWARDS
    start = _start(cursor, after, way)
    if tags:
        return _tagged_page(cursor, status, type, tags, start, limit, way)
    if status is None:
        return _rows_between(cursor, status, type, start, way.last, limit, way)
    reached = start + way.step * _LOOKED_AT * limit
    found = _rows_between(cursor, status, type, start, reached, limit, way)
    if len(found) < limit:
        found += _rows_of_status(cursor, status, type, reached, limit - len(found), way)
    return found


class _Way(NamedTuple):
    """Which way a listing goes, in words of SQL."""

    step: int
    beyond: str
    upto: str
    order: str
    end: str
    last: int


_FORWARDS: Final = _Way(1, ">", "<=", "", "min", 2**63 - 1)
_BACKWARDS: Final = _Way(-1, "<", ">=", " DESC", "max", 0)


def _start(cursor: apsw.Cursor, after: str | None, way: _Way) -> int:
    """Return the number after which a page begins."""
    if after is None:
        ((first,),) = fetch(cursor, f"SELECT {way.end}(seq) FROM job")
        return 0 if first is None else int(first) - way.step
    found = fetch(cursor, "SELECT seq FROM job WHERE id = ?", (after,))
    if not found:
        raise JobNotFoundError(after)
    return int(found[0][0])


def _rows_between(
    cursor: apsw.Cursor,
    status: str | None,
    type: str | None,
    start: int,
    end: int,
    limit: int,
    way: _Way,
) -> list[tuple[Any, ...]]:
    """Look at the jobs beyond `start` and up to `end`, one after the other."""
    return fetch(
        cursor,
        f"SELECT {_COLUMNS} FROM job WHERE seq {way.beyond} :start AND seq {way.upto} :end"
        " AND (:status IS NULL OR status = :status) AND (:type IS NULL OR type = :type)"
        f" ORDER BY seq{way.order} LIMIT :limit",
        {"start": start, "end": end, "status": status, "type": type, "limit": limit},
    )


def _rows_of_status(
    cursor: apsw.Cursor, status: str, type: str | None, start: int, limit: int, way: _Way
) -> list[tuple[Any, ...]]:
    """Find the jobs of a status beyond `start` by its indexes, which are walked whole: for what is rare."""
    wanted = f"status = :status AND seq {way.beyond} :start" + ("" if type is None else " AND type = :type")
    places = " UNION ALL ".join(
        f"SELECT seq FROM job INDEXED BY {place} AND {wanted}" for place in places_of(status)
    )
    query = (
        f"SELECT {_COLUMNS} FROM ({places} ORDER BY seq{way.order} LIMIT :limit) AS found"
        f" CROSS JOIN job ON job.seq = found.seq ORDER BY found.seq{way.order}"
    )
    given = {"status": status, "type": type, "start": start, "limit": limit}
    return fetch(cursor, query, _used(query, given))


def _tagged_page(
    cursor: apsw.Cursor,
    status: str | None,
    type: str | None,
    tags: Sequence[str],
    start: int,
    limit: int,
    way: _Way,
) -> list[tuple[Any, ...]]:
    parameters: dict[str, Any] = {"start": start, "status": status, "type": type, "limit": limit}
    rarest = parameters["rarest"] = rarest_tag(cursor, tags, "job_tag")
    also = ""
    for number, tag in enumerate(tag for tag in tags if tag != rarest):
        also += f" AND EXISTS (SELECT 1 FROM job_tag AS t WHERE t.tag = :tag{number} AND t.seq = job.seq)"
        parameters[f"tag{number}"] = tag
    return fetch(
        cursor,
        f"SELECT {_COLUMNS} FROM job_tag CROSS JOIN job ON job.seq = job_tag.seq"
        f" WHERE job_tag.tag = :rarest AND job_tag.seq {way.beyond} :start{also}"
        " AND (:status IS NULL OR job.status = :status) AND (:type IS NULL OR job.type = :type)"
        f" ORDER BY job_tag.seq{way.order} LIMIT :limit",
        parameters,
    )


def _used(query: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if f":{name}" in query}


def places_of(status: str) -> tuple[str, ...]:
    """Return the indexes that lead to the jobs of a status, each with its condition."""
    return _PLACES.get(status, _ENDED)


def count_by_tag(cursor: apsw.Cursor, tag: str) -> tuple[Counts, int]:
    """Return (status, jobs, retries) of one tag ('' is all jobs), and how many journal rows are not folded yet."""
    folded, last = fetch(
        cursor, "SELECT (SELECT value FROM setting WHERE name = 'folded'), coalesce(max(seq), 0) FROM journal"
    )[0]
    tagged = "" if not tag else " AND EXISTS (SELECT 1 FROM json_each(tags) WHERE value = :tag)"
    counts = fetch(
        cursor,
        "SELECT status, sum(jobs), sum(retries) FROM ("
        " SELECT status, jobs, retries FROM stat WHERE tag = :tag"
        f" UNION ALL SELECT status, jobs, retries FROM stat_delta WHERE seq > :folded{tagged})"
        " GROUP BY status",
        {"tag": tag, "folded": folded},
    )
    return counts, last - folded


def count_by_tags(cursor: apsw.Cursor, tags: Sequence[str]) -> Counts:
    """Return (status, jobs, retries) of the jobs that have several tags, counted one by one from the rarest."""
    rarest = rarest_tag(cursor, tags, "job_tag")
    others = [tag for tag in tags if tag != rarest]
    also = " AND EXISTS (SELECT 1 FROM job_tag AS t WHERE t.tag = ? AND t.seq = job_tag.seq)" * len(others)
    return fetch(
        cursor,
        "SELECT status, count(*), sum(retry_count) FROM job"
        f" WHERE seq IN (SELECT seq FROM job_tag WHERE tag = ?{also}) GROUP BY status",
        (rarest, *others),
    )


def count_released(cursor: apsw.Cursor, tags: Sequence[str], most: int) -> int:
    """Count the jobs with all tags that were released, among the first `most` of them."""
    tagged = " AND EXISTS (SELECT 1 FROM job_tag AS t WHERE t.tag = ? AND t.seq = found.seq)" * len(tags)
    query = f"SELECT count(*) FROM (SELECT seq FROM {RELEASED} LIMIT ?) AS found WHERE true{tagged}"
    return int(fetch(cursor, query, (most, *tags))[0][0])
