"""Reads of committed jobs, each one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.backends.engine.rows import COLUMNS, Row
from penstock.backends.engine.store import Blobs
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.statements import NOW, Statements
from penstock.backends.postgres.tags import rarest_tag
from penstock.backends.postgres.transaction_base import BaseTransaction
from penstock.errors import JobNotFoundError
from penstock.job import FINAL

__all__ = [
    "commit_status",
    "count_tagged",
    "fetch_jobs",
    "list_jobs",
]

_WIDTH: Final = len(COLUMNS)
_SELECT: Final = (
    "SELECT {job_columns}, payload.data, result.data, checkpoint.data, " + NOW + " FROM {schema}.job"
    " LEFT JOIN {schema}.payload ON payload.seq = job.seq"
    " LEFT JOIN {schema}.result ON result.seq = job.seq"
    " LEFT JOIN {schema}.checkpoint ON checkpoint.seq = job.seq "
)
_HAS_TAGS: Final = " AND job.tags::jsonb ?& %(tags)s::text[]"


def fetch_jobs(
    connection: BoundedConnection, sql: Statements, ids: Sequence[str]
) -> tuple[list[tuple[Row, Blobs]], int]:
    """Return the jobs that exist, and the server's time."""
    query = sql.text(_SELECT + "WHERE job.id = ANY(%(ids)s::text[])")
    return _jobs(connection, query, {"ids": list(ids)})


def count_keyed(connection: BoundedConnection, sql: Statements, key: str | None, type: str | None) -> int:
    """Count the waiting jobs of a key, or of all keys."""
    query = sql.text("SELECT count(*) FROM {schema}.job " + _waiting(key, type))
    found = connection.execute(query, {"key": key, "type": type}).fetchone()
    return 0 if found is None else int(found[0])


def list_keyed(
    connection: BoundedConnection, sql: Statements, key: str | None, type: str | None, upto: int, limit: int
) -> list[str]:
    """Return ids of waiting jobs of a key, or of all keys, in no order."""
    query = sql.text(
        "SELECT id FROM {schema}.job " + _waiting(key, type) + " AND seq <= %(upto)s LIMIT %(limit)s"
    )
    given = {"key": key, "type": type, "upto": upto, "limit": limit}
    return [job_id for (job_id,) in connection.execute(query, given)]


def _waiting(key: str | None, type: str | None) -> str:
    # Written so that the index of unfinished jobs by key serves it.
    return (
        f"WHERE {'key IS NOT NULL' if key is None else 'key = %(key)s'} AND closed = 0"
        " AND status NOT IN ('running', 'cancelling')" + ("" if type is None else " AND type = %(type)s")
    )


def list_jobs(
    connection: BoundedConnection,
    sql: Statements,
    *,
    status: str | None,
    type: str | None,
    tags: Sequence[str],
    after: str | None,
    limit: int,
    newest: bool,
) -> tuple[list[tuple[Row, Blobs]], int]:
    """Return a page in insertion order, or the other way round, and the server's time."""
    beyond, direction, begin = ("<", " DESC", 2**63 - 1) if newest else (">", "", 0)
    if after is not None:
        found = connection.execute(
            sql.text("SELECT seq FROM {schema}.job WHERE id = %(id)s"), {"id": after}
        ).fetchone()
        if found is None:
            raise JobNotFoundError(after)
        begin = found[0]
    conditions = ""
    parameters: dict[str, Any] = {"begin": begin, "limit": limit}
    if status is not None:
        # What has ended is said to be closed as well: the index that knows the statuses of those holds no others.
        conditions += " AND job.status = %(status)s" + (" AND job.closed = 1" if status in FINAL else "")
        parameters["status"] = status
    if type is not None:
        conditions += " AND job.type = %(type)s"
        parameters["type"] = type
    source, where = _SELECT, "WHERE"
    order = "job.seq"
    if tags:
        # From the first tag's rows on, which lie in insertion order.
        source = _SELECT.replace(
            " FROM {schema}.job", " FROM {schema}.job_tag AS first JOIN {schema}.job ON job.seq = first.seq"
        )
        where = "WHERE first.tag = %(first)s AND"
        order = "first.seq"
        parameters["first"] = tags[0]
        if len(tags) > 1:
            conditions += _HAS_TAGS
            parameters["tags"] = list(tags[1:])
    query = (
        f"{source}{where} {order} {beyond} %(begin)s{conditions} ORDER BY {order}{direction} LIMIT %(limit)s"
    )
    return _jobs(connection, sql.text(query), parameters)


