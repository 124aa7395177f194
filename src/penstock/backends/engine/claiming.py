"""Claims: which jobs an assignee gets, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.backends.contract.values import ClaimRequest, Withheld
from penstock.backends.engine import arguments, decisions
from penstock.backends.engine.rows import Row
from penstock.backends.engine.settlement import settle
from penstock.backends.engine.store import Claim, Transaction, find_row, jobs_of, save_rows
from penstock.errors import InvalidTransitionError, invalid, shown
from penstock.job import Job, JobStatus, Key
from penstock.lifecycle import Verb, allows, refusal

__all__ = ["checked_claim", "checked_claims", "claim", "claim_all", "restart"]

#: Due jobs that one claim promotes at most, before it looks whether it has found enough.
PROMOTED_PER_CLAIM: Final = 1_000


def checked_claim(
    assignee_id: str,
    tags: Sequence[str],
    limit: int,
    types: Sequence[str] | None,
    key: Key | str | None,
    job_ids: Sequence[str] | None,
    owner: str | None,
) -> Claim:
    """Return the arguments of a claim, checked, as stores know them."""
    return Claim(
        assignee_id=arguments.assignee(assignee_id),
        tags=arguments.tags(tags),
        limit=arguments.limit(limit),
        types=arguments.types(types),
        key=arguments.stored_key(key),
        job_ids=None if job_ids is None else arguments.job_ids(job_ids),
        owner=arguments.optional_text("owner", owner, arguments.MAX_ID),
    )


def checked_claims(requests: Sequence[ClaimRequest]) -> list[Claim]:
    """Return requests, checked, as stores know them."""
    if isinstance(requests, str | bytes) or not isinstance(requests, Sequence):
        raise invalid("requests", "a sequence of ClaimRequest", requests)
    return [_claim_of(each) for each in requests]


def _claim_of(request: ClaimRequest) -> Claim:
    if not isinstance(request, ClaimRequest):
        raise invalid("requests", "a sequence of ClaimRequest only", request)
    checked = checked_claim(
        request.assignee_id,
        request.tags,
        request.limit,
        request.types,
        request.key,
        request.job_ids,
        request.owner,
    )
    return checked._replace(
        pushed=arguments.boolean("pushed", request.pushed),
        revives=arguments.boolean("revives", request.revives),
    )


def claim_all(tx: Transaction, claims: Sequence[Claim]) -> list[list[Job]]:
    """Serve several claims, in order; one list of jobs per claim."""
    revived = {each.assignee_id for each in claims if each.revives}
    if revived:
        tx.revive(revived)
    return [claim(tx, each) for each in claims]


def claim(tx: Transaction, wanted: Claim) -> list[Job]:
    """Claim eligible jobs and return them RUNNING, in selection order."""
    if wanted.job_ids is None and wanted.types != ():
        return tx.claim_eligible(wanted, max(PROMOTED_PER_CLAIM, wanted.limit))
    if wanted.pushed and tx.is_unresponsive(wanted.assignee_id):
        return Withheld()
    return jobs_of(tx, _claim_listed(tx, wanted, wanted.job_ids or ()))


def _claim_listed(tx: Transaction, wanted: Claim, ids: tuple[str, ...]) -> list[Row]:
    if not ids or wanted.types == ():
        return []
    tags = set(wanted.tags)
    rows = [
        row
        for row in tx.rows(ids).values()
        if decisions.is_claimable(row, tx.now)
        and (wanted.types is None or row.type in wanted.types)
        and (wanted.key is None or row.key == wanted.key)
        and (not tags or tags <= set(decisions.tags_of(row)))
    ]
    rows.sort(key=lambda row: (row.priority, row.order_at, row.seq))
    rows = rows[: wanted.limit]
    for row in rows:
        decisions.start(row, wanted.assignee_id, wanted.owner, Verb.CLAIM, tx.now)
    save_rows(tx, rows)
    return rows


def restart(tx: Transaction, job_id: str, assignee_id: str, owner: str | None) -> Job:
    """Run a STOPPED, held job again."""
    row = find_row(tx, job_id)
    if not allows(Verb.RESTART, JobStatus(row.status)):
        raise refusal(Verb.RESTART, job_id, JobStatus(row.status))
    if not row.held:
        raise _no_restart(row, "only held jobs can, others are retried", ":")
    if row.key is not None:
        tx.lock_keys([row.key])
        if any(member.is_in_flight for member in tx.key_members([row.key])):
            raise _no_restart(row, "while another job of its key is running")
    decisions.start(row, assignee_id, owner, Verb.RESTART, tx.now)
    save_rows(tx, [row])
    settle(tx, [row])
    return jobs_of(tx, [row])[0]


def _no_restart(row: Row, why: str, mark: str = "") -> InvalidTransitionError:
    return InvalidTransitionError(
        f"job {shown(row.id)} cannot be restarted{mark} {why}",
        job_id=row.id,
        status=row.status,
        verb=Verb.RESTART,
    )
