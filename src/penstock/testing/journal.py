"""Checks of a journal: the fold of its rows, and the invariants that one pass can decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec

from penstock.backends import Backend
from penstock.job import IN_FLIGHT, Job, JobStatus, JournalArchive, JournalEntry, Key, Priority
from penstock.lifecycle import ENQUEUES, INVARIANTS, LOST_BY_SILENCE, Verb, allows, allows_late
from penstock.policy import FailureCategory

__all__ = [
    "INVARIANTS",
    "FoldedJob",
    "Violation",
    "check_fold",
    "check_invariants",
    "check_store",
    "fold_journal",
]

_NOTHING = JournalArchive()
_ORIGIN = frozenset({"after", "after_any", "parent_id"})
_REMOVED = frozenset({Verb.DELETE, Verb.CLEANUP})
_TAKES = frozenset({Verb.CLAIM, Verb.RESTART})


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant, with the shortest run of rows that shows it.

    Attributes:
        invariant: its number; `penstock.lifecycle.INVARIANTS` has the names.
        job_id: the job.
        detail: what is wrong.
        rows: the rows that show it.
    """

    invariant: int
    job_id: str
    detail: str
    rows: tuple[JournalEntry, ...] = ()

    def __str__(self) -> str:
        seqs = ", ".join(str(row.seq) for row in self.rows)
        return f"{self.invariant} ({INVARIANTS[self.invariant]}): job {self.job_id!r}, seq {seqs or '-'}: {self.detail}"


class FoldedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A stored job according to the journal."""

    id: str
    n: int
    type: str
    status: JobStatus
    attempt: int
    retry_count: int
    failures: int
    max_attempts: int | None
    priority: Priority
    key: Key | None
    tags: tuple[str, ...]
    idempotency_key: str | None
    assignee_id: str | None
    error_category: FailureCategory | None
    error_code: str | None
    error_message: str
    after: tuple[str, ...]
    after_any: tuple[str, ...]
    parent_id: str | None
    updated_at: datetime


_OF_THE_FIRST_ROW = ("after", "after_any", "parent_id")
_OF_THE_LAST_ROW = tuple(
    name for name in FoldedJob.__struct_fields__ if name not in {"id", "updated_at", *_OF_THE_FIRST_ROW}
)
_SAME_NAME = tuple(
    name for name in FoldedJob.__struct_fields__ if name not in {"n", "max_attempts", "updated_at"}
)


def fold_journal(entries: Iterable[JournalEntry]) -> dict[str, FoldedJob]:
    """Return what is stored after these rows: every job that was not removed, by id."""
    folded: dict[str, FoldedJob] = {}
    for row in entries:
        if row.verb in _REMOVED:
            folded.pop(row.job_id, None)
            continue
        first = folded.get(row.job_id)
        origin: JournalEntry | FoldedJob = row if first is None else first
        folded[row.job_id] = FoldedJob(
            id=row.job_id,
            updated_at=row.recorded_at,
            **{name: getattr(row, name) for name in _OF_THE_LAST_ROW},
            **{name: getattr(origin, name) for name in _OF_THE_FIRST_ROW},
        )
    return folded


def check_fold(
    entries: Iterable[JournalEntry], jobs: Iterable[Job], *, archived: JournalArchive = _NOTHING
) -> list[Violation]:
    """Return where the fold of a journal and the stored jobs differ (invariant 23).

    Args:
        entries: a journal, in order.
        jobs: the stored jobs.
        archived: what was removed from the journal: so many jobs, if they are final, need not be in it.
    """
    rows = list(entries)
    folded = fold_journal(rows)
    cut = {row.job_id for row in _cut_rows(rows)} if archived.rows else set()
    unseen = archived.histories
    stored = {job.id: job for job in jobs}
    found = [_violation(23, job_id, "is in the journal alone") for job_id in folded.keys() - stored.keys()]
    for job_id, job in stored.items():
        fold = folded.get(job_id)
        if fold is None and unseen and job.status.is_final:
            unseen -= 1
            continue
        if fold is None:
            found.append(_violation(23, job_id, "is stored, but the journal does not have it"))
            continue
        found += [
            _violation(
                23, job_id, f"{name} is {getattr(job, name)!r}, the journal says {getattr(fold, name)!r}"
            )
            for name in _SAME_NAME
            if getattr(job, name) != getattr(fold, name) and not (job_id in cut and name in _ORIGIN)
        ]
        limit = None if job.retry is None else job.retry.max_attempts
        if limit != fold.max_attempts:
            found.append(
                _violation(23, job_id, f"max_attempts is {limit}, the journal says {fold.max_attempts}")
            )
    return sorted(found, key=lambda violation: violation.job_id)


def check_store(backend: Backend, **options: Any) -> list[Violation]:
    """Return every invariant that a store breaks, read whole: all its journal rows, compared with all its jobs.

    The store must not change meanwhile. What was archived cannot be checked, but must be accounted for. The
    options are those of `check_invariants`.
    """
    entries: list[JournalEntry] = []
    while page := backend.read_journal(after=entries[-1].seq if entries else 0, limit=10_000):
        entries += page
    jobs: list[Job] = []
    while more := backend.list_jobs(after=jobs[-1].id if jobs else None, limit=1_000):
        jobs += more
    return check_invariants(entries, jobs=jobs, archived=backend.journal.get_archive(), **options)


def check_invariants(
    entries: Sequence[JournalEntry],
    *,
    jobs: Iterable[Job] | None = None,
    acknowledged: Iterable[tuple[str, int]] = (),
    drained_at: datetime | None = None,
    idempotency_window: timedelta = timedelta(hours=24),
    clock_slack: timedelta = timedelta(seconds=1),
    archived: JournalArchive = _NOTHING,
) -> list[Violation]:
    """Return every invariant that these journal rows break; an empty list is a clean journal.

    Args:
        entries: a journal from its first row, in order.
        jobs: the stored jobs, to be compared with the fold.
        acknowledged: `(job id, n)` pairs whose storing was acknowledged to a caller.
        drained_at: when given, no job may be left that could have run by then.
        idempotency_window: how long an idempotency key is reserved.
        clock_slack: how far recorded times may go back, and how far the moments of one attempt may disagree.
        archived: what was removed from the journal (`Journal.get_archive`). So many numbers may be missing, and
            a history may go on after its removed rows, if those ended in a final status.
    """
    histories = _histories(entries)
    found = list(_check_sequence(entries, clock_slack, archived))
    for history in histories:
        found += _check_history(history, archived)
        found += _check_moments(history, clock_slack)
    found += _check_idempotency(entries, idempotency_window)
    found += _check_keys(entries, archived)
    present = {(row.job_id, row.n) for row in entries}
    absent = [each for each in acknowledged if each not in present]
    if len(absent) > archived.rows:
        found += [_violation(2, job_id, f"row {n} was acknowledged and is not there") for job_id, n in absent]
    if drained_at is not None:
        found += _check_drained(histories, drained_at)
    if jobs is not None:
        found += check_fold(entries, jobs, archived=archived)
    return found


def _violation(invariant: int, job_id: str, detail: str, *rows: JournalEntry) -> Violation:
    return Violation(invariant=invariant, job_id=job_id, detail=detail, rows=rows)


def _histories(entries: Iterable[JournalEntry]) -> list[list[JournalEntry]]:
    """Return the rows of each job, split where an id begins anew after its removal."""
    finished: list[list[JournalEntry]] = []
    current: dict[str, list[JournalEntry]] = {}
    for row in entries:
        current.setdefault(row.job_id, []).append(row)
        if row.verb in _REMOVED:
            finished.append(current.pop(row.job_id))
    return finished + list(current.values())


def _cut_rows(entries: Iterable[JournalEntry]) -> Iterator[JournalEntry]:
    """Give the first row of each history whose beginning is not there."""
    for history in _histories(entries):
        if history[0].n > 1:
            yield history[0]


def _check_sequence(
    entries: Sequence[JournalEntry], slack: timedelta, archived: JournalArchive
) -> Iterator[Violation]:
    latest: JournalEntry | None = None
    missing = 0
    for position, row in enumerate(entries):
        previous = entries[position - 1] if position else None
        gap = row.seq - (previous.seq if previous else 0) - 1
        missing += gap
        if gap < 0 or missing > archived.rows or (gap and row.seq > archived.upto + 1):
            seen = [previous] if previous else []
            detail = (
                f"{missing} rows are missing, {archived.rows} were archived"
                if archived.rows
                else "seq is not dense from 1"
            )
            yield _violation(2, row.job_id, detail, *seen, row)
            missing = min(missing, archived.rows)
        if latest is not None and row.recorded_at < latest.recorded_at - slack:
            yield _violation(25, row.job_id, "time goes back", latest, row)
        if latest is None or row.recorded_at > latest.recorded_at:
            latest = row
    if latest is not None and entries[-1].seq > archived.upto and missing < archived.rows:
        detail = f"{missing} rows are missing, {archived.rows} were archived"
        yield _violation(2, entries[-1].job_id, detail, entries[-1])


def _check_history(history: Sequence[JournalEntry], archived: JournalArchive) -> Iterator[Violation]:
    first = history[0]
    if archived.rows and first.n > 1 and first.verb not in ENQUEUES:
        if first.from_status is None or not first.from_status.is_final or not _is_legal(first, None):
            yield _violation(1, first.job_id, "its beginning is missing, and it had not ended there", first)
    elif first.verb not in ENQUEUES or first.n != 1 or first.from_status is not None:
        yield _violation(1, first.job_id, "the history does not begin with enqueue, n = 1", first)
    completed: JournalEntry | None = None
    holder: JournalEntry | None = None
    for previous, row in pairwise(history):
        yield from _check_step(previous, row)
        if row.verb in _TAKES:
            if holder is not None:
                yield _violation(6, row.job_id, "taken while an attempt holds it", holder, row)
            holder = row
        elif row.status not in IN_FLIGHT:
            holder = None
        if row.status is JobStatus.COMPLETED and row.verb not in _REMOVED:
            if completed is not None:
                yield _violation(8, row.job_id, "succeeded twice", completed, row)
            completed = row
    limit = first.max_attempts
    if limit is not None:
        for row in history:
            if row.failures > max(limit, first.failures):
                yield _violation(11, row.job_id, f"{row.failures} counted failures of {limit} allowed", row)
                break


def _check_moments(history: Sequence[JournalEntry], slack: timedelta) -> Iterator[Violation]:
    """Check the moments on rows that end an attempt: it was ready, then it started, then it ended."""
    for row in history:
        if row.started_at is None:
            continue
        if row.ready_at is not None and row.started_at < row.ready_at - slack:
            yield _violation(12, row.job_id, "the attempt started before the job was ready", row)
        if row.recorded_at < row.started_at - slack:
            yield _violation(25, row.job_id, "the attempt ended before it started", row)


def _check_step(previous: JournalEntry, row: JournalEntry) -> Iterator[Violation]:
    job_id = row.job_id
    if row.verb in ENQUEUES:
        yield _violation(1, job_id, "enqueued again without removal", previous, row)
        return
    if row.n != previous.n + 1:
        yield _violation(2, job_id, f"n goes from {previous.n} to {row.n}", previous, row)
    if row.from_status is not previous.status:
        yield _violation(3, job_id, f"{row.verb} starts from {row.from_status}", previous, row)
    elif not _is_legal(row, previous.verb):
        number = 4 if previous.status.is_final else 3
        yield _violation(
            number, job_id, f"{row.verb} may not lead from {previous.status} to {row.status}", previous, row
        )
    if row.attempt != previous.attempt + (row.verb in _TAKES):
        yield _violation(
            5, job_id, f"{row.verb} takes attempt from {previous.attempt} to {row.attempt}", previous, row
        )
    if row.verb not in _TAKES and row.assignee_id != previous.assignee_id:
        yield _violation(7, job_id, f"{row.verb} changes the assignee", previous, row)
    if row.retry_count < previous.retry_count or row.failures < previous.failures:
        yield _violation(7, job_id, f"{row.verb} takes a counter back", previous, row)
    if row.verb == Verb.CLAIM and previous.due_at is not None and row.recorded_at < previous.due_at:
        yield _violation(12, job_id, f"claimed before {previous.due_at.isoformat()}", previous, row)


def _is_legal(row: JournalEntry, after: str | None) -> bool:
    """Whether the table has a row's move; `after` is the verb of the row before, None if that is not there."""
    source = row.from_status
    if source is None:
        return False
    if row.verb in _REMOVED:
        return source is row.status and source.is_final
    if row.verb == Verb.UPDATE:
        return source is row.status and not source.is_final
    try:
        verb = Verb(row.verb)
        losses = LOST_BY_SILENCE if after is None else (after,)
        return allows(verb, source, row.status) or any(
            allows_late(verb, source, loss, row.status) for loss in losses
        )
    except ValueError:
        return False


