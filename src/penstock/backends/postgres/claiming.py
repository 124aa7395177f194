"""Taking jobs: which statement serves which filters, and from where it looks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

from penstock.backends._rows import COLUMNS, Row
from penstock.backends._store import Blobs, Claim, jobs_of, tell
from penstock.backends.postgres.core import CoreTransaction
from penstock.backends.postgres.floors import Lane, parameters
from penstock.job import Job

__all__ = ["ClaimingTransaction"]

_WIDTH: Final = len(COLUMNS)
_FIRST_PROBE: Final = 64


class ClaimingTransaction(CoreTransaction):
    """The primitives of claims."""

    def promote(self, limit: int) -> int:
        if not self.is_due:
            return 0
        floors = self.context.floors
        since = floors.promoted_until()
        since = -1 if since > self.now else since  # the clock went back
        found = self.execute(
            self.sql["promote"], {"now": self.now, "since": since, "limit": limit}
        ).fetchall()
        if len(found) < limit:
            self.after_commit.append(lambda: floors.note_promoted(since, self.now))
        if found:
            self.is_news = True
        if found and self.wants_changes:
            tell(self, [Row(*values) for values in found], verb="available")
        return len(found)

    def claim(self, claim: Claim) -> list[Job]:
        rows = self._claim(claim)
        tell(self, rows)
        return jobs_of(self, rows)

    def _claim(self, claim: Claim) -> list[Row]:
        if claim.key is not None:
            return self._take(
                "key", claim, tags=list(claim.tags), types=_optional(claim.types), key=claim.key
            )
        if claim.tags:
            return self._claim_tagged(claim)
        if claim.types is None:
            return self._claim_in_lane("any", claim, "any")
        if len(claim.types) == 1:
            return self._claim_in_lane("type", claim, ("type", claim.types), type=claim.types[0])
        rows = self._take("types", claim, types=list(claim.types))
        if len(rows) < claim.limit:
            # Others may have taken the candidates between reading and locking them.
            rows += self._take("filtered", claim, len(rows), types=list(claim.types), key=None)
        return _in_order(rows)

    def _claim_tagged(self, claim: Claim) -> list[Row]:
        tag = self.rarest_tag(claim.tags, "ready_tag")
        others = [each for each in claim.tags if each != tag]
        lane = ("tag", claim.tags, tag, claim.types)
        return self._claim_in_lane("tag", claim, lane, tag=tag, tags=others, types=_optional(claim.types))

    def _claim_in_lane(self, name: str, claim: Claim, kind: Hashable, **filters: Any) -> list[Row]:
        """Claim from the lane's floors on; if that brings too little, look again further back."""
        lane = self.context.floors.lane(kind)
        start = {} if lane is None else lane.start(self.now)
        rows = self._take(name, claim, **filters, **parameters(start))
        was_full = not start
        if lane is None:
            return rows
        if len(rows) < claim.limit:
            second = lane.second_start(start, self.now)
            if second is not None:
                rows = _in_order(rows + self._take(name, claim, len(rows), **filters, **parameters(second)))
                was_full = not second
        self._remember(lane, rows, was_full=was_full, is_short=len(rows) < claim.limit)
        return rows

    def _remember(self, lane: Lane, rows: Sequence[Row], *, was_full: bool, is_short: bool) -> None:
        self.after_commit.append(lambda: lane.note(rows, self.now, was_full=was_full, is_short=is_short))

    def _take(self, name: str, claim: Claim, already: int = 0, **filters: Any) -> list[Row]:
        found = self.execute(
            self.sql.claims[name],
            {
                **filters,
                "limit": claim.limit - already,
                "now": self.now,
                "assignee_id": claim.assignee_id,
                "owner": claim.owner,
            },
        )
        rows = []
        for values in found:
            row = Row(*values[:_WIDTH])
            payload, result, checkpoint = values[_WIDTH:]
            self.claimed_blobs[row.seq] = Blobs(payload or b"", result, checkpoint)
            rows.append(row)
        if rows:
            self.witness = (rows[-1].seq, rows[-1].n)
        return rows

    def rarest_tag(self, tags: Sequence[str], table: str) -> str:
        """Return the tag with the fewest rows. Costs no more than a few times that number of rows."""
        if len(tags) == 1:
            return tags[0]
        probe = _FIRST_PROBE
        query = self.text(
            "SELECT wanted.tag, (SELECT count(*) FROM (SELECT FROM {schema}." + table + " AS known"
            " WHERE known.tag = wanted.tag LIMIT %(probe)s) AS found) FROM unnest(%(tags)s::text[]) AS wanted (tag)"
        )
        while True:
            found = self.execute(query, {"tags": list(tags), "probe": probe}).fetchall()
            rarest, count = min(found, key=lambda each: each[1])
            if count < probe:
                return str(rarest)
            probe *= 8

    def renew(self, assignee_id: str, attempts: dict[str, int] | None) -> int:
        ids = None if attempts is None else list(attempts)
        numbers = None if attempts is None else list(attempts.values())
        found = self.execute(
            self.sql["renew"], {"assignee_id": assignee_id, "ids": ids, "attempts": numbers, "now": self.now}
        ).fetchone()
        return 0 if found is None else int(found[0])


def _optional(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.priority, row.order_at, row.seq))
