from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from penstock.backends import Backend, Reading
from penstock.backends.contract.overview import Intake, JobCounts, Overview, OwnerView, TypeView
from penstock.backends.contract.selection import JobPage, JobSelection, NumberedJob, status_filter
from penstock.job import IN_FLIGHT, Job
from penstock.lifecycle import Verb
from penstock.testing import _checks as check
from penstock.testing.model._rows import Row, S, entries_into, selection_order
from penstock.testing.model._state import ModelState


class ModelReading(Reading):
    """The role in memory."""

    def __init__(self, backend: Backend, state: ModelState) -> None:
        super().__init__(backend)
        self._state = state

    def count_jobs(self, tags: Sequence[str] = ()) -> JobCounts:
        wanted = check.tags("tags", tags)
        self._state.check_usable()
        with self._state.lock:
            rows = [row for row in self._state.rows.values() if set(wanted) <= set(row.job.tags)]
        return JobCounts.of(
            Counter(row.job.status for row in rows),
            handed_back=sum(_is_released(row) for row in rows),
            tags=wanted,
        )

    def overview(self) -> Overview:
        self._state.check_usable()
        with self._state.lock:
            now = self._state.clock.now()
            rows = list(self._state.rows.values())
            entered = self._state.entered_before + entries_into(self._state.journal)
            ready = [row for row in rows if self._state.is_takeable(row, now) and not row.job.held]
            delayed = [
                row
                for row in rows
                if row.job.status.is_eligible
                and not row.job.held
                and row.due_at > now
                and not self._state.waits(row)
            ]
            pending = sum(row.job.status.is_eligible for row in rows)
            types = sorted({row.job.type for row in rows} | {name for name, _ in entered})
            return Overview(
                at=now,
                schema_version=1,
                is_blocked=self._state.is_blocked,
                types=tuple(
                    TypeView(
                        type=name,
                        jobs=dict(Counter(row.job.status for row in rows if row.job.type == name)),
                        entered={
                            status: count for (type_, status), count in entered.items() if type_ == name
                        },
                        ready=sum(row.job.type == name for row in ready),
                        oldest_ready_at=_longest_ready([row for row in ready if row.job.type == name]),
                        handed_back=sum(_is_released(row) for row in rows if row.job.type == name),
                    )
                    for name in types
                ),
                delayed=len(delayed),
                waiting=pending - len(ready) - len(delayed),
                owners=tuple(owner_view(self._state, owner) for owner in sorted(self._state.owners)),
                undelivered=sum(each.due_at is not None for each in self._state.deliveries.values()),
                given_up=sum(each.due_at is None for each in self._state.deliveries.values()),
            )

    def select_jobs(
        self,
        selection: JobSelection,
        *,
        after: int | None = None,
        upto: int | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> JobPage:
        check.selected(selection)
        for field, value in (("after", after), ("upto", upto)):
            if value is not None:
                check.whole(field, value, 0, 2**62 - 1)
        check.whole("limit", limit, 1, 100_000)
        self._state.check_usable()
        with self._state.lock:
            found = [
                NumberedJob(row.number, row.job.id)
                for row in self._state.rows.values()
                if (after is None or (row.number < after if newest else row.number > after))
                and (upto is None or row.number <= upto)
                and is_selected(self._state, row, selection)
            ]
        found.sort(reverse=newest)
        page = found[:limit]
        return JobPage(page, page[-1].number if len(found) > limit else None)

    def find_ids(self, prefix: str, limit: int = 10) -> list[str]:
        check.text("prefix", prefix, check.MAX_ID)
        check.whole("limit", limit, 1, 1000)
        self._state.check_usable()
        with self._state.lock:
            return sorted(job_id for job_id in self._state.rows if job_id.startswith(prefix))[:limit]

    def get_output(self, job_id: str) -> str:
        with self._state.transaction():
            self._state.row(job_id)
            return self._state.outputs.get(job_id, "")

    def jobs_span(self) -> tuple[int, int]:
        self._state.check_usable()
        with self._state.lock:
            numbers = [row.number for row in self._state.rows.values()]
        return min(numbers, default=1), max(numbers, default=0)


def owner_view(state: ModelState, owner: str) -> OwnerView:
    reported = state.intakes.get(owner, ())
    return OwnerView(
        id=owner,
        host=socket.gethostname(),
        pid=os.getpid(),
        opened_at=state.opened[owner],
        beat_at=state.owners[owner],
        is_alive=True,  # its owners are this process, which never judges itself
        running=sum(row.owner == owner and row.job.status in IN_FLIGHT for row in state.rows.values()),
        intakes=tuple(
            Intake(types=each.types, tags=each.tags, slots=each.slots, waiting=each.waiting)
            for each in reported
        ),
        names=tuple(dict.fromkeys(name for each in reported for name in getattr(each, "names", ()))),
    )


def is_selected(state: ModelState, row: Row, wanted: JobSelection) -> bool:
    job = row.job
    statuses = status_filter(wanted.statuses)
    if statuses is not None:
        if job.status not in statuses.statuses:
            return False
        if job.status is S.FAILED_RETRY and statuses.released not in (None, row.verb == Verb.RELEASE):
            return False
    return (
        (not wanted.types or job.type in wanted.types)
        and set(wanted.tags) <= set(job.tags)
        and wanted.key in (None, job.key)
        and (wanted.since is None or _created(job) >= wanted.since)
        and (wanted.until is None or _created(job) < wanted.until)
        and (wanted.error is None or _folded(wanted.error) in _folded(job.error_message))
        and not (wanted.spares_propagated and row.verb == Verb.PROPAGATE)
    )


def _is_released(row: Row) -> bool:
    return row.job.status is S.FAILED_RETRY and row.verb == Verb.RELEASE


def _created(job: Job) -> datetime:
    assert job.created_at is not None  # every stored job has it
    return job.created_at


def _folded(text: str) -> str:
    """Return a text with its ASCII letters in lower case."""
    return text.encode().lower().decode()


def _longest_ready(rows: Sequence[Row]) -> datetime | None:
    """Return since when the longest waiting is ready, of the first in line of each priority and those just due."""
    heads: dict[int, Row] = {}
    for row in sorted(rows, key=selection_order):
        if not row.is_delayed:
            heads.setdefault(row.job.priority, row)
    due = [row.due_at for row in rows if row.is_delayed]
    return min([*(row.ready_at for row in heads.values() if row.ready_at), *due], default=None)
