"""What `Backend.overview` is made of, read inside one transaction."""

from __future__ import annotations

from typing import Any, Final

import apsw

from penstock.backends.contract.overview import MAX_RELEASED
from penstock.backends.engine.store import Counted, Owner
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.owners import OWNERS
from penstock.backends.sqlite.reading import RELEASED
from penstock.backends.sqlite.statements import statement

__all__ = ["read_overview"]

_HEAD: Final = statement("overview")
_BY_TYPE: Final = statement("type_counts")
_LEVELS: Final = " UNION ALL ".join(f"SELECT {level} AS priority" for level in range(5))
_READY: Final = statement("ready_types", levels=_LEVELS)
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
_DELIVERIES: Final = statement("count_deliveries")


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
