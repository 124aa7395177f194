from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from penstock.backends.base import UNSET, UnsetType
from penstock.errors import InvalidTransitionError, QueueBlockedError
from penstock.job import IN_FLIGHT, Job, Priority
from penstock.lifecycle import Verb, refusal
from penstock.testing import _checks as check
from penstock.testing.model._rows import S
from penstock.testing.model._submission import ModelSubmission

_CANCEL_TO = {
    S.INITIAL_PENDING: S.UNSCHEDULED,
    S.RUNNING: S.CANCELLING,
    S.FAILED_RETRY: S.STOPPED,
    S.UNKNOWN_RETRY: S.STOPPED,
}


class ModelChanging(ModelSubmission):
    """See `penstock.backends.contract.changing`."""

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
                if status is not S.CANCELLING:
                    self._move(row, Verb.CANCEL, _CANCEL_TO[status], now)
            return cancelled, unknown

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
        dead = {S.FAILED, S.DEAD_LETTER}
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
