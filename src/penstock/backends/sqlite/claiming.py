"""The claim: select from the ready set, with payloads, then take what was selected.

The selection is driven by the narrowest index at hand: the key, then the rarest tag, then the types, then the whole
ready set in order. All text is put together from the fragments in this file; values are parameters. Two statements are
quicker than one UPDATE … RETURNING, which builds a table of all it returns (9 against 13 µs a job).

What is selected comes as one row, a JSON array. The interpreter's lock is given up at every step of a query and has to be
got back: with a row a job, a claim beside a busy thread waited for that thread a thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import apsw
import msgspec

from penstock.backends._rows import FIRST_CLAIM_COLUMNS, IS_USUAL
from penstock.backends._store import Claim
from penstock.backends.sqlite.connection import fetch

__all__ = ["FOUND_STATUS", "FOUND_TAGS", "FOUND_TYPE", "TAKE", "rarest_tag", "select_candidates"]

_ORDER: Final = "ORDER BY priority, order_at, seq LIMIT :limit"
#: Payloads up to this size come with their job, in hexadecimal; larger ones are read by themselves.
_SMALL: Final = 2_000
_FOUND: Final = (
    "job.seq",
    f"{IS_USUAL} AND result.seq IS NULL AND checkpoint.seq IS NULL",
    f"CASE WHEN length(payload.data) <= {_SMALL} THEN hex(payload.data) END",
    "job.status",
    *(f"job.{name}" for name in FIRST_CLAIM_COLUMNS),
    f"length(payload.data) > {_SMALL}",
)
_SELECT: Final = f"""SELECT json_group_array(json_array({", ".join(f"c{n}" for n in range(len(_FOUND)))})) FROM (
SELECT {", ".join(f"{text} AS c{n}" for n, text in enumerate(_FOUND))}
FROM ({{candidates}}) AS candidate
CROSS JOIN job ON job.seq = candidate.seq
LEFT JOIN payload ON payload.seq = job.seq
LEFT JOIN result ON result.seq = job.seq
LEFT JOIN checkpoint ON checkpoint.seq = job.seq
ORDER BY candidate.priority, candidate.order_at, candidate.seq)"""
_PAYLOADS: Final = "SELECT seq, data FROM payload WHERE seq IN (SELECT value FROM json_each(?))"
# Where a selected row has them.
_PAYLOAD: Final = 2
FOUND_STATUS: Final = 3
FOUND_TAGS: Final = 4 + FIRST_CLAIM_COLUMNS.index("tags")
FOUND_TYPE: Final = 4 + FIRST_CLAIM_COLUMNS.index("type")
TAKE: Final = """UPDATE OR FAIL job SET
    from_status = status, status = 'running', gate = NULL, verb = 'claim', n = n + 1, attempt = attempt + 1,
    assignee_id = :assignee, assigned_at = :now, attempt_started_at = :now, updated_at = :now,
    started_at = coalesce(started_at, :now), progress = 0, owner = :owner,
    description = CASE WHEN attempt = 0 THEN description END,
    lease_until = CASE WHEN :owner IS NULL THEN :now + visibility END,
    deadline_at = :now + execution, attempt_ready_at = ready_at
WHERE seq IN (SELECT value FROM json_each(:seqs))"""
_OTHER_TAG: Final = (
    " AND EXISTS (SELECT 1 FROM job_tag AS t WHERE t.tag = :tag{number} AND t.seq = {table}.seq)"
)
_FIRST_PROBE: Final = 64


def select_candidates(cursor: apsw.Cursor, claim: Claim) -> list[list[Any]]:
    """Return what a claim may take, in order; `claim.tags` begin with the rarest.

    Each is the job's insertion number, whether `first_claims` can build it, its payload, its status, and the columns of
    `first_claims`.
    """
    found: list[list[Any]] = msgspec.json.decode(fetch(cursor, *_selection(claim))[0][0])
    large = []
    for each in found:
        if each.pop():
            large.append(each[0])
        else:
            each[_PAYLOAD] = bytes.fromhex(each[_PAYLOAD] or "")
    if large:
        payloads = dict(fetch(cursor, _PAYLOADS, (msgspec.json.encode(large).decode(),)))
        for each in found:
            if each[0] in payloads:
                each[_PAYLOAD] = payloads[each[0]]
    return found


def _selection(claim: Claim) -> tuple[str, dict[str, Any]]:
    parameters: dict[str, Any] = {"limit": claim.limit}
    parameters |= {f"tag{number}": tag for number, tag in enumerate(claim.tags)}
    if claim.types is not None:
        parameters |= {f"type{number}": type_ for number, type_ in enumerate(claim.types)}
    if claim.key is not None:
        parameters["key"] = claim.key
    types = None if claim.types is None else len(claim.types)
    return _statement(len(claim.tags), types, claim.key is not None), parameters


@lru_cache(maxsize=256)
def _statement(tags: int, types: int | None, has_key: bool) -> str:
    return _SELECT.format(candidates=_candidates(tags, types, has_key))


def _candidates(tags: int, types: int | None, has_key: bool) -> str:
    if has_key:
        return (
            "SELECT priority, order_at, seq FROM job INDEXED BY job_key_turn"
            " WHERE key = :key AND key IS NOT NULL AND closed = 0 AND gate IS NOT 2 AND gate = 0"
            f"{_of_types(types)}{_with_tags(range(tags), 'job')} {_ORDER}"
        )
    if tags:
        typed = (
            ""
            if types is None
            else f" AND EXISTS (SELECT 1 FROM job WHERE job.seq = ready_tag.seq{_of_types(types)})"
        )
        return (
            "SELECT priority, order_at, seq FROM ready_tag"
            f" WHERE tag = :tag0{typed}{_with_tags(range(1, tags), 'ready_tag')} {_ORDER}"
        )
    if types is None:
        return f"SELECT priority, order_at, seq FROM job INDEXED BY job_ready WHERE gate = 0 {_ORDER}"
    of_one_type = " UNION ALL ".join(
        "SELECT * FROM (SELECT priority, order_at, seq FROM job INDEXED BY job_ready_type"
        f" WHERE gate = 0 AND type = :type{number} {_ORDER})"
        for number in range(types)
    )
    return f"SELECT priority, order_at, seq FROM ({of_one_type}) {_ORDER}"


def _of_types(types: int | None) -> str:
    if types is None:
        return ""
    return f" AND job.type IN ({', '.join(f':type{number}' for number in range(types))})"


def _with_tags(numbers: range, table: str) -> str:
    return "".join(_OTHER_TAG.format(number=number, table=table) for number in numbers)


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
