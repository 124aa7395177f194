"""A reference store in plain dicts: the rules of the contract, read once more and written as simply as possible.

`ModelBackend` is slow, forgets everything at the end of the process, and shares no code with the real stores. It
passes the conformance suite, and the state machine of our tests compares the real stores with it after each step.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.backends.base import (
    CALLBACKS,
    UNSET,
    Backend,
    Change,
    ClaimRequest,
    Delivery,
    Failure,
    Schedule,
    UnsetType,
)
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    DependencyError,
    InvalidTransitionError,
    JobExistsError,
    JobNotFoundError,
    PenstockError,
    QueueBlockedError,
    QueueClosedError,
    QueueFullError,
    ReportErrors,
    StaleAttemptError,
)
from penstock.job import (
    CANCELLED,
    IN_FLIGHT,
    Job,
    JobStats,
    JobStatus,
    JournalArchive,
    JournalConsumer,
    JournalEntry,
    Key,
    Maintenance,
    Priority,
    state_of,
)
from penstock.lifecycle import Verb, allows, refusal
from penstock.overview import Intake, Overview, OwnerView, TypeView
from penstock.policy import FailureCategory
from penstock.scope import checkpoint
from penstock.testing import _checks as check

__all__ = ["ModelBackend"]

_S = JobStatus
_TIMEOUT_GRACE = timedelta(seconds=10)

_FREEING_UPDATES = frozenset({_S.COMPLETED, _S.STOPPED, _S.UNKNOWN_STOPPED})
_CANCEL_TO = {
    _S.INITIAL_PENDING: _S.UNSCHEDULED,
    _S.RUNNING: _S.CANCELLING,
    _S.FAILED_RETRY: _S.STOPPED,
    _S.UNKNOWN_RETRY: _S.STOPPED,
}

Report = Callable[["_Row", datetime], "_Row"]


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """A stored job and what the store knows beside it."""

    job: Job
    number: int
    n: int = 0
    depth: int = 1
    due_at: datetime
    ready_at: datetime | None = None
    attempt_ready_at: datetime | None = None
    submitted_at: datetime
    open_after: frozenset[str] = frozenset()
    spawned: frozenset[str] = frozenset()
    waits_for_any: bool = False
    owner: str | None = None
    lease_from: datetime | None = None
    is_delayed: bool = False
    verb: str = ""
    lost_attempt: int | None = None


class ModelBackend(Backend):
    """The contract in memory.

    Args:
        clock: where the time comes from.
        new_id: makes the ids of redriven copies.
        options: those of `penstock.open_backend`.
    """

    def __init__(
        self, clock: Clock | None = None, *, new_id: Callable[[], str] | None = None, **options: Any
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._options = check.options(options)
        self.max_depth = self._options.max_depth
        self._new_id = new_id or (lambda: str(uuid.uuid4()))
        self._lock = threading.RLock()
        self._outputs: dict[str, str] = {}
        self._rows: dict[str, _Row] = {}
        self._journal: list[JournalEntry] = []
        self._consumers: dict[str, JournalConsumer] = {}
        self._archive = JournalArchive()
        self._deliveries: dict[int, Delivery] = {}
        self._given_up_at: dict[int, datetime] = {}
        self._schedules: dict[str, Schedule] = {}
        self._owners: dict[str, datetime] = {}
        self._opened: dict[str, datetime] = {}
        self._intakes: dict[str, tuple[Intake, ...]] = {}
        self._entered_before: Counter[tuple[str, JobStatus]] = Counter()
        self._is_blocked = False
        self._iterating: set[int] = set()
        self._is_closed = False
        self._inserted = 0
        self._store_id = uuid.uuid4().hex
        self._published: dict[str, int] = {}
        self._ended: list[str] = []
        self._takeable: set[str] = set()
        self._listeners: list[Callable[[Sequence[Change]], None]] = []

    # -- one transaction a verb ---------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[datetime]:
        """Run a verb: all of its changes stay, or none."""
        self._check_usable()
        if threading.get_ident() in self._iterating:
            raise check.bad("jobs", "without effects of their own on the store", None)
        with self._lock:
            self._check_usable()
            saved = dict(self._rows), len(self._journal), dict(self._owners), self._is_blocked, self._inserted
            now = self._clock.now()
            try:
                yield now
                self._settle(now)
            except BaseException:
                self._rows, length, self._owners, self._is_blocked, self._inserted = saved
                del self._journal[length:]
                self._ended = []
                raise
            self._announce(self._journal[saved[1] :], now)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise QueueClosedError
        checkpoint()

    def _settle(self, now: datetime) -> None:
        """Let dependents follow the jobs that ended, then note who became ready."""
        while self._ended:
            self._tell_dependents(self._ended.pop(0), now)
        for row in list(self._rows.values()):
            if row.job.status.is_eligible:
                ready_at = None if self._waits(row) else row.ready_at or max(row.due_at, now)
                self._put(row, ready_at=ready_at)

    def _tell_dependents(self, job_id: str, now: datetime) -> None:
        ended = self._rows[job_id].job
        if ended.status is _S.COMPLETED:
            self._forget_spawned(job_id)
        for stored in list(self._rows.values()):
            met = job_id in stored.job.after_any
            row = self._put(stored, waits_for_any=stored.waits_for_any and not met)
            if job_id not in row.open_after:
                continue
            if ended.status is _S.COMPLETED:
                self._put(row, open_after=row.open_after - {job_id})
            elif not row.job.status.is_final:
                self._move(row, Verb.PROPAGATE, _shared_fate(ended.status), now, error=_fate_error(ended))

    def _forget_spawned(self, job_id: str) -> None:
        for row in list(self._rows.values()):
            if job_id in row.spawned:
                self._put(row, spawned=row.spawned - {job_id})

    def _announce(self, rows: Sequence[JournalEntry], now: datetime) -> None:
        takeable = {job_id for job_id in self._takeable if job_id in self._rows}
        takeable -= {entry.job_id for entry in rows}
        fresh = {
            job_id for job_id, row in self._rows.items() if self._is_takeable(row, now) and not row.is_delayed
        } - takeable
        self._takeable = takeable | fresh
        last = {entry.job_id: position for position, entry in enumerate(rows)}
        changes = [
            _change(entry, entry.job_id in fresh and last[entry.job_id] == position)
            for position, entry in enumerate(rows)
        ]
        for job_id in sorted(fresh - last.keys(), key=lambda each: self._rows[each].number):
            entry = next(entry for entry in reversed(self._journal) if entry.job_id == job_id)
            changes.append(
                msgspec.structs.replace(_change(entry, True), verb="available", from_status=entry.status)
            )
        if changes:
            for listener in list(self._listeners):
                listener(changes)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _row(self, job_id: str) -> _Row:
        row = self._rows.get(job_id)
        if row is None:
            raise JobNotFoundError(job_id)
        return row

    def _put(self, row: _Row, **changes: Any) -> _Row:
        row = msgspec.structs.replace(row, **changes)
        self._rows[row.job.id] = row
        return row

    def _write(
        self, row: _Row, verb: Verb, now: datetime, *, source: JobStatus | None, **fields: Any
    ) -> _Row:
        """Change fields of a job and add the journal row that says so."""
        job = msgspec.structs.replace(row.job, updated_at=now, **fields)
        row = self._put(row, job=job, n=row.n + 1, verb=str(verb))
        ends_attempt = source in IN_FLIGHT and job.status not in IN_FLIGHT
        is_first = source is None
        self._journal.append(
            JournalEntry(
                seq=self._last_seq() + 1,
                recorded_at=now,
                job_id=job.id,
                n=row.n,
                type=job.type,
                verb=verb,
                from_status=source,
                status=job.status,
                attempt=job.attempt,
                retry_count=job.retry_count,
                failures=job.failures,
                max_attempts=None if job.retry is None else job.retry.max_attempts,
                priority=job.priority,
                key=job.key,
                tags=job.tags,
                idempotency_key=job.idempotency_key,
                assignee_id=job.assignee_id,
                due_at=row.due_at,
                error_category=job.error_category,
                error_code=job.error_code,
                error_message=job.error_message,
                progress=job.progress,
                after=job.after if is_first else (),
                after_any=job.after_any if is_first else (),
                parent_id=job.parent_id if is_first else None,
                ready_at=row.attempt_ready_at if ends_attempt else None,
                started_at=job.attempt_started_at if ends_attempt else None,
            )
        )
        return row

    def _move(
        self,
        row: _Row,
        verb: Verb,
        target: JobStatus,
        now: datetime,
        *,
        due_at: datetime | None = None,
        error: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> _Row:
        """Take a job to another status, with everything that follows from where it goes."""
        source = row.job.status
        fields.update(error or {}, status=target)
        if target.is_final:
            fields.setdefault("finalized_at", row.job.finalized_at or now)
            self._ended.append(row.job.id)
        elif source.is_final:
            fields["finalized_at"] = None
        if target.is_eligible:
            row = self._put(row, due_at=due_at or now, is_delayed=due_at is not None and due_at > now)
        row = self._write(row, verb, now, source=source, **fields)
        was_never_ready = target.is_final and row.ready_at is not None and row.ready_at > now
        return self._put(row, ready_at=None) if target.is_eligible or was_never_ready else row

    def _remove(self, row: _Row, verb: Verb, now: datetime) -> None:
        self._write(row, verb, now, source=row.job.status)
        del self._rows[row.job.id]
        self._outputs.pop(row.job.id, None)
        self._forget_spawned(row.job.id)

    # -- questions about rows -----------------------------------------------------------------------------------

    def _waits(self, row: _Row) -> bool:
        return bool(row.open_after) or row.waits_for_any or not self._has_turn(row)

    def _has_turn(self, row: _Row) -> bool:
        if row.job.key is None:
            return True
        line = [
            other
            for other in self._rows.values()
            if other.job.key == row.job.key and not other.job.status.is_final
        ]
        if any(other.job.status in IN_FLIGHT for other in line if other.number != row.number):
            return False
        turn = min(line, key=lambda other: other.number, default=row)
        while passing := [other for other in line if other.job.id in self._awaited_by(turn)]:
            turn = min(passing, key=lambda other: other.number)
        return turn.number == row.number

    def _awaited_by(self, row: _Row) -> set[str]:
        """Return the ids of all that a job waits for, directly or not."""
        found: set[str] = set()
        behind = [row]
        while behind:
            here = behind.pop()
            direct = {*here.open_after, *(here.job.after_any if here.waits_for_any else ())} - found
            found |= direct
            behind += [self._rows[job_id] for job_id in direct if job_id in self._rows]
        return found

    def _is_takeable(self, row: _Row, now: datetime) -> bool:
        return row.job.status.is_eligible and row.due_at <= now and not self._waits(row)

    def _key_is_busy(self, row: _Row) -> bool:
        return row.job.key is not None and any(
            other.job.key == row.job.key and other.job.status in IN_FLIGHT and other.job.id != row.job.id
            for other in self._rows.values()
        )

    def _select(self, tags: Sequence[str], job_ids: Sequence[str]) -> list[_Row]:
        """Return the jobs that have all tags, and those listed, in insertion order; no tags select nothing."""
        wanted = set(job_ids)
        return [
            row
            for row in self._rows.values()
            if row.job.id in wanted or (tags and set(tags) <= set(row.job.tags))
        ]

    def _view(self, row: _Row, now: datetime) -> Job:
        state = state_of(row.job.status, is_due=row.due_at <= now, is_waiting=self._waits(row))
        seen = row.ready_at if row.ready_at is not None and row.ready_at <= now else None
        return msgspec.structs.replace(row.job, state=state, scheduled_at=seen)

    # -- submission ---------------------------------------------------------------------------------------------

    def enqueue_job(self, job: Job) -> str:
        check.job(job, self._options.max_payload)
        return self._enqueue([job])[0]

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        me = threading.get_ident()
        self._iterating.add(me)
        try:
            batch = check.jobs(jobs, self._options.max_payload)
        finally:
            self._iterating.discard(me)
        try:
            return self._enqueue(batch)
        except DependencyError as error:
            index = next(index for index, job in enumerate(batch) if job.id == error.job_id)
            raise error.in_batch(index, error.job_id) from None

    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        check.publication(writer, batch)
        me = threading.get_ident()
        self._iterating.add(me)
        try:
            given = check.jobs(jobs, self._options.max_payload)
        finally:
            self._iterating.discard(me)
        with self._transaction() as now:
            if writer is not None and batch is not None and batch <= self._published.get(writer, -1):
                return 0
            if self._is_blocked:
                raise QueueBlockedError
            self._refuse_repeats(given)
            missing = [job for job in given if job.id not in self._rows]
            before = len(self._rows)
            try:
                self._take_in(missing, now, is_blocked=False)
            except DependencyError as error:
                index = next(index for index, job in enumerate(given) if job.id == error.job_id)
                raise error.in_batch(index, error.job_id) from None
            if writer is not None and batch is not None:
                self._published[writer] = batch
            return len(self._rows) - before

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
            if parent.job.status is not _S.RUNNING:
                raise _not_possible("spawn", parent.job)
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
                job_id for job_id in ids if self._rows[job_id].job.status is not _S.COMPLETED
            )
            for row in list(self._rows.values()):
                if row.job.id == parent_id or parent_id in row.spawned:
                    self._put(row, spawned=row.spawned | frozenset(family))
            for job_id in self._in_order(waiting):
                self._join(self._rows[job_id], family, now)
            return ids

    def _in_order(self, job_ids: Iterable[str]) -> list[str]:
        return sorted(set(job_ids), key=lambda job_id: self._rows[job_id].number)

    def _join(self, row: _Row, family: Sequence[str], now: datetime) -> None:
        """Let a job wait for others as well, or share their fate."""
        row = self._put(row, open_after=row.open_after | frozenset(family))
        self._share_fate(row, [self._rows[job_id].job for job_id in family], now)

    def _share_fate(self, row: _Row, dependencies: Iterable[Job], now: datetime) -> None:
        for ended in dependencies:
            if ended.status.is_final and ended.status is not _S.COMPLETED:
                self._move(row, Verb.PROPAGATE, _shared_fate(ended.status), now, error=_fate_error(ended))
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

    def _depth(self, row: _Row) -> int:
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
            created_at=_utc(job.created_at or now),
            run_at=None if job.run_at is None else _utc(job.run_at),
            priority=min([Priority(job.priority), *(row.job.priority for row in dependencies)]),
            payload=bytes(job.payload),
        )
        self._inserted += 1
        due_at = job.run_at or now
        spawned = (each for d in job.after for each in self._in_order(self._rows[d].spawned))
        family = dict.fromkeys((*job.after, *spawned))
        row = _Row(
            job=job,
            number=self._inserted,
            depth=depth,
            due_at=due_at,
            submitted_at=now,
            is_delayed=due_at > now,
            open_after=frozenset(d for d in family if self._rows[d].job.status is not _S.COMPLETED),
            waits_for_any=bool(job.after_any)
            and not any(self._rows[d].job.status.is_final for d in job.after_any),
        )
        row = self._write(row, Verb.ENQUEUE, now, source=None)
        self._share_fate(row, [self._rows[other].job for other in family], now)

    # -- claiming -----------------------------------------------------------------------------------------------

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
        request = ClaimRequest(
            assignee_id=assignee_id,
            tags=tags,
            limit=limit,
            types=types,
            key=key,
            job_ids=job_ids,
            owner=owner,
        )
        return self.dequeue_jobs_for([request])[0]

    def dequeue_jobs_for(self, requests: Sequence[ClaimRequest]) -> list[list[Job]]:
        wanted = check.claims(requests)
        with self._transaction() as now:
            for row in list(self._rows.values()):
                if row.is_delayed and row.due_at <= now:
                    self._put(row, is_delayed=False)
            return [[self._view(row, now) for row in self._claim(request, now)] for request in wanted]

    def _claim(self, request: ClaimRequest, now: datetime) -> list[_Row]:
        matching = [row for row in self._rows.values() if _matches(row.job, request)]
        taken: list[_Row] = []
        for row in sorted(matching, key=_selection_order):
            if len(taken) < request.limit and self._is_takeable(row, now):
                taken.append(self._take(row, Verb.CLAIM, request.assignee_id, now, owner=request.owner))
        return taken

    def _take(self, row: _Row, verb: Verb, assignee_id: str, now: datetime, *, owner: str | None) -> _Row:
        row = self._put(row, owner=owner, lease_from=now, attempt_ready_at=row.ready_at, is_delayed=False)
        return self._move(
            row,
            verb,
            _S.RUNNING,
            now,
            attempt=row.job.attempt + 1,
            assignee_id=assignee_id,
            assigned_at=now,
            started_at=row.job.started_at or now,
            attempt_started_at=now,
            progress=0,
            description=None if row.job.attempt else row.job.description,
        )

    def restart_job(self, job_id: str, assignee_id: str, *, owner: str | None = None) -> Job:
        check.text("job_id", job_id, check.MAX_ID)
        check.text("assignee_id", assignee_id, check.MAX_ASSIGNEE)
        with self._transaction() as now:
            row = self._row(job_id)
            if not allows(Verb.RESTART, row.job.status) or not row.job.held or self._key_is_busy(row):
                raise refusal(Verb.RESTART, job_id, row.job.status)
            row = self._put(row, ready_at=now)
            row = self._take(row, Verb.RESTART, assignee_id, now, owner=owner)
            return self._view(row, now)

    # -- reports ------------------------------------------------------------------------------------------------

    def _report(
        self, verb: Verb, job_id: str, attempt: int | None, apply: Report, *, frees: bool = True
    ) -> dict[str, int]:
        """Make one fenced report in its own transaction and return what it freed."""
        with self._transaction() as now:
            return self._report_one(verb, job_id, attempt, apply, now, frees=frees)

    def _report_one(
        self,
        verb: Verb,
        job_id: str,
        attempt: int | None,
        apply: Report,
        now: datetime,
        *,
        frees: bool = True,
    ) -> dict[str, int]:
        row = self._row(job_id)
        is_over = not allows(verb, row.job.status) and row.job.status not in IN_FLIGHT
        if attempt is not None and (attempt != row.job.attempt or is_over):
            raise StaleAttemptError(
                job_id=job_id,
                status=str(row.job.status),
                verb=str(verb),
                attempt=attempt,
                current_attempt=row.job.attempt,
            )
        if not allows(verb, row.job.status):
            raise refusal(verb, job_id, row.job.status)
        held = row.job.status in IN_FLIGHT
        apply(row, now)
        return {row.job.assignee_id: 1} if held and frees and row.job.assignee_id is not None else {}

    def _reports(
        self, verb: Verb, reports: Mapping[str, Report], attempts: Mapping[str, int] | None
    ) -> dict[str, int]:
        """Make many reports in one transaction, best effort."""
        fences = check.attempts(attempts)
        freed: dict[str, int] = {}
        refused: list[Exception] = []
        with self._transaction() as now:
            for job_id, apply in reports.items():
                try:
                    for assignee, count in self._report_one(
                        verb, job_id, fences.get(job_id), apply, now
                    ).items():
                        freed[assignee] = freed.get(assignee, 0) + count
                except PenstockError as error:
                    refused.append(error)
        if refused:
            raise ReportErrors(f"{len(refused)} of {len(reports)} reports were refused", refused, freed)
        return freed

    def _completing(self, result: bytes | None) -> Report:
        data = check.optional_data("result", result, self._options.max_payload)

        def apply(row: _Row, now: datetime) -> _Row:
            started_at = row.job.started_at or now
            return self._move(
                row, Verb.COMPLETE, _S.COMPLETED, now, result=data, finalized_at=now, started_at=started_at
            )

        return apply

    def complete_job(
        self, job_id: str, result: bytes | None = None, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        return self._report(Verb.COMPLETE, job_id, attempt, self._completing(result))

    def complete_jobs(
        self, results: Mapping[str, bytes | None], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("results", results)
        reports = {job_id: self._completing(result) for job_id, result in given.items()}
        return self._reports(Verb.COMPLETE, reports, attempts)

    def _failing(self, failure: Failure) -> Report:
        failure = check.failure(failure)

        def apply(row: _Row, now: datetime) -> _Row:
            return self._fail(row, Verb.FAIL, failure, now)

        return apply

    def _fail(self, row: _Row, verb: Verb, failure: Failure, now: datetime) -> _Row:
        job, policy, category = row.job, row.job.retry, failure.category
        was_counted = row.lost_attempt == job.attempt
        counts = category is not FailureCategory.CANCELLED and not was_counted
        failures = job.failures + counts
        delay = check.optional_duration("retry_after", failure.retry_after)
        if category is FailureCategory.PERMANENT:
            target = _S.FAILED
        elif category is FailureCategory.CANCELLED:
            target = _S.STOPPED
        elif policy is None or policy.allows(category, failures):
            target = _S.FAILED_RETRY
        else:
            target = _S.DEAD_LETTER
        if delay is None and policy is not None and target is _S.FAILED_RETRY:
            delay = policy.delay(failures)
        return self._move(
            row,
            verb,
            target,
            now,
            due_at=now + (delay or timedelta(0)),
            error={
                "error_message": failure.message,
                "error_category": category,
                "error_code": failure.code,
            },
            retry_count=job.retry_count + 1,
            failures=failures,
            last_retry_at=now,
        )

    def fail_job(
        self,
        job_id: str,
        error_message: str,
        *,
        attempt: int | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: timedelta | float | None = None,
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        failure = Failure(message=error_message, category=category, code=code, retry_after=retry_after)
        return self._report(Verb.FAIL, job_id, attempt, self._failing(failure))

    def fail_jobs(
        self,
        failures: Mapping[str, str | Failure],
        *,
        attempts: Mapping[str, int] | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: timedelta | float | None = None,
    ) -> dict[str, int]:
        reports = {}
        for job_id, given in check.mapping("failures", failures).items():
            plain = not isinstance(given, Failure)
            reports[job_id] = self._failing(
                Failure(message=given, category=category, code=code, retry_after=retry_after)
                if plain
                else given
            )
        return self._reports(Verb.FAIL, reports, attempts)

    def _ending(self, verb: Verb, target: JobStatus, message: str, *, retried: bool = False) -> Report:
        text = check.message("error_message", message)

        def apply(row: _Row, now: datetime) -> _Row:
            fields: dict[str, Any] = {}
            if retried:
                fields = {"retry_count": row.job.retry_count + 1, "last_retry_at": now}
            return self._move(row, verb, target, now, error={"error_message": text}, **fields)

        return apply

    def stop_job(self, job_id: str, error_message: str = "", *, attempt: int | None = None) -> dict[str, int]:
        check.report(job_id, attempt)
        return self._report(Verb.STOP, job_id, attempt, self._ending(Verb.STOP, _S.STOPPED, error_message))

    def stop_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {each: self._ending(Verb.STOP, _S.STOPPED, text) for each, text in given.items()}
        return self._reports(Verb.STOP, reports, attempts)

    def stop_job_with_retry(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        apply = self._ending(Verb.STOP_WITH_RETRY, _S.STOPPED, error_message, retried=True)
        return self._report(Verb.STOP_WITH_RETRY, job_id, attempt, apply)

    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {
            each: self._ending(Verb.STOP_WITH_RETRY, _S.STOPPED, text, retried=True)
            for each, text in given.items()
        }
        return self._reports(Verb.STOP_WITH_RETRY, reports, attempts)

    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        apply = self._ending(Verb.MARK_UNKNOWN_STOPPED, _S.UNKNOWN_STOPPED, error_message)
        return self._report(Verb.MARK_UNKNOWN_STOPPED, job_id, attempt, apply)

    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {
            each: self._ending(Verb.MARK_UNKNOWN_STOPPED, _S.UNKNOWN_STOPPED, text)
            for each, text in given.items()
        }
        return self._reports(Verb.MARK_UNKNOWN_STOPPED, reports, attempts)

    def update_job_status(
        self,
        job_id: str,
        status: JobStatus,
        result: bytes | None = None,
        error_message: str = "",
        *,
        attempt: int | None = None,
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        target = check.status("status", status)
        data = check.optional_data("result", result, self._options.max_payload)
        text = check.message("error_message", error_message)
        with self._transaction() as now:
            row = self._row(job_id)
            source = row.job.status
            is_over = source not in {*IN_FLIGHT, _S.UNKNOWN_RETRY, _S.UNKNOWN_STOPPED}
            if attempt is not None and (attempt != row.job.attempt or is_over):
                raise StaleAttemptError(
                    job_id=job_id,
                    status=str(source),
                    verb=str(Verb.UPDATE_STATUS),
                    attempt=attempt,
                    current_attempt=row.job.attempt,
                )
            if source is target and not source.is_final:
                return {}
            if not allows(Verb.UPDATE_STATUS, source, target):
                raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
            if target in IN_FLIGHT and self._key_is_busy(row):
                raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
            fields: dict[str, Any] = {}
            if data is not None:
                fields["result"] = data
            if text:
                fields["error_message"] = text
            if target in IN_FLIGHT and source not in IN_FLIGHT:
                row = self._put(row, owner=None, lease_from=now)
            self._move(row, Verb.UPDATE_STATUS, target, now, **fields)
            freed = source in IN_FLIGHT and target in _FREEING_UPDATES
            return {row.job.assignee_id: 1} if freed and row.job.assignee_id is not None else {}

    def release_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {job_id: self._releasing(text) for job_id, text in given.items()}
        return self._reports(Verb.RELEASE, reports, attempts)

    def _releasing(self, message: str) -> Report:
        text = check.message("error_message", message)

        def apply(row: _Row, now: datetime) -> _Row:
            target = _S.FAILED_RETRY if row.job.status is _S.RUNNING else _S.STOPPED
            return self._move(
                row,
                Verb.RELEASE,
                target,
                now,
                error={"error_message": text},
                retry_count=row.job.retry_count + 1,
                last_retry_at=now,
            )

        return apply

    # -- cancellation -------------------------------------------------------------------------------------------

    def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, waiting_only: bool = False
    ) -> tuple[list[str], list[str]]:
        check.flag("waiting_only", waiting_only)
        tags, job_ids = check.selection(tags, job_ids)
        with self._transaction() as now:
            cancelled: list[str] = []
            unknown = [job_id for job_id in job_ids if job_id not in self._rows]
            for row in self._select(tags, job_ids):
                status = row.job.status
                if status.is_final or (waiting_only and status in IN_FLIGHT):
                    unknown.append(row.job.id)
                    continue
                cancelled.append(row.job.id)
                if status is not _S.CANCELLING:
                    self._move(row, Verb.CANCEL, _CANCEL_TO[status], now)
            return cancelled, unknown

    def acknowledge_cancellation(
        self, job_id: str, was_executing: bool, *, attempt: int | None = None
    ) -> None:
        check.report(job_id, attempt)
        self._report(Verb.ACKNOWLEDGE, job_id, attempt, self._acknowledging(was_executing))

    def acknowledge_cancellations(
        self, executing: Mapping[str, bool], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        given = check.mapping("executing", executing)
        reports = {job_id: self._acknowledging(flag) for job_id, flag in given.items()}
        self._reports(Verb.ACKNOWLEDGE, reports, attempts)

    def _acknowledging(self, was_executing: bool) -> Report:
        if not check.flag("was_executing", was_executing):
            return lambda row, now: self._move(row, Verb.ACKNOWLEDGE, _S.UNKNOWN_STOPPED, now)
        error = {"error_category": FailureCategory.CANCELLED}
        return lambda row, now: self._move(row, Verb.ACKNOWLEDGE, _S.STOPPED, now, error=error)

    # -- holders ------------------------------------------------------------------------------------------------

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        check.text("assignee_id", assignee_id, check.MAX_ASSIGNEE)
        with self._transaction() as now:
            for row in list(self._rows.values()):
                if row.job.assignee_id == assignee_id and row.job.status in IN_FLIGHT:
                    self._lose(row, Verb.UNRESPONSIVE, now)

    def reset_running_jobs(self) -> None:
        with self._transaction() as now:
            for row in list(self._rows.values()):
                if row.job.status in IN_FLIGHT:
                    self._lose(row, Verb.RESET, now)

    def _lose(self, row: _Row, verb: Verb, now: datetime) -> None:
        job = row.job
        if job.status is _S.CANCELLING:
            self._move(row, verb, _S.UNKNOWN_STOPPED, now)
            return
        if job.retry is None:
            self._move(row, verb, _S.UNKNOWN_RETRY, now)
            return
        row = self._put(row, lost_attempt=job.attempt)
        if job.failures + 1 < job.retry.max_attempts:
            self._move(row, verb, _S.UNKNOWN_RETRY, now, failures=job.failures + 1)
        else:
            error = {
                "error_message": f"attempt {job.attempt} was lost, and it was the last allowed",
                "error_category": FailureCategory.SYSTEM,
                "error_code": "lost",
            }
            self._move(row, verb, _S.DEAD_LETTER, now, error=error, failures=job.failures + 1)

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        check.text("assignee_id", assignee_id, check.MAX_ASSIGNEE)
        wanted = None if jobs is None else check.attempts(jobs, field="jobs")
        with self._transaction() as now:
            held = [
                row
                for row in self._rows.values()
                if row.job.assignee_id == assignee_id
                and row.job.status in IN_FLIGHT
                and (wanted is None or wanted.get(row.job.id) == row.job.attempt)
            ]
            for row in held:
                self._put(row, lease_from=now)
            return len(held)

    def open_owner(self) -> str:
        with self._transaction() as now:
            owner = str(uuid.uuid4())
            self._owners[owner] = self._opened[owner] = now
            return owner

    def beat_owner(self, owner: str, *, intakes: Sequence[Intake] | None = None) -> bool:
        check.text("owner", owner, check.MAX_ID)
        told = None if intakes is None else check.intakes("intakes", intakes)
        with self._transaction() as now:
            if owner not in self._owners:
                return False
            self._owners[owner] = now
            if told is not None:
                self._intakes[owner] = told
            return True

    def has_owner(self, owner: str) -> bool:
        with self._transaction():
            return owner in self._owners

    def close_owner(self, owner: str) -> None:
        with self._transaction():
            self._owners.pop(owner, None)

    # -- while running ------------------------------------------------------------------------------------------

    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        check.report(job_id, attempt)
        fields: dict[str, Any] = {"progress": check.whole("percent", percent, 0, 100)}
        if description is not None:
            fields["description"] = check.text("description", description, 10_000, empty=True)
        self._note(job_id, attempt, "save_progress", **fields)

    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        check.report(job_id, attempt)
        kept = check.data("checkpoint", data, self._options.max_payload)
        self._note(job_id, attempt, "save_checkpoint", checkpoint=kept)

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:
        check.report(job_id, attempt)
        with self._transaction():
            row = self._row(job_id)
            self._check_in_flight(row, attempt, "save_output")
            self._outputs[job_id] = output

    def get_output(self, job_id: str) -> str:
        with self._transaction():
            self._row(job_id)
            return self._outputs.get(job_id, "")

    def _note(self, job_id: str, attempt: int | None, verb: str, **fields: Any) -> None:
        with self._transaction():
            row = self._row(job_id)
            self._check_in_flight(row, attempt, verb)
            self._put(row, job=msgspec.structs.replace(row.job, **fields))

    def _check_in_flight(self, row: _Row, attempt: int | None, verb: str) -> None:
        is_over = row.job.status not in IN_FLIGHT
        if attempt is not None and (attempt != row.job.attempt or is_over):
            raise StaleAttemptError(
                job_id=row.job.id,
                status=str(row.job.status),
                verb=verb,
                attempt=attempt,
                current_attempt=row.job.attempt,
            )
        if is_over:
            raise _not_possible(verb, row.job)

    # -- changing and repeating ---------------------------------------------------------------------------------

    def update_job(
        self,
        job_id: str,
        *,
        priority: Priority | int | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
    ) -> None:
        check.text("job_id", job_id, check.MAX_ID)
        fields = check.changes(priority, tags, correlation_id, callback_url)
        with self._transaction() as now:
            row = self._row(job_id)
            if row.job.status.is_final:
                raise refusal(Verb.UPDATE, job_id, row.job.status)
            self._write(row, Verb.UPDATE, now, source=row.job.status, **fields)
            if "priority" in fields:
                self._raise_dependents(job_id, fields["priority"], now)

    def _raise_dependents(self, job_id: str, priority: Priority, now: datetime) -> None:
        """Raise every unfinished job that waits for this one, directly or not; none is lowered."""
        behind, reached = [job_id], {job_id}
        while behind:
            first = behind.pop(0)
            for row in list(self._rows.values()):
                waits = first in row.open_after or (row.waits_for_any and first in row.job.after_any)
                if not waits or row.job.id in reached or row.job.status.is_final:
                    continue
                reached.add(row.job.id)
                behind.append(row.job.id)
                if row.job.priority > priority:
                    self._write(row, Verb.UPDATE, now, source=row.job.status, priority=priority)

    def redrive_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> list[str]:
        tags, job_ids = check.selection(tags, job_ids)
        dead = {_S.FAILED, _S.DEAD_LETTER}
        with self._transaction() as now:
            if self._is_blocked:
                raise QueueBlockedError
            for job_id in job_ids:
                if self._row(job_id).job.status not in dead:
                    status = self._row(job_id).job.status
                    text = f"job {job_id} cannot be redriven: it is {status}"
                    raise InvalidTransitionError(text, job_id=job_id, status=str(status), verb="redrive")
            listed = {job_id: position for position, job_id in enumerate(job_ids)}
            chosen = [
                row.job
                for row in self._select(tags, job_ids)
                if row.job.status in dead and (row.verb != Verb.PROPAGATE or row.job.id in job_ids)
            ]
            chosen.sort(key=lambda job: listed.get(job.id, len(listed)))
            copies = [_copy_of(job, self._new_id()) for job in chosen]
            for copy in copies:
                self._insert(copy, now)
            return [copy.id for copy in copies]

    # -- reading ------------------------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> Job:
        check.text("job_id", job_id, check.MAX_ID)
        self._check_usable()
        with self._lock:
            return self._view(self._row(job_id), self._clock.now())

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        wanted = check.ids("job_ids", job_ids)
        self._check_usable()
        with self._lock:
            now = self._clock.now()
            return {job_id: self._view(self._rows[job_id], now) for job_id in wanted if job_id in self._rows}

    def get_job_stats(self, tags: Sequence[str] = ()) -> JobStats:
        wanted = check.tags("tags", tags)
        self._check_usable()
        with self._lock:
            jobs = [row.job for row in self._rows.values() if set(wanted) <= set(row.job.tags)]
        statuses = [job.status for job in jobs]
        return JobStats(
            tags=wanted,
            total_jobs=len(jobs),
            pending_jobs=statuses.count(_S.INITIAL_PENDING),
            running_jobs=statuses.count(_S.RUNNING),
            completed_jobs=statuses.count(_S.COMPLETED),
            stopped_jobs=sum(status.is_final and status is not _S.COMPLETED for status in statuses),
            failed_jobs=statuses.count(_S.FAILED_RETRY) + statuses.count(_S.UNKNOWN_RETRY),
            total_retries=sum(job.retry_count for job in jobs),
        )

    def overview(self) -> Overview:
        self._check_usable()
        with self._lock:
            now = self._clock.now()
            rows = list(self._rows.values())
            entered = self._entered_before + _entries_into(self._journal)
            ready = [row for row in rows if self._is_takeable(row, now) and not row.job.held]
            delayed = [
                row
                for row in rows
                if row.job.status.is_eligible
                and not row.job.held
                and row.due_at > now
                and not self._waits(row)
            ]
            pending = sum(row.job.status.is_eligible for row in rows)
            types = sorted({row.job.type for row in rows} | {name for name, _ in entered})
            return Overview(
                at=now,
                schema_version=1,
                is_blocked=self._is_blocked,
                types=tuple(
                    TypeView(
                        type=name,
                        jobs=dict(Counter(row.job.status for row in rows if row.job.type == name)),
                        entered={
                            status: count for (type_, status), count in entered.items() if type_ == name
                        },
                        ready=sum(row.job.type == name for row in ready),
                        oldest_ready_at=_longest_ready([row for row in ready if row.job.type == name]),
                    )
                    for name in types
                ),
                delayed=len(delayed),
                waiting=pending - len(ready) - len(delayed),
                owners=tuple(self._owner_view(owner) for owner in sorted(self._owners)),
                undelivered=sum(each.due_at is not None for each in self._deliveries.values()),
                given_up=sum(each.due_at is None for each in self._deliveries.values()),
            )

    def _owner_view(self, owner: str) -> OwnerView:
        return OwnerView(
            id=owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            opened_at=self._opened[owner],
            beat_at=self._owners[owner],
            is_alive=True,  # its owners are this process, which never judges itself
            running=sum(row.owner == owner and row.job.status in IN_FLIGHT for row in self._rows.values()),
            intakes=self._intakes.get(owner, ()),
        )

    def list_jobs(
        self,
        *,
        status: JobStatus | None = None,
        type: str | None = None,
        tags: Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        wanted = check.tags("tags", tags)
        check.whole("limit", limit, 1, 1000)
        if status is not None:
            status = check.status("status", status)
        if type is not None:
            check.text("type", type, check.MAX_TYPE)
        if after is not None:
            check.text("after", after, check.MAX_ID)
        self._check_usable()
        with self._lock:
            start = self._row(after).number if after is not None else 0
            now = self._clock.now()
            matching = [
                row
                for row in self._rows.values()
                if row.number > start
                and status in (None, row.job.status)
                and type in (None, row.job.type)
                and set(wanted) <= set(row.job.tags)
            ]
            return [self._view(row, now) for row in matching[:limit]]

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        check.whole("after", after, 0, 2**62)
        check.whole("limit", limit, 1, 2**31)
        self._check_usable()
        with self._lock:
            start = bisect_right(self._journal, after, key=lambda row: row.seq)
            return self._journal[start : start + limit]

    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        check.text("job_id", job_id, check.MAX_ID)
        check.whole("limit", limit, 1, 2**31)
        self._check_usable()
        with self._lock:
            self._row(job_id)
            found: list[JournalEntry] = []
            for row in self._journal:
                if row.job_id == job_id:
                    found = [] if row.verb in (Verb.DELETE, Verb.CLEANUP) else [*found, row]
            return found[-limit:]

    def _last_seq(self) -> int:
        return self._journal[-1].seq if self._journal else 0

    # -- consumers of the journal -------------------------------------------------------------------------------

    def register_consumer(self, name: str, *, seq: int = 0) -> JournalConsumer:
        check.text("name", name, check.MAX_NAME)
        check.whole("seq", seq, 0, 2**62)
        with self._transaction() as now:
            if name not in self._consumers:
                self._check_reached(seq)
                self._consumers[name] = JournalConsumer(name=name, seq=seq, updated_at=now)
            return self._consumers[name]

    def hold_consumer(self, name: str, holder: str, lease: timedelta | float) -> JournalConsumer | None:
        check.text("name", name, check.MAX_NAME)
        check.text("holder", holder, check.MAX_ID)
        span = check.span("lease", lease)
        with self._transaction() as now:
            found = self._consumer(name)
            if found.holder != holder and _is_held(found, now):
                return None
            if span:
                changes: dict[str, Any] = {"holder": holder, "held_until": now + span, "updated_at": now}
            elif found.holder == holder:
                changes = {"holder": None, "held_until": None, "updated_at": now}
            else:
                changes = {}
            self._consumers[name] = msgspec.structs.replace(found, **changes)
            return self._consumers[name]

    def advance_consumer(self, name: str, seq: int, *, holder: str | None = None) -> bool:
        check.text("name", name, check.MAX_NAME)
        check.whole("seq", seq, 0, 2**62)
        if holder is not None:
            check.text("holder", holder, check.MAX_ID)
        with self._transaction() as now:
            found = self._consumer(name)
            if found.holder != holder and not (holder is None and not _is_held(found, now)):
                return False
            if seq > found.seq:
                self._check_reached(seq)
                self._consumers[name] = msgspec.structs.replace(found, seq=seq, updated_at=now)
            return True

    def list_consumers(self) -> list[JournalConsumer]:
        self._check_usable()
        with self._lock:
            return [self._consumers[name] for name in sorted(self._consumers)]

    def forget_consumer(self, name: str) -> bool:
        check.text("name", name, check.MAX_NAME)
        with self._transaction():
            return self._consumers.pop(name, None) is not None

    def archive_journal(self, older_than: timedelta | float) -> JournalArchive:
        age = check.span("older_than", older_than)
        with self._transaction() as now:
            floor = min([self._last_seq() - 1, *(each.seq for each in self._consumers.values())])
            pieces: dict[tuple[str, int], list[JournalEntry]] = {}
            begun: dict[str, int] = {}
            for row in self._journal:  # an id that is used again begins another history
                begun.setdefault(row.job_id, row.seq)
                pieces.setdefault((row.job_id, begun[row.job_id]), []).append(row)
                if row.verb in (Verb.DELETE, Verb.CLEANUP):
                    del begun[row.job_id]
            gone = [
                row
                for rows in pieces.values()
                if rows[-1].status.is_final and rows[-1].recorded_at + age <= now and rows[-1].seq <= floor
                for row in rows
            ]
            self._entered_before += _entries_into(gone)
            removed = {row.seq for row in gone}
            self._journal = [row for row in self._journal if row.seq not in removed]
            done = JournalArchive(
                histories=sum(row.n == 1 for row in gone), rows=len(gone), upto=max(removed, default=0)
            )
            self._archive = JournalArchive(
                histories=self._archive.histories + done.histories,
                rows=self._archive.rows + done.rows,
                upto=max(self._archive.upto, done.upto),
            )
            return done

    def get_archive(self) -> JournalArchive:
        self._check_usable()
        return self._archive

    # -- callbacks and schedules --------------------------------------------------------------------------------

    def save_deliveries(
        self,
        holder: str,
        deliveries: Sequence[Delivery] = (),
        *,
        done: Sequence[int] = (),
        seq: int | None = None,
    ) -> bool:
        check.text("holder", holder, check.MAX_ID)
        check.deliveries(deliveries)
        for each in check.sequence("done", done):
            check.whole("done", each, 0, 2**62)
        if seq is not None:
            check.whole("seq", seq, 0, 2**62)
        with self._transaction() as now:
            found = self._consumer(CALLBACKS)
            if found.holder != holder:
                return False
            if seq is not None and seq > found.seq:
                self._check_reached(seq)
                self._consumers[CALLBACKS] = msgspec.structs.replace(found, seq=seq, updated_at=now)
            for delivery in deliveries:
                self._deliveries[delivery.seq] = delivery
                self._given_up_at[delivery.seq] = now
            for each in done:
                self._deliveries.pop(each, None)
            return True

    def due_deliveries(self, limit: int = 100, *, per_lane: int = 1) -> list[Delivery]:
        check.whole("limit", limit, 1, 2**31)
        check.whole("per_lane", per_lane, 1, 2**31)
        self._check_usable()
        with self._lock:
            now = self._clock.now()
            due = [(each.due_at, each.seq, each) for each in self._deliveries.values() if each.due_at]
        chosen: list[Delivery] = []
        for due_at, _, each in sorted(due, key=lambda entry: entry[:2]):
            if due_at <= now and sum(other.lane == each.lane for other in chosen) < per_lane:
                chosen.append(each)
        return chosen[:limit]

    def list_deliveries(self, after: int = 0, limit: int = 100) -> list[Delivery]:
        check.whole("after", after, 0, 2**62)
        check.whole("limit", limit, 1, 1000)
        self._check_usable()
        with self._lock:
            return [self._deliveries[seq] for seq in sorted(self._deliveries) if seq > after][:limit]

    def count_deliveries(self) -> tuple[int, int]:
        self._check_usable()
        with self._lock:
            given_up = sum(each.due_at is None for each in self._deliveries.values())
            return len(self._deliveries) - given_up, given_up

    def retry_deliveries(self) -> int:
        with self._transaction() as now:
            given_up = [each for each in self._deliveries.values() if each.due_at is None]
            for each in given_up:
                self._deliveries[each.seq] = msgspec.structs.replace(each, due_at=now, attempts=0)
            return len(given_up)

    def _forget_given_up(self, now: datetime) -> None:
        for seq, each in list(self._deliveries.items()):
            if each.due_at is None and self._given_up_at[seq] + timedelta(days=30) <= now:
                del self._deliveries[seq]

    def tick_schedule(
        self, name: str, tick: datetime, jobs: Sequence[Job] = (), *, after: datetime | None
    ) -> bool:
        check.text("name", name, check.MAX_NAME)
        if tick is None:
            raise check.bad("tick", "an aware datetime", tick)
        check.moment("tick", tick)
        if after is not None:
            check.moment("after", after)
        checked = [check.job(job, self._options.max_payload) for job in check.sequence("jobs", jobs)]
        with self._transaction() as now:
            known = self._schedules.get(name)
            if (None if known is None else known.tick) != after:
                return False
            if checked:
                self._take_in(checked, now, is_blocked=self._is_blocked)
            self._schedules[name] = Schedule(name=name, tick=_utc(tick), updated_at=now)
            return True

    def list_schedules(self) -> list[Schedule]:
        self._check_usable()
        with self._lock:
            return [self._schedules[name] for name in sorted(self._schedules)]

    def forget_schedule(self, name: str) -> bool:
        check.text("name", name, check.MAX_NAME)
        with self._transaction():
            return self._schedules.pop(name, None) is not None

    def _consumer(self, name: str) -> JournalConsumer:
        if name not in self._consumers:
            raise check.bad("name", "that of a registered consumer", name)
        return self._consumers[name]

    def _check_reached(self, seq: int) -> None:
        if seq > self._last_seq():
            raise check.bad("seq", f"at most {self._last_seq()}, the newest row of the journal", seq)

    def store_id(self) -> str:
        self._check_usable()
        return self._store_id

    def journal_span(self) -> tuple[int, int]:
        self._check_usable()
        with self._lock:
            return (self._journal[0].seq, self._last_seq()) if self._journal else (1, 0)

    def jobs_span(self) -> tuple[int, int]:
        self._check_usable()
        with self._lock:
            numbers = [row.number for row in self._rows.values()]
        return min(numbers, default=1), max(numbers, default=0)

    # -- upkeep -------------------------------------------------------------------------------------------------

    def maintain(self) -> Maintenance:
        with self._transaction() as now:
            expired = self._expire(now)
            lost = self._lose_abandoned(now)
            timed_out = self._time_out(now)
            due = self._wake_delayed(now)
            removed = self._apply_retention(now)
            self._forget_given_up(now)
            return Maintenance(expired=expired, lost=lost, timed_out=timed_out, due=due, removed=removed)

    def _expire(self, now: datetime) -> int:
        spent = [
            row
            for row in self._rows.values()
            if not row.job.status.is_final and _is_past(row.job.created_at, row.job.timeouts.lifetime, now)
        ]
        error = {
            "error_message": "its lifetime is over",
            "error_category": FailureCategory.TIMEOUT,
            "error_code": "lifetime",
        }
        for row in spent:
            self._move(row, Verb.EXPIRE, _S.DEAD_LETTER, now, error=error)
        return len(spent)

    def _lose_abandoned(self, now: datetime) -> int:
        lost = [
            row
            for row in self._rows.values()
            if row.job.status in IN_FLIGHT
            and (
                _is_past(row.lease_from, row.job.timeouts.visibility, now)
                if row.owner is None
                else row.owner not in self._owners
            )
        ]
        for row in lost:
            self._lose(row, Verb.LOSE, now)
        return len(lost)

    def _time_out(self, now: datetime) -> int:
        late = [
            row
            for row in self._rows.values()
            if row.job.status is _S.RUNNING
            and row.job.timeouts.execution is not None
            and _is_past(row.job.attempt_started_at, row.job.timeouts.execution + _TIMEOUT_GRACE, now)
        ]
        failure = Failure(
            message="its execution time is over", category=FailureCategory.TIMEOUT, code="execution_timeout"
        )
        for row in late:
            self._fail(row, Verb.TIME_OUT, failure, now)
        return len(late)

    def _wake_delayed(self, now: datetime) -> int:
        due = [row for row in self._rows.values() if row.is_delayed and row.due_at <= now]
        for row in due:
            self._put(row, is_delayed=False)
        return sum(row.job.status.is_eligible and not self._waits(row) for row in due)

    def _apply_retention(self, now: datetime) -> int:
        rule = self._options.retention
        if rule is None:
            return 0
        old = [
            row
            for row in self._rows.values()
            if row.job.status.is_final
            and row.job.id not in self._ended
            and _is_past(
                row.job.finalized_at,
                rule.completed if row.job.status is _S.COMPLETED else rule.other,
                now,
            )
        ]
        for row in old:
            self._remove(row, Verb.CLEANUP, now)
        return len(old)

    def cleanup_expired_jobs(self, ttl: timedelta) -> int:
        span = check.ttl(ttl)
        with self._transaction() as now:
            old = [
                row
                for row in self._rows.values()
                if row.job.status is _S.COMPLETED and _is_past(row.job.finalized_at, span, now)
            ]
            for row in old:
                self._remove(row, Verb.CLEANUP, now)
            return len(old)

    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        tags, job_ids = check.selection(tags, job_ids)
        with self._transaction() as now:
            chosen = self._select(tags, job_ids)
            for row in chosen:
                if not row.job.status.is_final:
                    raise refusal(Verb.DELETE, row.job.id, row.job.status)
            for row in chosen:
                self._remove(row, Verb.DELETE, now)
            return len(chosen)

    def set_blocked(self, blocked: bool) -> None:
        check.flag("blocked", blocked)
        with self._transaction():
            self._is_blocked = blocked

    def is_blocked(self) -> bool:
        self._check_usable()
        return self._is_blocked

    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        self._check_usable()
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def now(self) -> datetime:
        return self._clock.now()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True


def _not_possible(verb: str, job: Job) -> InvalidTransitionError:
    text = f"{verb} of job {job.id} is not possible: it is {job.status}"
    return InvalidTransitionError(text, job_id=job.id, status=str(job.status), verb=verb)


def _is_held(consumer: JournalConsumer, now: datetime) -> bool:
    # A lease that begins in the future was taken before the clock was set back.
    return consumer.held_until is not None and consumer.updated_at <= now < consumer.held_until


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _entries_into(rows: Iterable[JournalEntry]) -> Counter[tuple[str, JobStatus]]:
    """Count by type how often a status was entered."""
    return Counter((row.type, row.status) for row in rows if row.from_status is not row.status)


def _longest_ready(rows: Sequence[_Row]) -> datetime | None:
    """Return since when the longest waiting is ready, of the first in line of each priority and those just due."""
    heads: dict[int, _Row] = {}
    for row in sorted(rows, key=_selection_order):
        if not row.is_delayed:
            heads.setdefault(row.job.priority, row)
    due = [row.due_at for row in rows if row.is_delayed]
    return min([*(row.ready_at for row in heads.values() if row.ready_at), *due], default=None)


def _selection_order(row: _Row) -> tuple[Any, ...]:
    return row.job.priority, row.job.last_retry_at or row.job.created_at, row.number


def _matches(job: Job, request: ClaimRequest) -> bool:
    if request.job_ids is None and job.held:
        return False
    return (
        set(request.tags) <= set(job.tags)
        and (request.types is None or job.type in request.types)
        and (request.key is None or job.key == request.key)
        and (request.job_ids is None or job.id in request.job_ids)
    )


def _is_past(start: datetime | None, span: timedelta | None, now: datetime) -> bool:
    return start is not None and span is not None and start + span <= now


def _shared_fate(status: JobStatus) -> JobStatus:
    return _S.UNSCHEDULED if status in CANCELLED else status


def _fate_error(ended: Job) -> dict[str, Any]:
    return {"error_message": f"the job {ended.id} it waited for is {ended.status}"}


def _follow_aliases(job: Job, renamed: Mapping[str, str]) -> Job:
    def follow(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(renamed.get(each, each) for each in ids))

    return msgspec.structs.replace(job, after=follow(job.after), after_any=follow(job.after_any))


def _copy_of(job: Job, new_id: str) -> Job:
    return Job(
        id=new_id,
        redrive_of=job.id,
        type=job.type,
        payload=job.payload,
        tags=job.tags,
        correlation_id=job.correlation_id,
        trace=job.trace,
        callback_url=job.callback_url,
        priority=job.priority,
        key=job.key,
        parent_id=job.parent_id,
        held=job.held,
        retry=job.retry,
        timeouts=job.timeouts,
    )


def _change(entry: JournalEntry, available: bool) -> Change:
    return Change(
        job_id=entry.job_id,
        type=entry.type,
        key=entry.key,
        tags=entry.tags,
        verb=entry.verb,
        from_status=entry.from_status,
        status=entry.status,
        attempt=entry.attempt,
        assignee_id=entry.assignee_id,
        at=entry.recorded_at,
        available=available,
    )
