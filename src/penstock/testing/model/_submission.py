from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import msgspec

from penstock.errors import (
    DependencyError,
    JobExistsError,
    QueueBlockedError,
    QueueFullError,
    unknown_dependencies,
)
from penstock.job import Job, Priority
from penstock.lifecycle import Verb
from penstock.testing import _checks as check
from penstock.testing.model._rows import Row, S, fate_error, shared_fate, utc
from penstock.testing.model._state import ModelState


def listed_jobs(state: ModelState, jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs of an iterable, which must not use the store while it is read."""
    me = threading.get_ident()
    state.iterating.add(me)
    try:
        return check.jobs(jobs, state.options.max_payload)
    finally:
        state.iterating.discard(me)


def refuse_repeats(state: ModelState, jobs: Sequence[Job]) -> None:
    names: set[object] = set()
    for index, job in enumerate(jobs):
        key = (job.type, job.idempotency_key)
        if job.id in names or (job.idempotency_key is not None and key in names):
            raise JobExistsError(job.id, [(index, job.id, "it stands twice in the batch")])
        names |= {job.id, key}


def enqueue(state: ModelState, jobs: list[Job]) -> list[str]:
    with state.transaction() as now:
        return take_in(state, jobs, now, is_blocked=state.is_blocked)


def take_in(state: ModelState, jobs: list[Job], now: datetime, *, is_blocked: bool) -> list[str]:
    aliases = find_duplicates(state, jobs, now)
    fresh = [job for position, job in enumerate(jobs) if position not in aliases]
    if jobs:
        admit(state, len(fresh), is_blocked=is_blocked)
    refuse_taken_ids(state, jobs, aliases)
    renamed = {jobs[position].id: job_id for position, job_id in aliases.items()}
    batch = {job.id: _follow_aliases(job, renamed) for job in fresh}
    for job in dependencies_first(state, batch):
        insert(state, job, now)
    return [aliases.get(position, job.id) for position, job in enumerate(jobs)]


def in_order(state: ModelState, job_ids: Iterable[str]) -> list[str]:
    return sorted(set(job_ids), key=lambda job_id: state.rows[job_id].number)


def join(state: ModelState, row: Row, family: Sequence[str], now: datetime) -> None:
    """Make a job wait for others as well, or end with them."""
    row = state.put(row, open_after=row.open_after | frozenset(family))
    share_fate(state, row, [state.rows[job_id].job for job_id in family], now)


def share_fate(state: ModelState, row: Row, dependencies: Iterable[Job], now: datetime) -> None:
    for ended in dependencies:
        if ended.status.is_final and ended.status is not S.COMPLETED:
            state.move(row, Verb.PROPAGATE, shared_fate(ended.status), now, error=fate_error(ended))
            break


def admit(state: ModelState, count: int, *, is_blocked: bool) -> None:
    if is_blocked:
        raise QueueBlockedError
    limit = state.options.max_pending
    waiting = sum(row.job.status.is_eligible for row in state.rows.values())
    if limit is not None and count and waiting + count > limit:
        raise QueueFullError(limit=limit, waiting=waiting)


def find_duplicates(state: ModelState, jobs: Sequence[Job], now: datetime) -> dict[int, str]:
    """Return, by position in the batch, the ids of the jobs that hold the idempotency keys already."""
    fresh: dict[tuple[str, str], str] = {}
    duplicates: dict[int, str] = {}
    for position, job in enumerate(jobs):
        if job.idempotency_key is None:
            continue
        name = (job.type, job.idempotency_key)
        holder = fresh.get(name) or key_holder(state, name, job, now)
        if holder is not None:
            duplicates[position] = holder
        else:
            fresh[name] = job.id
    state.key_holders |= fresh
    return duplicates


def key_holder(state: ModelState, name: tuple[str, str], job: Job, now: datetime) -> str | None:
    """Return the stored job of whose key a new job is a duplicate."""
    row = state.rows.get(state.key_holders.get(name, ""))
    if row is None:
        return None
    if row.job.status.is_final and (row.job.unique or job.unique):
        return None
    if row.job.unique is None and now >= row.submitted_at + state.options.idempotency_window:
        return None
    return row.job.id


def refuse_taken_ids(state: ModelState, jobs: Sequence[Job], aliases: Mapping[int, str]) -> None:
    seen: set[str] = set()
    failed: list[tuple[int, str, str]] = []
    for position, job in enumerate(jobs):
        if position in aliases:
            continue
        if job.id in state.rows:
            failed.append((position, job.id, "it is already stored"))
        elif job.id in seen:
            failed.append((position, job.id, "it stands twice in the batch"))
        seen.add(job.id)
    if failed:
        raise JobExistsError(failed[0][1], failed)


def dependencies_first(state: ModelState, batch: Mapping[str, Job]) -> list[Job]:
    """Return the batch in the order of insertion: as given, but each job after those it waits for."""
    for job in batch.values():
        waits_for = (*job.after, *job.after_any)
        missing = [other for other in waits_for if other not in batch and other not in state.rows]
        if missing:
            raise unknown_dependencies(job.id, missing)
    ordered: dict[str, Job] = {}
    for start in batch:
        path = [start]
        while path:
            here = batch[path[-1]]
            missing = [d for d in (*here.after, *here.after_any) if d in batch and d not in ordered]
            if not missing:
                ordered[path.pop()] = here
            elif missing[0] in path:
                raise DependencyError(f"{here.id} waits for itself", reason="cycle", job_id=here.id)
            else:
                path.append(missing[0])
    return list(ordered.values())


def depth_of(state: ModelState, row: Row) -> int:
    """Return how many jobs are on the longest path of unfinished jobs that ends with this one."""
    depth, wave = 0, set() if row.job.status.is_final else {row.job.id}
    while wave:
        depth += 1
        rows = [state.rows[job_id] for job_id in wave]
        wave = {each for row in rows for each in (*row.open_after, *(row.job.after_any * row.waits_for_any))}
    return depth


def insert(state: ModelState, job: Job, now: datetime) -> None:
    dependencies = [state.rows[each] for each in dict.fromkeys((*job.after, *job.after_any))]
    depth = 1 + max((depth_of(state, row) for row in dependencies), default=0)
    if depth > state.options.max_depth:
        raise DependencyError(f"{job.id} would be {depth} deep", reason="depth", job_id=job.id)
    job = msgspec.structs.replace(
        job,
        created_at=utc(job.created_at or now),
        run_at=None if job.run_at is None else utc(job.run_at),
        priority=min([Priority(job.priority), *(row.job.priority for row in dependencies)]),
        payload=bytes(job.payload),
    )
    state.inserted += 1
    due_at = job.run_at or now
    spawned = (each for d in job.after for each in in_order(state, state.rows[d].spawned))
    family = dict.fromkeys((*job.after, *spawned))
    row = Row(
        job=job,
        number=state.inserted,
        depth=depth,
        due_at=due_at,
        submitted_at=now,
        is_delayed=due_at > now,
        open_after=frozenset(d for d in family if state.rows[d].job.status is not S.COMPLETED),
        waits_for_any=bool(job.after_any)
        and not any(state.rows[d].job.status.is_final for d in job.after_any),
    )
    row = state.write(row, Verb.ENQUEUE if job.unique is None else Verb.ENQUEUE_UNIQUE, now, source=None)
    share_fate(state, row, [state.rows[other].job for other in family], now)


@contextmanager
def places_named(batch: Sequence[Job]) -> Iterator[None]:
    """Add the position in the batch to the error of a refused dependency."""
    try:
        yield
    except DependencyError as error:
        index = next(index for index, job in enumerate(batch) if job.id == error.job_id)
        raise error.in_batch(index, error.job_id) from None


def _follow_aliases(job: Job, renamed: Mapping[str, str]) -> Job:
    def follow(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(renamed.get(each, each) for each in ids))

    return msgspec.structs.replace(job, after=follow(job.after), after_any=follow(job.after_any))
