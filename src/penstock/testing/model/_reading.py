from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from penstock.job import IN_FLIGHT, Job, JobStats, JobStatus
from penstock.overview import Overview, OwnerView, TypeView
from penstock.testing import _checks as check
from penstock.testing.model._core import ModelCore
from penstock.testing.model._rows import Row, S, entries_into, selection_order


class ModelReading(ModelCore):
    """See `penstock.backends.contract.reading`."""

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
            pending_jobs=statuses.count(S.INITIAL_PENDING),
            running_jobs=statuses.count(S.RUNNING),
            completed_jobs=statuses.count(S.COMPLETED),
            stopped_jobs=sum(status.is_final and status is not S.COMPLETED for status in statuses),
            failed_jobs=statuses.count(S.FAILED_RETRY) + statuses.count(S.UNKNOWN_RETRY),
            total_retries=sum(job.retry_count for job in jobs),
        )

    def overview(self) -> Overview:
        self._check_usable()
        with self._lock:
            now = self._clock.now()
            rows = list(self._rows.values())
            entered = self._entered_before + entries_into(self._journal)
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
        newest: bool = False,
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
            start = None if after is None else self._row(after).number
            now = self._clock.now()
            rows = reversed(self._rows.values()) if newest else self._rows.values()
            matching = [
                row
                for row in rows
                if (start is None or (row.number < start if newest else row.number > start))
                and status in (None, row.job.status)
                and type in (None, row.job.type)
                and set(wanted) <= set(row.job.tags)
            ]
            return [self._view(row, now) for row in matching[:limit]]

    def get_output(self, job_id: str) -> str:
        with self._transaction():
            self._row(job_id)
            return self._outputs.get(job_id, "")

    def jobs_span(self) -> tuple[int, int]:
        self._check_usable()
        with self._lock:
            numbers = [row.number for row in self._rows.values()]
        return min(numbers, default=1), max(numbers, default=0)


def _longest_ready(rows: Sequence[Row]) -> datetime | None:
    """Return since when the longest waiting is ready, of the first in line of each priority and those just due."""
    heads: dict[int, Row] = {}
    for row in sorted(rows, key=selection_order):
        if not row.is_delayed:
            heads.setdefault(row.job.priority, row)
    due = [row.due_at for row in rows if row.is_delayed]
    return min([*(row.ready_at for row in heads.values() if row.ready_at), *due], default=None)
