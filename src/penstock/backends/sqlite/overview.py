"""What `Backend.overview` is made of, read inside one transaction."""

from __future__ import annotations

from typing import Any, Final

import apsw

from penstock.backends.contract.overview import MAX_RELEASED
from penstock.backends.engine.store import Counted, Owner
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.owners import OWNERS
from penstock.backends.sqlite.reading import RELEASED

__all__ = ["read_overview"]

_HEAD: Final = """SELECT
    (SELECT max(number) FROM migration),
    (SELECT value FROM setting WHERE name = 'blocked'),
    (SELECT value FROM setting WHERE name = 'folded'),
    (SELECT max(seq) FROM journal)"""
_BY_TYPE: Final = """SELECT type, status, sum(jobs), sum(entered) FROM (
    SELECT type, status, jobs, entered FROM type_stat
    UNION ALL
    SELECT type, status, sum(jobs), sum(entered) FROM type_delta WHERE seq > ? GROUP BY type, status)
GROUP BY type, status"""
_LEVELS: Final = " UNION ALL ".join(f"SELECT {level} AS priority" for level in range(5))
# From one type to the next, and in each from the first of one priority to the first of the next: what is walked through
# is only what is counted.
_READY: Final = f"""WITH RECURSIVE found (value) AS (
    SELECT (SELECT type FROM job INDEXED BY job_ready_type WHERE gate = 0 ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT type FROM job INDEXED BY job_ready_type WHERE gate = 0 AND type > found.value ORDER BY type LIMIT 1)
    FROM found WHERE found.value IS NOT NULL),
level (priority) AS ({_LEVELS})
SELECT value,
    (SELECT count(*) FROM (
        SELECT 1 FROM job INDEXED BY job_ready_type WHERE gate = 0 AND type = found.value LIMIT :most)),
    (SELECT min((
        SELECT ready_at FROM job INDEXED BY job_ready_type
        WHERE gate = 0 AND type = found.value AND priority = level.priority
        ORDER BY order_at, seq LIMIT 1)) FROM level)
FROM found
WHERE value IS NOT NULL"""
# Due, but not promoted yet.
_DUE: Final = "SELECT type, count(*), min(due_at) FROM ({}) GROUP BY type".format(
    " UNION ALL ".join(
        f"SELECT * FROM (SELECT type, due_at FROM job INDEXED BY job_delayed"
        f" WHERE gate = 1 AND priority = {level} AND due_at <= :now ORDER BY due_at, seq LIMIT :most)"
        for level in range(5)
    )
)
_DELAYED: Final = "SELECT count(*) FROM ({} LIMIT :most)".format(
    " UNION ALL ".join(
        f"SELECT 1 FROM job INDEXED BY job_delayed WHERE gate = 1 AND priority = {level} AND due_at > :now"
        for level in range(5)
    )
)
_HELD: Final = "SELECT owner, count(*) FROM job INDEXED BY job_owner WHERE owner IS NOT NULL GROUP BY owner"
_RELEASED: Final = f"SELECT type, count(*) FROM (SELECT type FROM {RELEASED} LIMIT :most) GROUP BY type"
_DELIVERIES: Final = """SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM delivery INDEXED BY delivery_due WHERE due_at IS NOT NULL LIMIT :most)),
    (SELECT count(*) FROM (
        SELECT 1 FROM delivery INDEXED BY delivery_given_up WHERE due_at IS NULL LIMIT :most))"""


def read_overview(cursor: apsw.Cursor, now: int, most: int) -> tuple[Counted, int]:
    """Return what was counted, and how many journal rows are not folded yet."""
    ((version, blocked, folded, last),) = fetch(cursor, _HEAD)
    parameters: dict[str, Any] = {"now": now, "most": most}
    counted = Counted(
        now=now,
        version=version,
        is_blocked=bool(blocked),
        by_type=fetch(cursor, _BY_TYPE, (folded,)),
        ready=[*fetch(cursor, _READY, {"most": most}), *fetch(cursor, _DUE, parameters)],
        delayed=fetch(cursor, _DELAYED, parameters)[0][0],
        owners=[Owner(*values) for values in fetch(cursor, OWNERS)],
        held=dict(fetch(cursor, _HELD)),
        deliveries=fetch(cursor, _DELIVERIES, {"most": most})[0],
        released=dict(fetch(cursor, _RELEASED, {"most": MAX_RELEASED})),
    )
    return counted, (last or 0) - folded
