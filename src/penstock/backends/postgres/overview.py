"""What `Backend.overview` is made of, read inside one snapshot."""

from __future__ import annotations

from typing import Final

from penstock.backends.contract.overview import MAX_RELEASED
from penstock.backends.engine.store import Counted, Owner
from penstock.backends.postgres.connection import BoundedConnection
from penstock.backends.postgres.journal import Journal
from penstock.backends.postgres.statements import NOW, Statements

__all__ = ["OWNERS", "read_overview"]

#: In the order of `Owner`.
OWNERS: Final = "SELECT id, host, pid, started, beat_at, opened_at, intakes FROM {schema}.owner"
_HEAD: Final = (
    "SELECT (SELECT max(number) FROM {schema}.migration), (SELECT blocked FROM {schema}.control), " + NOW
)
_HELD: Final = """SELECT owner, count(*) FROM {schema}.job
WHERE status IN ('running', 'cancelling') AND owner IS NOT NULL GROUP BY owner"""
_RELEASED: Final = """SELECT type, count(*) FROM (
    SELECT type FROM {schema}.job WHERE status = 'failed_retry' AND verb = 'release' LIMIT %(most)s) AS released
GROUP BY type"""
_DELIVERIES: Final = """SELECT
    (SELECT count(*) FROM (SELECT FROM {schema}.delivery WHERE due_at IS NOT NULL LIMIT %(most)s) AS waiting),
    (SELECT count(*) FROM (SELECT FROM {schema}.delivery WHERE due_at IS NULL LIMIT %(most)s) AS given_up)"""


def read_overview(
    connection: BoundedConnection, sql: Statements, journal: Journal, own_now: int | None, most: int
) -> tuple[Counted, bool]:
    """Return what was counted, and whether folding would pay."""
    with connection.transaction():
        # One snapshot for all: else what moves between two statements is counted twice or not at all.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        version, blocked, server_now = connection.execute(sql.text(_HEAD)).fetchone() or (0, False, 0)
        now = server_now if own_now is None else own_now
        parameters = {"now": now, "most": most}
        by_type, is_long = journal.type_counts(connection)
        ready = connection.execute(sql["ready_types"], parameters).fetchall()
        due = connection.execute(sql["due_types"], parameters).fetchall()
        delayed = connection.execute(sql["count_delayed"], parameters).fetchone() or (0,)
        deliveries = connection.execute(sql.text(_DELIVERIES), parameters).fetchone() or (0, 0)
        counted = Counted(
            now=now,
            version=version,
            is_blocked=blocked,
            by_type=by_type,
            ready=[(type_, count, since) for type_, count, since in (*ready, *due)],
            delayed=delayed[0],
            owners=[Owner(*values) for values in connection.execute(sql.text(OWNERS))],
            held=dict(connection.execute(sql.text(_HELD)).fetchall()),
            deliveries=(deliveries[0], deliveries[1]),
            released=dict(connection.execute(sql.text(_RELEASED), {"most": MAX_RELEASED}).fetchall()),
        )
    return counted, is_long
