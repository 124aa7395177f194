"""The data of `penstock top`: rates between two overviews, and the latest failures in the journal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from penstock.backends import Backend
from penstock.backends.contract.overview import Overview, OwnerView, TypeView
from penstock.backends.contract.selection import JobSelection
from penstock.cli._counts import bounded_fields, count_fields, ready_bound
from penstock.cli._fields import picked, seconds_since
from penstock.job import Job, JobStatus, JournalEntry
from penstock.lifecycle import Verb

__all__ = ["Rates", "Snapshot", "Watcher", "snapshot_fields"]

#: The latest journal rows that one poll searches for failures.
MAX_ROWS: Final = 1_000
MAX_FAILURES: Final = 20
MAX_RUNNING: Final = 200
_RUNNING: Final = JobSelection(statuses=("running",))

_S = JobStatus
_FAILED: Final = (_S.FAILED_RETRY, _S.UNKNOWN_RETRY, _S.FAILED, _S.DEAD_LETTER)


class Rates(NamedTuple):
    """Jobs per second since the poll before."""

    submitted: float
    completed: float
    failed: float


class Snapshot(NamedTuple):
    """The state of a store at one poll; the first poll has no rates."""

    overview: Overview
    rates: Mapping[str, Rates] | None
    failures: tuple[JournalEntry, ...]
    running: tuple[Job, ...] = ()

    @property
    def total(self) -> Rates | None:
        if self.rates is None:
            return None
        return (
            Rates(*(sum(values) for values in zip(*self.rates.values(), strict=True)))
            if self.rates
            else Rates(0, 0, 0)
        )


class Watcher:
    """Polls a store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before: Overview | None = None
        self._failures: deque[JournalEntry] = deque(maxlen=MAX_FAILURES)
        self._seen = 0

    def poll(self) -> Snapshot:
        overview = self._backend.reading.overview()
        released = self._follow()
        before, self._before = self._before, overview
        rates = None if before is None else _rates(before, overview, released)
        return Snapshot(overview, rates, tuple(reversed(self._failures)), self._running())

    def _running(self) -> tuple[Job, ...]:
        """Return the running jobs that were submitted first, the longest running of them first."""
        page = self._backend.reading.select_jobs(_RUNNING, limit=MAX_RUNNING)
        jobs = self._backend.get_jobs([each.id for each in page.jobs]) if page.jobs else {}
        found = [job for job in jobs.values() if job.status.holds_slot]
        return tuple(sorted(found, key=lambda job: (job.attempt_started_at or job.updated_at, job.id)))

    def _follow(self) -> Counter[str]:
        """Collect the failures since the last poll; return how many jobs were released, by type."""
        released: Counter[str] = Counter()
        last = self._backend.journal.span()[1]
        start = max(self._seen, last - MAX_ROWS)
        for row in self._backend.read_journal(start, MAX_ROWS) if last > start else ():
            self._seen = row.seq
            if row.verb == Verb.RELEASE:
                released[row.type] += row.status is _S.FAILED_RETRY
            elif row.status in _FAILED and row.error_message and row.from_status is not row.status:
                self._failures.append(row)
        return released


def _rates(before: Overview, after: Overview, released: Mapping[str, int]) -> dict[str, Rates]:
    seconds = (after.at - before.at).total_seconds()
    if seconds <= 0:
        return {}
    known = {each.type: each for each in before.types}

    def grown(view: TypeView, *statuses: JobStatus, but: int = 0) -> float:
        earlier = known.get(view.type, TypeView(type=view.type))
        gained = sum(view.entered.get(each, 0) - earlier.entered.get(each, 0) for each in statuses)
        return max(0, gained - but) / seconds

    return {
        view.type: Rates(
            grown(view, _S.INITIAL_PENDING),
            grown(view, _S.COMPLETED),
            grown(view, *_FAILED, but=released.get(view.type, 0)),  # a release is no failure
        )
        for view in after.types
    }


def snapshot_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot for JSON."""
    seen = snapshot.overview
    return {
        "at": seen.at,
        "schema_version": seen.schema_version,
        "blocked": seen.is_blocked,
        **bounded_fields("ready", seen.ready, ready_bound(seen)),
        **bounded_fields("delayed", seen.delayed, seen.most_counted),
        "waiting": seen.waiting,
        **count_fields(seen.counts),
        "oldest_ready_seconds": seen.oldest_ready,
        "rates": None if snapshot.total is None else snapshot.total._asdict(),
        "unhandled_types": seen.unhandled,
        **bounded_fields("undelivered_callbacks", seen.undelivered, seen.most_counted),
        **bounded_fields("given_up_callbacks", seen.given_up, seen.most_counted),
        "types": [_type_fields(each, snapshot) for each in seen.types],
        "workers": [_owner_fields(each, seen.at) for each in seen.owners],
        "running_jobs": [_running_fields(each, seen.at) for each in snapshot.running],
        "failures": [_failure_fields(each) for each in snapshot.failures],
    }


def _type_fields(view: TypeView, snapshot: Snapshot) -> dict[str, Any]:
    rates = None if snapshot.rates is None else snapshot.rates.get(view.type)
    return {
        "type": view.type,
        "jobs": {str(status): count for status, count in view.jobs.items()},
        "entered": {str(status): count for status, count in view.entered.items()},
        **bounded_fields("ready", view.ready, snapshot.overview.most_counted),
        **count_fields(view.counts),
        "oldest_ready_seconds": seconds_since(view.oldest_ready_at, snapshot.overview.at),
        "rates": None if rates is None else rates._asdict(),
    }


def _owner_fields(owner: OwnerView, now: datetime) -> dict[str, Any]:
    return {
        **picked(owner, "id", "name", "names", "host", "pid", "opened_at", "slots", "running", "free"),
        "alive": owner.is_alive,
        "beat_seconds": seconds_since(owner.beat_at, now),
        "takes": [picked(each, "types", "tags", "slots") for each in owner.intakes],
    }


def _running_fields(job: Job, now: datetime) -> dict[str, Any]:
    return {
        **picked(job, "id", "type", "status", "attempt", "progress", "description"),
        "worker": job.assignee_id,
        "running_seconds": seconds_since(job.attempt_started_at, now),
    }


def _failure_fields(row: JournalEntry) -> dict[str, Any]:
    names = ("seq", "job_id", "type", "attempt", "status", "error_category", "error_code", "error_message")
    return {"at": row.recorded_at, **picked(row, *names)}
