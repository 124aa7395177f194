"""The state of a model, one transaction per verb, and the changes of rows that verbs share."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from penstock.backends import Change, Delivery, Schedule
from penstock.backends.contract.overview import Intake
from penstock.clock import Clock, SystemClock
from penstock.errors import JobNotFoundError, QueueClosedError, invalid
from penstock.job import IN_FLIGHT, Job, JobStatus, JournalArchive, JournalConsumer, JournalEntry, state_of
from penstock.lifecycle import Verb
from penstock.scope import checkpoint
from penstock.testing import _checks as check
from penstock.testing.model._rows import Row, S, change_of, check_fence, fate_error, not_possible, shared_fate

#: Fields of journal rows that are those of the job; the others depend on the change.
_COPIED = tuple(
    name
    for name in JournalEntry.__struct_fields__
    if name in Job.__struct_fields__ and name not in {"after", "after_any", "parent_id", "started_at"}
)


class ModelState:
    """The state of a model, and the changes that all verbs are made of."""

    def __init__(
        self, clock: Clock | None = None, *, new_id: Callable[[], str] | None = None, **options: Any
    ) -> None:
        self.clock = SystemClock() if clock is None else clock
        self.options = check.options(options)
        self.new_id = new_id or (lambda: str(uuid.uuid4()))
        self.lock = threading.RLock()
        self.outputs: dict[str, str] = {}
        self.rows: dict[str, Row] = {}
        self.journal: list[JournalEntry] = []
        self.consumers: dict[str, JournalConsumer] = {}
        self.archive = JournalArchive()
        self.deliveries: dict[int, Delivery] = {}
        self.given_up_at: dict[int, datetime] = {}
        self.schedules: dict[str, Schedule] = {}
        self.owners: dict[str, datetime] = {}
        self.opened: dict[str, datetime] = {}
        self.intakes: dict[str, tuple[Intake, ...]] = {}
        self.unresponsive: set[str] = set()
        self.entered_before: Counter[tuple[str, JobStatus]] = Counter()
        self.is_blocked = False
        self.iterating: set[int] = set()
        self.is_closed = False
        self.inserted = 0
        #: The id of the job that has an idempotency key, by type and key.
        self.key_holders: dict[tuple[str, str], str] = {}
        self.store_id = uuid.uuid4().hex
        self.published: dict[str, int] = {}
        self.ended: list[str] = []
        self.takeable: set[str] = set()
        self.listeners: list[Callable[[Sequence[Change]], None]] = []

    @contextmanager
    def transaction(self) -> Iterator[datetime]:
        """Run a verb: all of its changes stay, or none."""
        self.check_usable()
        if threading.get_ident() in self.iterating:
            raise invalid("jobs", "without effects of their own on the store", None)
        with self.lock:
            self.check_usable()
            saved = dict(self.rows), len(self.journal), dict(self.owners), self.is_blocked, self.inserted
            holders = dict(self.key_holders)
            now = self.clock.now()
            try:
                yield now
                self.settle(now)
            except BaseException:
                self.rows, length, self.owners, self.is_blocked, self.inserted = saved
                self.key_holders = holders
                del self.journal[length:]
                self.ended = []
                raise
            self.announce(self.journal[saved[1] :], now)

    def check_usable(self) -> None:
        if self.is_closed:
            raise QueueClosedError
        checkpoint()

    def settle(self, now: datetime) -> None:
        """Propagate the ends of jobs to their dependents, then note the jobs that became ready."""
        while self.ended:
            self.settle_dependents(self.ended.pop(0), now)
        for row in list(self.rows.values()):
            if row.job.status.is_eligible:
                ready_at = None if self.waits(row) else row.ready_at or max(row.due_at, now)
                self.put(row, ready_at=ready_at)

    def settle_dependents(self, job_id: str, now: datetime) -> None:
        ended = self.rows[job_id].job
        if ended.status is S.COMPLETED:
            self.forget_spawned(job_id)
        for stored in list(self.rows.values()):
            met = job_id in stored.job.after_any
            row = self.put(stored, waits_for_any=stored.waits_for_any and not met)
            if job_id not in row.open_after:
                continue
            if ended.status is S.COMPLETED:
                self.put(row, open_after=row.open_after - {job_id})
            elif not row.job.status.is_final:
                self.move(row, Verb.PROPAGATE, shared_fate(ended.status), now, error=fate_error(ended))

    def forget_spawned(self, job_id: str) -> None:
        for row in list(self.rows.values()):
            if job_id in row.spawned:
                self.put(row, spawned=row.spawned - {job_id})

    def announce(self, rows: Sequence[JournalEntry], now: datetime) -> None:
        takeable = {job_id for job_id in self.takeable if job_id in self.rows}
        takeable -= {entry.job_id for entry in rows}
        fresh = {
            job_id for job_id, row in self.rows.items() if self.is_takeable(row, now) and not row.is_delayed
        } - takeable
        self.takeable = takeable | fresh
        last = {entry.job_id: position for position, entry in enumerate(rows)}
        changes = [
            change_of(entry, entry.job_id in fresh and last[entry.job_id] == position)
            for position, entry in enumerate(rows)
        ]
        for job_id in sorted(fresh - last.keys(), key=lambda each: self.rows[each].number):
            entry = next(entry for entry in reversed(self.journal) if entry.job_id == job_id)
            changes.append(
                msgspec.structs.replace(change_of(entry, True), verb="available", from_status=entry.status)
            )
        if changes:
            for listener in list(self.listeners):
                listener(changes)

    def row(self, job_id: str) -> Row:
        row = self.rows.get(job_id)
        if row is None:
            raise JobNotFoundError(job_id)
        return row

    def put(self, row: Row, **changes: Any) -> Row:
        row = msgspec.structs.replace(row, **changes)
        self.rows[row.job.id] = row
        return row

    def write(self, row: Row, verb: Verb, now: datetime, *, source: JobStatus | None, **fields: Any) -> Row:
        """Change fields of a job and add the journal row that says so."""
        job = msgspec.structs.replace(row.job, updated_at=now, **fields)
        row = self.put(row, job=job, n=row.n + 1, verb=str(verb))
        ends_attempt = source in IN_FLIGHT and job.status not in IN_FLIGHT
        is_first = source is None
        self.journal.append(
            JournalEntry(
                seq=self.last_seq() + 1,
                recorded_at=now,
                job_id=job.id,
                n=row.n,
                verb=verb,
                from_status=source,
                max_attempts=None if job.retry is None else job.retry.max_attempts,
                due_at=row.due_at,
                **{name: getattr(job, name) for name in _COPIED},
                after=job.after if is_first else (),
                after_any=job.after_any if is_first else (),
                parent_id=job.parent_id if is_first else None,
                ready_at=row.attempt_ready_at if ends_attempt else None,
                started_at=job.attempt_started_at if ends_attempt else None,
            )
        )
        return row

    def move(
        self,
        row: Row,
        verb: Verb,
        target: JobStatus,
        now: datetime,
        *,
        due_at: datetime | None = None,
        error: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Row:
        """Move a job to another status, with everything that follows from that status."""
        source = row.job.status
        fields.update(error or {}, status=target)
        if target.is_final:
            fields.setdefault("finalized_at", row.job.finalized_at or now)
            self.ended.append(row.job.id)
        elif source.is_final:
            fields["finalized_at"] = None
        if target.is_eligible:
            row = self.put(row, due_at=due_at or now, is_delayed=due_at is not None and due_at > now)
        row = self.write(row, verb, now, source=source, **fields)
        was_never_ready = target.is_final and row.ready_at is not None and row.ready_at > now
        return self.put(row, ready_at=None) if target.is_eligible or was_never_ready else row

    def remove(self, row: Row, verb: Verb, now: datetime) -> None:
        self.write(row, verb, now, source=row.job.status)
        del self.rows[row.job.id]
        self.outputs.pop(row.job.id, None)
        self.forget_spawned(row.job.id)
        self.key_holders = {name: each for name, each in self.key_holders.items() if each != row.job.id}

    def waits(self, row: Row) -> bool:
        return bool(row.open_after) or row.waits_for_any or not self.has_turn(row)

    def has_turn(self, row: Row) -> bool:
        if row.job.key is None:
            return True
        line = [
            other
            for other in self.rows.values()
            if other.job.key == row.job.key and not other.job.status.is_final
        ]
        if any(other.job.status in IN_FLIGHT for other in line if other.number != row.number):
            return False
        turn = min(line, key=lambda other: other.number, default=row)
        while passing := [other for other in line if other.job.id in self.awaited_by(turn)]:
            turn = min(passing, key=lambda other: other.number)
        return turn.number == row.number

    def awaited_by(self, row: Row) -> set[str]:
        """Return the ids of all that a job waits for, directly or not."""
        found: set[str] = set()
        behind = [row]
        while behind:
            here = behind.pop()
            direct = {*here.open_after, *(here.job.after_any if here.waits_for_any else ())} - found
            found |= direct
            behind += [self.rows[job_id] for job_id in direct if job_id in self.rows]
        return found

    def is_takeable(self, row: Row, now: datetime) -> bool:
        return row.job.status.is_eligible and row.due_at <= now and not self.waits(row)

    def key_is_busy(self, row: Row) -> bool:
        return row.job.key is not None and any(
            other.job.key == row.job.key and other.job.status in IN_FLIGHT and other.job.id != row.job.id
            for other in self.rows.values()
        )

    def select(self, tags: Sequence[str], job_ids: Sequence[str]) -> list[Row]:
        """Return the jobs that have all tags, and those listed, in insertion order; no tags select nothing."""
        wanted = set(job_ids)
        return [
            row
            for row in self.rows.values()
            if row.job.id in wanted or (tags and set(tags) <= set(row.job.tags))
        ]

    def view(self, row: Row, now: datetime) -> Job:
        state = state_of(row.job.status, is_due=row.due_at <= now, is_waiting=self.waits(row))
        seen = row.ready_at if row.ready_at is not None and row.ready_at <= now else None
        return msgspec.structs.replace(row.job, state=state, scheduled_at=seen)

    def last_seq(self) -> int:
        return self.journal[-1].seq if self.journal else 0

    def check_in_flight(self, row: Row, attempt: int | None, verb: str) -> None:
        is_over = row.job.status not in IN_FLIGHT
        check_fence(row, attempt, verb, is_over=is_over)
        if is_over:
            raise not_possible(verb, row.job)
