from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import msgspec

from penstock.errors import DependencyError, JobExistsError, QueueBlockedError, QueueFullError
from penstock.job import Job, Priority
from penstock.lifecycle import Verb
from penstock.testing import _checks as check
from penstock.testing.model._core import ModelCore
from penstock.testing.model._rows import Row, S, fate_error, not_possible, shared_fate, utc


class ModelSubmission(ModelCore):
    """See `penstock.backends.contract.submission`."""

    def enqueue_job(self, job: Job) -> str:
        check.job(job, self._options.max_payload)
        return self._enqueue([job])[0]

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        batch = self._read(jobs)
        with _places_named(batch):
            return self._enqueue(batch)

    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        check.publication(writer, batch)
        given = self._read(jobs)
        with self._transaction() as now:
            if writer is not None and batch is not None and batch <= self._published.get(writer, -1):
                return 0
            if self._is_blocked:
                raise QueueBlockedError
            self._refuse_repeats(given)
            missing = [job for job in given if job.id not in self._rows]
            before = len(self._rows)
            with _places_named(given):
                self._take_in(missing, now, is_blocked=False)
            if writer is not None and batch is not None:
                self._published[writer] = batch
            return len(self._rows) - before

    def _read(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs of an iterable, which must not use the store while it is read."""
        me = threading.get_ident()
        self._iterating.add(me)
        try:
            return check.jobs(jobs, self._options.max_payload)
        finally:
            self._iterating.discard(me)

    def _refuse_repeats(self, jobs: Sequence[Job]) -> None:
        names: set[object] = set()
        for index, job in enumerate(jobs):
            key = (job.type, job.idempotency_key)
            if job.id in names or (job.idempotency_key is not None and key in names):
                raise JobExistsError(job.id, [(index, job.id, "it stands twice in the batch")])
            names |= {job.id, key}

    def _enqueue(self, jobs: list[Job]) -> list[str]:
        with self._transaction() as now:
            return self._take_in(jobs, now, is_blocked=self._is_blocked)

    def _take_in(self, jobs: list[Job], now: datetime, *, is_blocked: bool) -> list[str]:
        aliases = self._find_duplicates(jobs, now)
        fresh = [job for position, job in enumerate(jobs) if position not in aliases]
        if jobs:
            self._admit(len(fresh), is_blocked=is_blocked)
        self._refuse_taken_ids(jobs, aliases)
        renamed = {jobs[position].id: job_id for position, job_id in aliases.items()}
        batch = {job.id: _follow_aliases(job, renamed) for job in fresh}
        for job in self._dependencies_first(batch):
            self._insert(job, now)
        return [aliases.get(position, job.id) for position, job in enumerate(jobs)]

    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        check.report(parent_id, attempt)
        given = check.jobs(jobs, self._options.max_payload)
        for job in given:
            if job.parent_id not in (None, parent_id):
                raise check.bad("parent_id", f"{parent_id} or None", job.parent_id)
        children = [msgspec.structs.replace(job, parent_id=parent_id) for job in given]
        with self._transaction() as now:
            parent = self._row(parent_id)
            self._check_in_flight(parent, attempt, "spawn")
            if parent.job.status is not S.RUNNING:
                raise not_possible("spawn", parent.job)
            waiting = {row.job.id for row in self._rows.values() if parent_id in row.open_after}
            downstream = waiting | {
                row.job.id for row in self._rows.values() if waiting & self._awaited_by(row)
            }
            ids = self._take_in(children, now, is_blocked=False)
            refs = {ref for job in children for ref in (*job.after, *job.after_any)}
            for job_id in {*ids, *refs}:
                if job_id in downstream or (job_id == parent_id and job_id in ids):
                    raise DependencyError(f"{job_id} waits for {parent_id}", reason="cycle", job_id=job_id)
            family = self._in_order(
                job_id for job_id in ids if self._rows[job_id].job.status is not S.COMPLETED
            )
            for row in list(self._rows.values()):
                if row.job.id == parent_id or parent_id in row.spawned:
                    self._put(row, spawned=row.spawned | frozenset(family))
            for job_id in self._in_order(waiting):
                self._join(self._rows[job_id], family, now)
            return ids

    def _in_order(self, job_ids: Iterable[str]) -> list[str]:
        return sorted(set(job_ids), key=lambda job_id: self._rows[job_id].number)

    def _join(self, row: Row, family: Sequence[str], now: datetime) -> None:
        """Let a job wait for others as well, or share their fate."""
        row = self._put(row, open_after=row.open_after | frozenset(family))
        self._share_fate(row, [self._rows[job_id].job for job_id in family], now)

    def _share_fate(self, row: Row, dependencies: Iterable[Job], now: datetime) -> None:
        for ended in dependencies:
            if ended.status.is_final and ended.status is not S.COMPLETED:
                self._move(row, Verb.PROPAGATE, shared_fate(ended.status), now, error=fate_error(ended))
                break

    def _admit(self, count: int, *, is_blocked: bool) -> None:
        if is_blocked:
            raise QueueBlockedError
        limit = self._options.max_pending
        waiting = sum(row.job.status.is_eligible for row in self._rows.values())
        if limit is not None and count and waiting + count > limit:
            raise QueueFullError(limit=limit, waiting=waiting)

    def _find_duplicates(self, jobs: Sequence[Job], now: datetime) -> dict[int, str]:
        """Return, by position in the batch, the ids of the jobs that hold the idempotency keys already."""
        holders: dict[tuple[str, str | None], str] = {
            (row.job.type, row.job.idempotency_key): row.job.id
            for row in self._rows.values()
            if row.job.idempotency_key is not None
            and now < row.submitted_at + self._options.idempotency_window
        }
        duplicates: dict[int, str] = {}
        for position, job in enumerate(jobs):
            if job.idempotency_key is None:
                continue
            name = (job.type, job.idempotency_key)
            if name in holders:
                duplicates[position] = holders[name]
            else:
                holders[name] = job.id
        return duplicates

    def _refuse_taken_ids(self, jobs: Sequence[Job], aliases: Mapping[int, str]) -> None:
        seen: set[str] = set()
        failed: list[tuple[int, str, str]] = []
        for position, job in enumerate(jobs):
            if position in aliases:
                continue
            if job.id in self._rows:
                failed.append((position, job.id, "it is already stored"))
            elif job.id in seen:
                failed.append((position, job.id, "it stands twice in the batch"))
            seen.add(job.id)
        if failed:
            raise JobExistsError(failed[0][1], failed)

    def _dependencies_first(self, batch: Mapping[str, Job]) -> list[Job]:
        """Return the batch in the order of insertion: as given, but each job after those it waits for."""
        for job in batch.values():
            for other in (*job.after, *job.after_any):
                if other not in batch and other not in self._rows:
                    raise DependencyError(
                        f"{job.id} waits for {other}, which does not exist",
                        reason="unknown",
                        job_id=job.id,
                        value=other,
                    )
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

    def _depth(self, row: Row) -> int:
        """Return how many jobs are on the longest path of unfinished jobs that ends with this one."""
        depth, wave = 0, set() if row.job.status.is_final else {row.job.id}
        while wave:
            depth += 1
            rows = [self._rows[job_id] for job_id in wave]
            wave = {
                each for row in rows for each in (*row.open_after, *(row.job.after_any * row.waits_for_any))
            }
        return depth

    def _insert(self, job: Job, now: datetime) -> None:
        dependencies = [self._rows[each] for each in dict.fromkeys((*job.after, *job.after_any))]
        depth = 1 + max((self._depth(row) for row in dependencies), default=0)
        if depth > self._options.max_depth:
            raise DependencyError(f"{job.id} would be {depth} deep", reason="depth", job_id=job.id)
        job = msgspec.structs.replace(
            job,
            created_at=utc(job.created_at or now),
            run_at=None if job.run_at is None else utc(job.run_at),
            priority=min([Priority(job.priority), *(row.job.priority for row in dependencies)]),
            payload=bytes(job.payload),
        )
        self._inserted += 1
        due_at = job.run_at or now
        spawned = (each for d in job.after for each in self._in_order(self._rows[d].spawned))
        family = dict.fromkeys((*job.after, *spawned))
        row = Row(
            job=job,
            number=self._inserted,
            depth=depth,
            due_at=due_at,
            submitted_at=now,
            is_delayed=due_at > now,
            open_after=frozenset(d for d in family if self._rows[d].job.status is not S.COMPLETED),
            waits_for_any=bool(job.after_any)
            and not any(self._rows[d].job.status.is_final for d in job.after_any),
        )
        row = self._write(row, Verb.ENQUEUE, now, source=None)
        self._share_fate(row, [self._rows[other].job for other in family], now)

    def set_blocked(self, blocked: bool) -> None:
        check.flag("blocked", blocked)
        with self._transaction():
            self._is_blocked = blocked

    def is_blocked(self) -> bool:
        self._check_usable()
        return self._is_blocked


@contextmanager
def _places_named(batch: Sequence[Job]) -> Iterator[None]:
    """Let a refused dependency say where in the batch its job stands."""
    try:
        yield
    except DependencyError as error:
        index = next(index for index, job in enumerate(batch) if job.id == error.job_id)
        raise error.in_batch(index, error.job_id) from None


def _follow_aliases(job: Job, renamed: Mapping[str, str]) -> Job:
    def follow(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(renamed.get(each, each) for each in ids))

    return msgspec.structs.replace(job, after=follow(job.after), after_any=follow(job.after_any))
