"""Handing jobs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.backends import _arguments as arguments
from penstock.backends import _decisions as decisions
from penstock.backends._rows import Row
from penstock.backends._settlement import settle
from penstock.backends._store import Claim, Outright, Transaction, jobs_of
from penstock.backends.base import ClaimRequest
from penstock.backends.engine.core import EngineCore, checked_key
from penstock.errors import InvalidArgumentError, InvalidTransitionError, shown
from penstock.job import Job, JobStatus, Key
from penstock.lifecycle import Verb, allows, refusal

__all__ = ["PROMOTED_PER_CLAIM", "ClaimVerbs", "claim_of"]

PROMOTED_PER_CLAIM: Final = 1_000


class ClaimVerbs(EngineCore):
    """The verbs that give a job to somebody."""

    def dequeue_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        limit: int = 1,
        *,
        types: Sequence[str] | None = None,
        key: Key | str | None = None,
        job_ids: Sequence[str] | None = None,
        owner: str | None = None,
    ) -> list[Job]:
        claim = _checked_claim(assignee_id, tags, limit, types, key, job_ids, owner)
        return self._write(Outright(lambda tx: self._claim(tx, claim)))

    def dequeue_jobs_for(self, requests: Sequence[ClaimRequest]) -> list[list[Job]]:
        if isinstance(requests, str | bytes) or not isinstance(requests, Sequence):
            raise InvalidArgumentError(
                f"requests must be a sequence of ClaimRequest, got {shown(requests)}",
                field="requests",
                value=requests,
            )
        for each in requests:
            if not isinstance(each, ClaimRequest):
                raise InvalidArgumentError(
                    f"requests must hold ClaimRequest only, got {shown(each)}", field="requests", value=each
                )
        claims = [claim_of(each) for each in requests]
        return self._write(Outright(lambda tx: [self._claim(tx, claim) for claim in claims]))

    def restart_job(self, job_id: str, assignee_id: str, *, owner: str | None = None) -> Job:
        arguments.job_id(job_id)
        arguments.assignee(assignee_id)
        arguments.optional_text("owner", owner, arguments.MAX_ID)

        def work(tx: Transaction) -> Job:
            row = self._row(tx, job_id)
            if not allows(Verb.RESTART, JobStatus(row.status)):
                raise refusal(Verb.RESTART, job_id, JobStatus(row.status))
            if not row.held:
                raise InvalidTransitionError(
                    f"job {shown(job_id)} cannot be restarted: only held jobs can, others are retried",
                    job_id=job_id,
                    status=row.status,
                    verb=Verb.RESTART,
                )
            if row.key is not None:
                tx.lock_keys([row.key])
                if any(member.is_in_flight for member in tx.key_members([row.key])):
                    raise InvalidTransitionError(
                        f"job {shown(job_id)} cannot be restarted while another job of its key is running",
                        job_id=job_id,
                        status=row.status,
                        verb=Verb.RESTART,
                    )
            decisions.start(row, assignee_id, owner, Verb.RESTART, tx.now)
            self._save(tx, [row])
            settle(tx, [row])
            return jobs_of(tx, [row])[0]

        return self._write(work)

    def _claim(self, tx: Transaction, claim: Claim) -> list[Job]:
        if claim.types == () or claim.job_ids == ():
            return []
        if claim.job_ids is not None:
            return jobs_of(tx, self._claim_listed(tx, claim, claim.job_ids))
        portion = max(PROMOTED_PER_CLAIM, claim.limit)
        jobs: list[Job] = []
        while True:
            promoted = tx.promote(portion)
            jobs += tx.claim(claim._replace(limit=claim.limit - len(jobs)))
            # What the claim wants may be due behind a portion of jobs that it does not want.
            if len(jobs) == claim.limit or promoted < portion:
                return jobs

    def _claim_listed(self, tx: Transaction, claim: Claim, ids: tuple[str, ...]) -> list[Row]:
        wanted = set(claim.tags)
        rows = [
            row
            for row in tx.rows(ids).values()
            if decisions.is_takeable(row, tx.now)
            and (claim.types is None or row.type in claim.types)
            and (claim.key is None or row.key == claim.key)
            and (not wanted or wanted <= set(decisions.tags_of(row)))
        ]
        rows.sort(key=lambda row: (row.priority, row.order_at, row.seq))
        rows = rows[: claim.limit]
        for row in rows:
            decisions.start(row, claim.assignee_id, claim.owner, Verb.CLAIM, tx.now)
        self._save(tx, rows)
        return rows


def _checked_claim(
    assignee_id: str,
    tags: Sequence[str],
    limit: int,
    types: Sequence[str] | None,
    key: Key | str | None,
    job_ids: Sequence[str] | None,
    owner: str | None,
) -> Claim:
    return Claim(
        assignee_id=arguments.assignee(assignee_id),
        tags=arguments.tags(tags),
        limit=arguments.limit(limit),
        types=arguments.types(types),
        key=checked_key(key),
        job_ids=None if job_ids is None else arguments.job_ids(job_ids),
        owner=arguments.optional_text("owner", owner, arguments.MAX_ID),
    )


def claim_of(request: ClaimRequest) -> Claim:
    """Return a request, checked, as stores know it."""
    return _checked_claim(
        request.assignee_id,
        request.tags,
        request.limit,
        request.types,
        request.key,
        request.job_ids,
        request.owner,
    )