def _check_idempotency(entries: Iterable[JournalEntry], window: timedelta) -> Iterator[Violation]:
    holders: dict[tuple[str, str], JournalEntry] = {}
    ended: set[str] = set()
    for row in entries:
        if row.idempotency_key is None:
            continue
        name = (row.type, row.idempotency_key)
        holder = holders.get(name)
        if row.verb in ENQUEUES:
            if holder is not None and _keeps_out(holder, row, window, has_ended=holder.job_id in ended):
                yield _violation(13, row.job_id, f"shares its key with {holder.job_id!r}", holder, row)
            holders[name] = row
        elif row.verb in _REMOVED and holder is not None and holder.job_id == row.job_id:
            del holders[name]
        if row.status.is_final:
            ended.add(row.job_id)
        else:
            ended.discard(row.job_id)


def _keeps_out(holder: JournalEntry, row: JournalEntry, window: timedelta, *, has_ended: bool) -> bool:
    """Whether a job that has an idempotency key keeps out another one that is stored now."""
    is_unique = holder.verb == Verb.ENQUEUE_UNIQUE
    if has_ended and (is_unique or row.verb == Verb.ENQUEUE_UNIQUE):
        return False
    return is_unique or row.recorded_at < holder.recorded_at + window


class _Line:
    """The unfinished jobs of one key, in their order, and the one that is worked on."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}
        self.in_flight: JournalEntry | None = None


class _Spawned:
    """Jobs that may have been spawned, and what those wait for: they pass the jobs that wait for them in a key."""

    def __init__(self, archived: JournalArchive) -> None:
        self._is_cut = archived.rows > 0
        self._known: set[str] = set()
        self._running: set[str] = set()
        self._awaited: dict[str, tuple[str, ...]] = {}
        self._found: set[str] = set()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._found

    def note(self, row: JournalEntry) -> None:
        self._known.add(row.job_id)
        if row.status is JobStatus.RUNNING:
            self._running.add(row.job_id)
        else:
            self._running.discard(row.job_id)
        if row.verb in ENQUEUES:
            self._awaited[row.job_id] = (*row.after, *row.after_any)
            self._found.discard(row.job_id)
            is_lost = self._is_cut and row.parent_id is not None and row.parent_id not in self._known
            if row.parent_id in self._running or is_lost:
                self._add(row.job_id)

    def _add(self, job_id: str) -> None:
        behind = [job_id]
        while behind:
            here = behind.pop()
            if here not in self._found:
                self._found.add(here)
                behind += self._awaited.get(here, ())


def _check_keys(entries: Iterable[JournalEntry], archived: JournalArchive) -> Iterator[Violation]:
    lines: dict[Key, _Line] = {}
    position: dict[str, int] = {}
    spawned = _Spawned(archived)
    for row in entries:
        spawned.note(row)
        if row.key is None:
            continue
        line = lines.setdefault(row.key, _Line())
        if row.verb in ENQUEUES:
            position[row.job_id] = row.seq
        yield from _check_turn(line, row, may_pass=row.job_id in spawned)
        if row.status in IN_FLIGHT:
            line.in_flight = row
        elif line.in_flight is not None and line.in_flight.job_id == row.job_id:
            line.in_flight = None
        if row.status.is_final:
            line.waiting.pop(row.job_id, None)
        else:
            line.waiting[row.job_id] = position.get(row.job_id, row.seq)


def _check_turn(line: _Line, row: JournalEntry, *, may_pass: bool) -> Iterator[Violation]:
    busy = line.in_flight
    if row.status in IN_FLIGHT and busy is not None and busy.job_id != row.job_id:
        yield _violation(14, row.job_id, f"its key is held by {busy.job_id!r}", busy, row)
    if row.verb == Verb.CLAIM and not may_pass:
        own = line.waiting.get(row.job_id, row.seq)
        earlier = [job_id for job_id, seq in line.waiting.items() if seq < own]
        if earlier:
            yield _violation(14, row.job_id, f"claimed before {earlier[0]!r}, which is first of the key", row)


def _check_drained(histories: Iterable[Sequence[JournalEntry]], now: datetime) -> Iterator[Violation]:
    for history in histories:
        last = history[-1]
        if last.verb in _REMOVED or last.status.is_final:
            continue
        if last.status.is_eligible and last.due_at is not None and last.due_at > now:
            continue
        yield _violation(9, last.job_id, f"is left {last.status}", last)


def seen_verbs(entries: Iterable[JournalEntry]) -> Mapping[str, int]:
    """Count the rows by verb, to show what a run has exercised."""
    counts: dict[str, int] = {}
    for row in entries:
        counts[row.verb] = counts.get(row.verb, 0) + 1
    return counts
