"""Jobs that a running job spawns: whatever waits for the one then waits for the others too.

    before   parent <-after- last            spawn   parent <-after- last
                                                     child  <-after- last         one more edge for each that waits
                                                     child  <-spawned- parent     so that later ones find it

One rule: every job with an edge onto the parent gets the same edge onto what it spawns. Jobs that wait for it get AFTER
edges. The parent itself, and every job that has spawned the parent, get SPAWNED edges; no job waits for these, but from
them a job that is enqueued `after` the parent, now or long after its end, learns what else to wait for. So the order of
spawning and waiting does not matter. A SPAWNED edge goes when its job completes, and stays while that has ended badly:
jobs that come later must share the fate.

`after_any` of the parent is met by the parent's own end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.backends.engine.rows import Row, encode_strings
from penstock.backends.engine.settlement import end_doomed, fate_of, settle_keys
from penstock.backends.engine.store import AFTER, SPAWNED, Edge, Reach, Transaction
from penstock.backends.engine.submission import Submission
from penstock.backends.options import StoreOptions
from penstock.errors import (
    DependencyError,
    InvalidArgumentError,
    InvalidTransitionError,
    JobNotFoundError,
    StaleAttemptError,
    shown,
)
from penstock.job import Job, JobStatus

__all__ = ["adopted", "spawn"]

_VERB: Final = "spawn"


def adopted(parent_id: str, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs with their parent filled in."""
    for job in jobs:
        if job.parent_id not in (None, parent_id):
            raise InvalidArgumentError(
                f"job {shown(job.id)} is spawned by {shown(parent_id)}, but its parent_id is {shown(job.parent_id)}",
                field="parent_id",
                value=job.parent_id,
            )
    return [msgspec.structs.replace(job, parent_id=parent_id) for job in jobs]


def spawn(
    tx: Transaction, options: StoreOptions, parent_id: str, jobs: Sequence[Job], attempt: int | None
) -> list[str]:
    """Store the jobs, and let every job that waits for the parent wait for them."""
    keys = {encode_strings(job.key) for job in jobs if job.key is not None}
    tx.expect(
        Reach.ALL, ids=[parent_id, *(ref for job in jobs for ref in (job.id, *job.after, *job.after_any))]
    )
    tx.lock_keys(keys)  # keys before jobs
    parent = _running(tx.rows([parent_id]).get(parent_id), parent_id, attempt)
    edges = [edge for edge in tx.edges_onto([parent.seq]) if edge.kind in (AFTER, SPAWNED)]
    waiting = tx.rows_by_seq(sorted({edge.job_seq for edge in edges if edge.kind == AFTER}))
    ids = Submission(tx, options, check=False).run(jobs, external=False)
    children = tx.rows(list(dict.fromkeys(ids)))
    _refuse_cycles(tx, parent, jobs, children, _downstream(tx, waiting))
    _connect(tx, parent, edges, waiting, sorted(children.values(), key=lambda child: child.seq))
    if keys:
        settle_keys(tx, keys)
    return ids


def _running(row: Row | None, job_id: str, attempt: int | None) -> Row:
    if row is None:
        raise JobNotFoundError(job_id)
    if attempt is not None and (attempt != row.attempt or not row.is_in_flight):
        raise StaleAttemptError(
            job_id=job_id, status=row.status, verb=_VERB, attempt=attempt, current_attempt=row.attempt
        )
    if row.status != JobStatus.RUNNING:
        raise InvalidTransitionError(
            f"job {shown(job_id)} cannot spawn jobs: it is {row.status}, allowed in running",
            job_id=job_id,
            status=row.status,
            verb=_VERB,
        )
    return row


def _connect(
    tx: Transaction, parent: Row, edges: Sequence[Edge], waiting: dict[int, Row], children: Sequence[Row]
) -> None:
    missing = [child for child in children if child.status != JobStatus.COMPLETED]
    if not missing:
        return
    known = set(tx.edges_onto([child.seq for child in missing]))
    ancestors = [parent.seq, *(edge.job_seq for edge in edges if edge.kind == SPAWNED)]
    fresh = {Edge(child.seq, ancestor, SPAWNED) for child in missing for ancestor in ancestors} - known
    cause = next((child for child in missing if fate_of(child) is not None), None)
    if cause is None:
        for row in waiting.values():
            awaited = {Edge(child.seq, row.seq, AFTER) for child in missing} - known
            row.unmet += len(awaited)
            fresh |= awaited
    if fresh:
        tx.insert_edges(sorted(fresh))
    if cause is None:
        tx.place(list(waiting.values()))
    else:
        end_doomed(tx, [(row, cause) for row in waiting.values()])


def _downstream(tx: Transaction, waiting: dict[int, Row]) -> set[int]:
    """Return the jobs that wait for the parent, directly or not, locked so that this stays so."""
    reached = set(waiting)
    wave = sorted(waiting)
    while wave:
        wave = sorted({edge.job_seq for edge in tx.edges_onto(wave) if edge.kind != SPAWNED} - reached)
        tx.rows_by_seq(wave)
        reached.update(wave)
    return reached


def _refuse_cycles(
    tx: Transaction, parent: Row, jobs: Sequence[Job], children: dict[str, Row], downstream: set[int]
) -> None:
    """Refuse jobs that wait for what is to wait for them, and jobs that exist already and do."""
    refs = {ref for job in jobs for ref in (*job.after, *job.after_any)} - {job.id for job in jobs}
    awaited = tx.rows(list(refs)) if refs else {}
    for row in (*children.values(), *awaited.values()):
        if row.seq in downstream or (row.seq == parent.seq and row.id in children):
            raise DependencyError(
                f"job {shown(parent.id)} cannot spawn a job that is, or waits for, {shown(row.id)}: "
                f"that one waits for {shown(parent.id)}",
                reason="cycle",
                job_id=row.id,
                value=parent.id,
            )
