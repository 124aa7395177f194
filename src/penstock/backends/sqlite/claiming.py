"""Claims: select from the ready set, with payloads, then assign what was selected.

The selection is driven by the narrowest index at hand: the key, then the rarest tag, then the types, then the whole
ready set in order. Its text is put together from the fragments in this file; values are parameters. Two statements are
faster than one UPDATE … RETURNING, which builds a table of all it returns (9 against 13 µs per job).

The selection is returned as one row, a JSON array. The GIL is released at every step of a query: with one row per job, a
claim beside a busy thread waited for that thread a thousand times.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import apsw
import msgspec

from penstock.backends.engine.rows import FIRST_CLAIM_COLUMNS, IS_USUAL, damage_named, first_claims
from penstock.backends.engine.store import Claim, claim_change, emit, jobs_of
from penstock.backends.sqlite.connection import fetch
from penstock.backends.sqlite.statements import statement
from penstock.backends.sqlite.transaction_base import BaseTransaction, counted, json_array
from penstock.job import Job

__all__ = ["ClaimingTransaction"]

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
_FOUND_NAMES: Final = ", ".join(f"c{n}" for n in range(len(_FOUND)))
_FOUND_LIST: Final = ", ".join(f"{text} AS c{n}" for n, text in enumerate(_FOUND))
_PAYLOADS: Final = "SELECT seq, data FROM payload WHERE seq IN (SELECT value FROM json_each(?))"
# Where a selected row has them.
_PAYLOAD: Final = 2
FOUND_STATUS: Final = 3
FOUND_TAGS: Final = 4 + FIRST_CLAIM_COLUMNS.index("tags")
FOUND_TYPE: Final = 4 + FIRST_CLAIM_COLUMNS.index("type")
_ASSIGN: Final = statement("claim_assign")
_OTHER_TAG: Final = (
    " AND EXISTS (SELECT 1 FROM job_tag AS t WHERE t.tag = :tag{number} AND t.seq = {table}.seq)"
)
_PRIORITIES: Final = range(5)
_DUE: Final = (
    "SELECT seq, priority, due_at FROM job INDEXED BY job_delayed"
    " WHERE gate = 1 AND priority = {level} AND due_at <= ?1"
)
_PROMOTE: Final = statement(
    "promote",
    due=" UNION ALL ".join(
        f"SELECT * FROM ({_DUE.format(level=level)} ORDER BY due_at, seq LIMIT ?2)" for level in _PRIORITIES
    ),
)
_ANY_DUE: Final = "SELECT " + " OR ".join(f"EXISTS ({_DUE.format(level=level)})" for level in _PRIORITIES)


class ClaimingTransaction(BaseTransaction):
    """The primitives of claiming."""

    def promote(self, limit: int) -> int:
        if not self.fetch_value(_ANY_DUE, (self.now,)):
            return 0
        rows = self.fetch_rows(_PROMOTE, (self.now, limit))
        emit(self, rows, verb="available")
        return len(rows)

    def claim(self, claim: Claim) -> list[Job]:
        if len(claim.tags) > 1 and claim.key is None:
            first, rest = self.rarest_first(claim.tags, "ready_tag")
            claim = claim._replace(tags=(first, *rest))
        with damage_named():
            found = select_candidates(self.cursor, claim)
        if not found:
            return []
        self.cursor.execute(
            _ASSIGN,
            {
                "assignee_id": claim.assignee_id,
                "now": self.now,
                "owner": claim.owner,
                "seqs": json_array([seq for seq, *_ in found]),
            },
        )
        self.add_journaled(
            [
                ((type_, tags, source, "running", "claim", 0), count)
                for (type_, tags, source), count in counted(
                    [(each[FOUND_TYPE], each[FOUND_TAGS], each[FOUND_STATUS]) for each in found]
                )
            ]
        )
        jobs = self._claimed(found, claim.assignee_id)
        if self.has_listeners:
            self.changes += [
                claim_change(job, status) for job, (_, _, _, status, *_) in zip(jobs, found, strict=True)
            ]
        return jobs

    def _claimed(self, found: list[list[Any]], assignee_id: str) -> list[Job]:
        """Return the claimed jobs; only those with an earlier attempt are read whole."""
        with damage_named():
            first_claim = first_claims(assignee_id, self.now)
            jobs = {
                seq: first_claim(payload, *columns)
                for seq, is_usual, payload, _, *columns in found
                if is_usual
            }
        self.first_claims |= jobs
        if len(jobs) == len(found):
            return list(jobs.values())
        others = list(self.rows_by_seq([seq for seq, *_ in found if seq not in jobs]).values())
        for row, job in zip(others, jobs_of(self, others), strict=True):
            jobs[row.seq] = job
        return [jobs[seq] for seq, *_ in found]

    def renew(self, assignee_id: str, attempts: dict[str, int] | None) -> int:
        held = self.rows_in_flight(assignee_id) if attempts is None else self.rows(attempts).values()
        mine = [
            row
            for row in held
            if row.is_in_flight
            and row.assignee_id == assignee_id
            and (attempts is None or attempts[row.id] == row.attempt)
        ]
        renewed = [
            (self.now + row.visibility, row.seq)
            for row in mine
            if row.owner is None and row.visibility is not None
        ]
        self.cursor.executemany("UPDATE job SET lease_until = ? WHERE seq = ?", renewed)
        return len(mine)


def select_candidates(cursor: apsw.Cursor, claim: Claim) -> list[list[Any]]:
    """Return the jobs for a claim, in order; `claim.tags` begin with the rarest.

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
    return statement(
        "claim_select",
        found_names=_FOUND_NAMES,
        found=_FOUND_LIST,
        candidates=_candidates(tags, types, has_key),
    )


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
