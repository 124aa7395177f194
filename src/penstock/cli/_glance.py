"""What `penstock top` shows: two overviews make rates, the journal's tail makes the latest failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from penstock.backends.base import Backend
from penstock.job import JobStatus, JournalEntry
from penstock.overview import Overview, OwnerView, TypeView

__all__ = ["Glance", "Looker", "Rates", "glance_fields"]

#: Journal rows that one look goes through for failures; when more came, the older ones are not looked at.
MOST_ROWS: Final = 1_000
FAILURES: Final = 8

_S = JobStatus
_FAILED: Final = (_S.FAILED_RETRY, _S.UNKNOWN_RETRY, _S.FAILED, _S.DEAD_LETTER)


class Rates(NamedTuple):
    """Jobs a second, since the look before."""

    submitted: float
    completed: float
    failed: float


class Glance(NamedTuple):
    """One look at a store. Rates are missing in the first one."""

    overview: Overview
    rates: Mapping[str, Rates] | None
    failures: tuple[JournalEntry, ...]

    @property
    def total(self) -> Rates | None:
        if self.rates is None:
            return None
        return (
            Rates(*(sum(values) for values in zip(*self.rates.values(), strict=True)))
            if self.rates
            else Rates(0, 0, 0)
        )


class Looker:
    """Looks at a store again and again."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before: Overview | None = None
        self._failures: deque[JournalEntry] = deque(maxlen=FAILURES)
        self._seen = 0

    def look(self) -> Glance:
        overview = self._backend.overview()
        self._follow()
        before, self._before = self._before, overview
        rates = None if before is None else _rates(before, overview)
        return Glance(overview, rates, tuple(reversed(self._failures)))

    def _follow(self) -> None:
        last = self._backend.journal_span()[1]
        start = max(self._seen, last - MOST_ROWS)
        for row in self._backend.read_journal(start, MOST_ROWS) if last > start else ():
            self._seen = row.seq
            if row.status in _FAILED and row.error_message and row.from_status is not row.status:
                self._failures.append(row)


def _rates(before: Overview, after: Overview) -> dict[str, Rates]:
    seconds = (after.at - before.at).total_seconds()
    if seconds <= 0:
        return {}
    known = {each.type: each for each in before.types}

    def grown(view: TypeView, *statuses: JobStatus) -> float:
        earlier = known.get(view.type, TypeView(type=view.type))
        gained = sum(view.entered.get(each, 0) - earlier.entered.get(each, 0) for each in statuses)
        return max(0, gained) / seconds

    return {
        view.type: Rates(grown(view, _S.INITIAL_PENDING), grown(view, _S.COMPLETED), grown(view, *_FAILED))
        for view in after.types
    }


def glance_fields(glance: Glance) -> dict[str, Any]:
    """Return a look for JSON."""
    seen = glance.overview
    return {
        "at": seen.at,
        "schema_version": seen.schema_version,
        "blocked": seen.is_blocked,
        "ready": seen.ready,
        "delayed": seen.delayed,
        "waiting": seen.waiting,
        "pending": seen.pending,
        "running": seen.running,
        "oldest_ready_seconds": seen.oldest_ready,
        "rates": None if glance.total is None else glance.total._asdict(),
        "unhandled_types": seen.unhandled,
        "undelivered_callbacks": seen.undelivered,
        "given_up_callbacks": seen.given_up,
        "types": [_type_fields(each, glance) for each in seen.types],
        "workers": [_owner_fields(each, seen.at) for each in seen.owners],
        "failures": [_failure_fields(each) for each in glance.failures],
    }


def _type_fields(view: TypeView, glance: Glance) -> dict[str, Any]:
    since = view.oldest_ready_at
    rates = None if glance.rates is None else glance.rates.get(view.type)
    return {
        "type": view.type,
        "jobs": {str(status): count for status, count in view.jobs.items()},
        "entered": {str(status): count for status, count in view.entered.items()},
        "ready": view.ready,
        "pending": view.pending,
        "running": view.running,
        "oldest_ready_seconds": None
        if since is None
        else max(0.0, (glance.overview.at - since).total_seconds()),
        "rates": None if rates is None else rates._asdict(),
    }


def _owner_fields(owner: OwnerView, now: datetime) -> dict[str, Any]:
    return {
        "id": owner.id,
        "host": owner.host,
        "pid": owner.pid,
        "alive": owner.is_alive,
        "opened_at": owner.opened_at,
        "beat_seconds": max(0.0, (now - owner.beat_at).total_seconds()),
        "slots": owner.slots,
        "running": owner.running,
        "free": owner.free,
        "takes": [{"types": each.types, "tags": each.tags, "slots": each.slots} for each in owner.intakes],
    }


def _failure_fields(row: JournalEntry) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "at": row.recorded_at,
        "job_id": row.job_id,
        "type": row.type,
        "attempt": row.attempt,
        "status": row.status,
        "error_category": row.error_category,
        "error_code": row.error_code,
        "error_message": row.error_message,
    }