def count_tagged(connection: BoundedConnection, sql: Statements, tags: Sequence[str]) -> dict[str, int]:
    """Count the jobs that have all tags, by status; '' is their retries."""
    found = connection.execute(
        sql.text(
            "SELECT job.status, count(*), sum(job.retry_count)"
            " FROM {schema}.job_tag AS first CROSS JOIN LATERAL ("
            "SELECT status, retry_count, tags FROM {schema}.job WHERE job.seq = first.seq OFFSET 0) AS job"
            " WHERE first.tag = %(first)s" + _HAS_TAGS + " GROUP BY job.status"
        ),
        {"first": rarest_tag(connection.execute, sql.text, tags, "job_tag"), "tags": list(tags)},
    ).fetchall()
    counts = {status: int(count) for status, count, _ in found}
    return {**counts, "": sum(int(retries) for _, _, retries in found)}


def count_released(connection: BoundedConnection, sql: Statements, tags: Sequence[str], most: int) -> int:
    """Count the released jobs with all tags, among the first `most` of them."""
    query = (
        "SELECT count(*) FROM (SELECT tags FROM {schema}.job"
        " WHERE status = 'failed_retry' AND verb = 'release' LIMIT %(most)s) AS job WHERE true"
    )
    found = connection.execute(
        sql.text(query + (_HAS_TAGS if tags else "")), {"most": most, "tags": list(tags)}
    ).fetchone()
    return 0 if found is None else int(found[0])


def commit_status(connection: BoundedConnection, tx: BaseTransaction, xid: str) -> str | None:
    """Return "committed", "aborted", or None while the server does not know.

    The commit may still be under way, in a session that has not noticed that its client is gone. So an xid counts as
    lost only if the server has yet to give it out, which its own newest one tells; a snapshot's end does not.

    A server that crashed may give an xid that never reached its disk to another transaction, so a committed xid counts
    only if something it wrote is there.
    """
    found = connection.execute(
        "SELECT CASE WHEN %(xid)s::xid8 >= pg_current_xact_id() THEN 'aborted'"
        " ELSE pg_xact_status(%(xid)s::xid8) END",
        {"xid": xid},
    ).fetchone()
    status = None if found is None else found[0]
    if status == "committed" and tx.witness is not None:
        job_seq, n, at = tx.witness
        seen = connection.execute(
            tx.text(
                "SELECT FROM {schema}.journal WHERE job_seq = %(seq)s AND n = %(n)s AND recorded_at = %(at)s"
                " UNION ALL SELECT FROM {schema}.journal_inbox"
                " WHERE job_seq = %(seq)s AND n = %(n)s AND recorded_at = %(at)s"
            ),
            {"seq": job_seq, "n": n, "at": at},
        ).fetchone()
        return "committed" if seen is not None else "aborted"
    return status if status in ("committed", "aborted") else None


def _jobs(
    connection: BoundedConnection, query: str, parameters: dict[str, Any]
) -> tuple[list[tuple[Row, Blobs]], int]:
    found = connection.execute(query, parameters).fetchall()
    jobs = [
        (Row(*values[:_WIDTH]), Blobs(values[_WIDTH] or b"", values[_WIDTH + 1], values[_WIDTH + 2]))
        for values in found
    ]
    return jobs, found[0][-1] if found else 0
