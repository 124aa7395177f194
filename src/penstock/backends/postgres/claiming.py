"""Claims: which statement serves which filters, and from where it scans."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from penstock.backends.contract.values import Withheld
from penstock.backends.engine.rows import Row, damage_named, first_claims, job_of
from penstock.backends.engine.store import Claim, claim_change, emit
from penstock.backends.postgres.floors import BEHIND_ALL, FROM_THE_FIRST, Lane, Scan, forward_lanes, lanes
from penstock.backends.postgres.prepared import Prepared, numbers, texts
from penstock.backends.postgres.tags import rarest_tag
from penstock.backends.postgres.transaction_base import BaseTransaction
from penstock.job import Job

__all__ = ["ClaimingTransaction"]

_SPARE_CANDIDATES: Final = 1_000

#: What a claim statement tells of each job, after the transaction's own facts:
#: seq, n, order_at, from_status, is_usual, payload, the columns of `first_claims`, of which the fourth is the priority,
#: since when late jobs are ready, and whether the assignee is withheld.
_Found = tuple[Any, ...]
_SEQ, _N, _ORDER_AT, _SOURCE, _IS_USUAL, _PAYLOAD, _FIRST = range(3, 10)
_PRIORITY: Final = _FIRST + 3


class ClaimingTransaction(BaseTransaction):
    """The primitives of claims."""

    _promoted = 1_000
    _late_from: int | None = None
    #: Whether the last claim was made for an assignee that streams must not serve now.
    is_withheld = False

    def promote(self, limit: int) -> int:
        if not self.is_due:
            return 0
        floors, now = self.shared.floors, self.now
        since, began = floors.promoted_until(), time.monotonic()
        since = FROM_THE_FIRST if since > now else since  # the clock went back
        found = self.execute(self.sql["promote"], {"now": now, "since": since, "limit": limit}).fetchall()
        if len(found) < limit:
            self.is_due = False
            self.after_commit.append(lambda: floors.note_promoted(since, now, began))
        if found:
            self.is_news = True
        if found and self.has_listeners:
            emit(self, [Row(*values) for values in found], verb="available")
        return len(found)

    def claim_eligible(self, claim: Claim, portion: int) -> list[Job]:
        """Promote a portion of due jobs, if there are any, then claim.

        A claim that opens the transaction finds out by itself whether there are any (see `_run_claim`), and whether it
        is withheld.
        """
        self._promoted = portion
        if len(claim.tags) > 1 and claim.key is None:
            self._leading_tag(claim.tags)  # may have to ask, and so open the transaction
        if self.is_open:
            self.promote(portion)
        jobs = self.claim(claim)
        if self.is_withheld:
            return Withheld()
        if len(jobs) < claim.limit and self.is_due:
            rest = claim._replace(limit=claim.limit - len(jobs), pushed=False)
            jobs += super().claim_eligible(rest, portion)
        return jobs

    def claim(self, claim: Claim) -> list[Job]:
        found = self._claim(claim)
        if not found:
            return []
        self.witness = (found[-1][_SEQ], found[-1][_N], found[-1][0])
        jobs = self._jobs(found, claim.assignee_id)
        if self.has_listeners:
            self.changes += [claim_change(job, each[_SOURCE]) for job, each in zip(jobs, found, strict=True)]
        return jobs

    def _jobs(self, found: list[_Found], assignee_id: str) -> list[Job]:
        """Return the claimed jobs; only those with a past are read whole."""
        now = self.now
        with damage_named():
            first_claim = first_claims(assignee_id, now)
            jobs = {
                each[_SEQ]: first_claim(each[_PAYLOAD], *each[_FIRST:-2]) for each in found if each[_IS_USUAL]
            }
        if len(jobs) == len(found):
            return list(jobs.values())
        others = self.run(
            self.shared.whole, {"seqs": numbers(each[_SEQ] for each in found if not each[_IS_USUAL])}
        )
        with damage_named():
            for *values, payload, result, checkpoint in others:
                row = Row(*values)
                jobs[row.seq] = job_of(row, payload or b"", result, checkpoint, now)
        return [jobs[each[_SEQ]] for each in found]

    def _claim(self, claim: Claim) -> list[_Found]:
        types = None if claim.types is None else texts(claim.types)
        if claim.key is not None:
            no_lane = {"late_since": BEHIND_ALL, "most_late": 0}
            return self._run_claim(
                "key", claim, tags=texts(claim.tags), types=types, key=claim.key, **no_lane
            )
        if claim.tags:
            tag = self._leading_tag(claim.tags)
            others = texts(each for each in claim.tags if each != tag)
            lane = ("tag", claim.tags, tag, claim.types)
            return self._claim_in_lane("tag", claim, lane, tag=tag, tags=others, types=types)
        if claim.types is None:
            return self._claim_in_lane("any", claim, "any")
        if len(claim.types) == 1:
            return self._claim_in_lane("type", claim, ("type", claim.types), type=claim.types[0])
        return self._claim_types(claim, types)

    def _claim_types(self, claim: Claim, types: str | None) -> list[_Found]:
        """Claim from the floors on, as `_claim_in_lane` does, but scan back only in a second statement."""
        lane = self.shared.floors.lane(("types", claim.types))
        scan, began = Scan.of(lane), time.monotonic()
        found = self._run_claim("types", claim, types=types, width=claim.limit, **forward_lanes(scan))
        if len(found) < claim.limit:
            # Others may have claimed the candidates between reading and locking them.
            width = claim.limit + _SPARE_CANDIDATES
            again = self._run_claim("types", claim, len(found), types=types, width=width, **lanes(scan))
            found = _in_order(found + again)
        self._remember(lane, scan, found, began, is_short=len(found) < claim.limit)
        return found

    def _claim_in_lane(self, name: str, claim: Claim, kind: Hashable, **filters: Any) -> list[_Found]:
        """Claim from the lane's floors on; if that brings too little, the statement scans further back."""
        lane = self.shared.floors.lane(kind)
        scan, began = Scan.of(lane), time.monotonic()
        found = self._run_claim(name, claim, **filters, **lanes(scan))
        self._remember(lane, scan, found, began, is_short=len(found) < claim.limit)
        return found

    def _remember(
        self, lane: Lane | None, scan: Scan, found: Sequence[_Found], began: float, *, is_short: bool
    ) -> None:
        if lane is None or self.is_withheld:  # then nothing was read
            return
        claimed = [(each[_PRIORITY], (each[_ORDER_AT], each[_SEQ])) for each in found]
        now, was_full = self.now, scan.was_full(is_short=is_short)
        if was_full:
            lane.note_full(began)
        late_from = self._late_from
        self.after_commit.append(
            lambda: lane.note(claimed, now, late_from, was_full=was_full, is_short=is_short)
        )

    def _run_claim(self, name: str, claim: Claim, already: int = 0, **filters: Any) -> list[_Found]:
        """Run a claim statement. One that opens the transaction and meets due jobs claims nothing: they come first."""
        values = {
            **filters,
            "limit": claim.limit - already,
            "assignee_id": claim.assignee_id,
            "owner": claim.owner,
            "pushed": claim.pushed,
        }
        if not self.is_open:
            found = self._ask(name, values)
            if not self.is_due:
                return found
            self.promote(self._promoted)
        return self._ask(name, values)

    def _ask(self, name: str, values: dict[str, Any]) -> list[_Found]:
        return self.query(self.shared.claims[name], {**values, "now": self.own_now(), "since": self.since()})

    def query(self, statement: Prepared, values: Mapping[str, Any]) -> list[_Found]:
        """Run a claim statement; its answer has a row also if nothing was claimed, which is left out."""
        found = self.answer(statement, values)
        self._late_from, self.is_withheld = found[0][-2:]
        return [] if found[0][_SEQ] is None else found

    def _leading_tag(self, tags: tuple[str, ...]) -> str:
        """Return the tag along which to scan: the rarest, as far as is known. The answer holds for a while."""
        if len(tags) == 1:
            return tags[0]
        floors = self.shared.floors
        known = floors.leading_tag(tags)
        if known is None:
            known = self.rarest_tag(tags, "ready_tag")
            floors.note_leading_tag(tags, known)
        return known

    def rarest_tag(self, tags: Sequence[str], table: str) -> str:
        return rarest_tag(self.execute, self.text, tags, table)

    def renew(self, assignee_id: str, attempts: dict[str, int] | None) -> int:
        if attempts is None:
            values = {"assignee_id": assignee_id, "now": self._opening.own_clock()}
            return int(self.scan_in_flight("renew", values, assignee_id))
        found = self.execute(
            self.sql["renew_named"],
            {
                "assignee_id": assignee_id,
                "ids": list(attempts),
                "attempts": list(attempts.values()),
                "now": self._opening.own_clock(),
            },
        ).fetchone()
        return 0 if found is None else int(found[0])

    def scan_in_flight(self, name: str, values: Mapping[str, Any], assignee_id: str | None = None) -> Any:
        """Run a statement about the jobs in flight, from where the last one ended; return what it answers first."""
        floors, began = self.shared.floors, time.monotonic()
        before = floors.in_flight(assignee_id, self.now)
        query = self.shared.in_flight(name, is_full=before.is_full)
        found = self.execute(query, {**values, **before.parameters()}).fetchone()
        if found is None:
            return None
        answer, known, snapshot = found
        seen = before.seen(known, self.opened_at, snapshot, int(self.xid or 0))
        full_since = began if before.is_full else None
        self.after_commit.append(lambda: floors.note_in_flight(assignee_id, seen, full_since))
        return answer


def _in_order(found: list[_Found]) -> list[_Found]:
    return sorted(found, key=lambda each: (each[_PRIORITY], each[_ORDER_AT], each[_SEQ]))
