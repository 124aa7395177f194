"""Taking jobs: which statement serves which filters, and from where it looks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

from penstock.backends._rows import Row, damage_named, first_claims, job_of
from penstock.backends._store import Claim, claim_change, tell
from penstock.backends.postgres.core import CoreTransaction
from penstock.backends.postgres.fast import numbers, texts
from penstock.backends.postgres.floors import FROM_THE_BEGINNING, Lane, lanes
from penstock.backends.postgres.tags import rarest_tag
from penstock.job import Job

__all__ = ["ClaimingTransaction"]

_SPARE_CANDIDATES: Final = 1_000

#: What a claim statement tells of each job, after the transaction's own facts:
#: seq, n, order_at, from_status, is_usual, payload, and the columns of `first_claims`, of which the fourth is the priority.
_Found = tuple[Any, ...]
_SEQ, _N, _ORDER_AT, _SOURCE, _IS_USUAL, _PAYLOAD, _FIRST = range(3, 10)
_PRIORITY: Final = _FIRST + 3


class ClaimingTransaction(CoreTransaction):
    """The primitives of claims."""

    _promoted = 1_000

    def promote(self, limit: int) -> int:
        if not self.is_due:
            return 0
        floors, now = self.context.floors, self.now
        since = floors.promoted_until()
        since = -1 if since > now else since  # the clock went back
        found = self.execute(self.sql["promote"], {"now": now, "since": since, "limit": limit}).fetchall()
        if len(found) < limit:
            self.is_due = False
            self.after_commit.append(lambda: floors.note_promoted(since, now))
        if found:
            self.is_news = True
        if found and self.wants_changes:
            tell(self, [Row(*values) for values in found], verb="available")
        return len(found)

    def claim_due(self, claim: Claim, promoted: int) -> list[Job]:
        """Move up to `promoted` due jobs into the ready set, if there are any, then claim.

        A claim that opens the transaction finds out by itself whether there are any (see `_take`).
        """
        self._promoted = promoted
        if len(claim.tags) > 1 and claim.key is None:
            self._leading_tag(claim.tags)  # may have to ask, and so open the transaction
        if self.is_open:
            self.promote(promoted)
        return self.claim(claim)

    def claim(self, claim: Claim) -> list[Job]:
        found = self._claim(claim)
        if not found:
            return []
        self.witness = (found[-1][_SEQ], found[-1][_N], found[-1][0])
        jobs = self._jobs(found, claim.assignee_id)
        if self.wants_changes:
            self.changes += [claim_change(job, each[_SOURCE]) for job, each in zip(jobs, found, strict=True)]
        return jobs

    def _jobs(self, found: list[_Found], assignee_id: str) -> list[Job]:
        """Return the jobs that a claim took; only those with a past are read whole."""
        now = self.now
        with damage_named():
            first_claim = first_claims(assignee_id, now)
            jobs = {
                each[_SEQ]: first_claim(each[_PAYLOAD], *each[_FIRST:]) for each in found if each[_IS_USUAL]
            }
        if len(jobs) == len(found):
            return list(jobs.values())
        others = self.run(
            self.context.whole, {"seqs": numbers(each[_SEQ] for each in found if not each[_IS_USUAL])}
        )
        with damage_named():
            for *values, payload, result, checkpoint in others:
                row = Row(*values)
                jobs[row.seq] = job_of(row, payload or b"", result, checkpoint, now)
        return [jobs[each[_SEQ]] for each in found]

    def _claim(self, claim: Claim) -> list[_Found]:
        types = None if claim.types is None else texts(claim.types)
        if claim.key is not None:
            return self._take("key", claim, tags=texts(claim.tags), types=types, key=claim.key)
        if claim.tags:
            tag = self._leading_tag(claim.tags)
            others = texts(each for each in claim.tags if each != tag)
            lane = ("tag", claim.tags, tag, claim.types)
            return self._claim_in_lane("tag", claim, lane, tag=tag, tags=others, types=types)
        if claim.types is None:
            return self._claim_in_lane("any", claim, "any")
        if len(claim.types) == 1:
            return self._claim_in_lane("type", claim, ("type", claim.types), type=claim.types[0])
        found = self._take("types", claim, types=types, width=claim.limit)
        if len(found) < claim.limit:
            # Others may have taken the candidates between reading and locking them.
            width = claim.limit + _SPARE_CANDIDATES
            found = _in_order(found + self._take("types", claim, len(found), types=types, width=width))
        return found

    def _claim_in_lane(self, name: str, claim: Claim, kind: Hashable, **filters: Any) -> list[_Found]:
        """Claim from the lane's floors on; if that brings too little, the statement looks further back."""
        lane = self.context.floors.lane(kind)
        start = {} if lane is None else lane.start()
        look_back = FROM_THE_BEGINNING if lane is None else lane.look_back()
        found = self._take(name, claim, **filters, **lanes(start, look_back))
        if lane is not None:
            is_short = len(found) < claim.limit
            was_full = not start or (is_short and look_back == FROM_THE_BEGINNING)
            self._remember(lane, found, was_full=was_full, is_short=is_short)
        return found

    def _remember(self, lane: Lane, found: Sequence[_Found], *, was_full: bool, is_short: bool) -> None:
        taken = [(each[_PRIORITY], (each[_ORDER_AT], each[_SEQ])) for each in found]
        now = self.now
        self.after_commit.append(lambda: lane.note(taken, now, was_full=was_full, is_short=is_short))

    def _take(self, name: str, claim: Claim, already: int = 0, **filters: Any) -> list[_Found]:
        """Run a claim statement. One that opens the transaction and meets due jobs takes nothing: they come first."""
        values = {
            **filters,
            "limit": claim.limit - already,
            "assignee_id": claim.assignee_id,
            "owner": claim.owner,
        }
        if not self.is_open:
            found = self._ask(name, values)
            if not self.is_due:
                return found
            self.promote(self._promoted)
        return self._ask(name, values)

    def _ask(self, name: str, values: dict[str, Any]) -> list[_Found]:
        return self.query(self.context.claims[name], {**values, "now": self.own_now(), "since": self.since()})

    def _leading_tag(self, tags: tuple[str, ...]) -> str:
        """Return the tag along which to look: the rarest, as far as is known. The answer holds for a while."""
        if len(tags) == 1:
            return tags[0]
        floors = self.context.floors
        known = floors.leading_tag(tags)
        if known is None:
            known = self.rarest_tag(tags, "ready_tag")
            floors.note_leading_tag(tags, known)
        return known

    def rarest_tag(self, tags: Sequence[str], table: str) -> str:
        return rarest_tag(self.execute, self.text, tags, table)

    def renew(self, assignee_id: str, attempts: dict[str, int] | None) -> int:
        ids = None if attempts is None else list(attempts)
        numbers = None if attempts is None else list(attempts.values())
        found = self.execute(
            self.sql["renew"],
            {"assignee_id": assignee_id, "ids": ids, "attempts": numbers, "now": self._opening.own_clock()},
        ).fetchone()
        return 0 if found is None else int(found[0])


def _in_order(found: list[_Found]) -> list[_Found]:
    return sorted(found, key=lambda each: (each[_PRIORITY], each[_ORDER_AT], each[_SEQ]))
