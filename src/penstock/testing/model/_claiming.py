from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from penstock.backends.base import ClaimRequest
from penstock.job import IN_FLIGHT, Job, Key
from penstock.lifecycle import Verb, allows, refusal
from penstock.overview import Intake
from penstock.policy import FailureCategory
from penstock.testing import _checks as check
from penstock.testing.model._core import ModelCore
from penstock.testing.model._rows import Row, S, selection_order


class ModelClaiming(ModelCore):
    """See `penstock.backends.contract.claiming`."""

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

    def _claim(self, request: ClaimRequest, now: datetime) -> list[Row]:
        matching = [row for row in self._rows.values() if matches(row.job, request)]
        taken: list[Row] = []
        for row in sorted(matching, key=selection_order):
            if len(taken) < request.limit and self._is_takeable(row, now):
                taken.append(self._take(row, Verb.CLAIM, request.assignee_id, now, owner=request.owner))
        return taken

    def _take(self, row: Row, verb: Verb, assignee_id: str, now: datetime, *, owner: str | None) -> Row:
        row = self._put(row, owner=owner, lease_from=now, attempt_ready_at=row.ready_at, is_delayed=False)
        return self._move(
            row,
            verb,
            S.RUNNING,
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

    def _lose(self, row: Row, verb: Verb, now: datetime) -> None:
        job = row.job
        if job.status is S.CANCELLING:
            self._move(row, verb, S.UNKNOWN_STOPPED, now)
            return
        if job.retry is None:
            self._move(row, verb, S.UNKNOWN_RETRY, now)
            return
        row = self._put(row, lost_attempt=job.attempt)
        if job.failures + 1 < job.retry.max_attempts:
            self._move(row, verb, S.UNKNOWN_RETRY, now, failures=job.failures + 1)
        else:
            error = {
                "error_message": f"attempt {job.attempt} was lost, and it was the last allowed",
                "error_category": FailureCategory.SYSTEM,
                "error_code": "lost",
            }
            self._move(row, verb, S.DEAD_LETTER, now, error=error, failures=job.failures + 1)


def matches(job: Job, request: ClaimRequest) -> bool:
    if request.job_ids is None and job.held:
        return False
    return (
        set(request.tags) <= set(job.tags)
        and (request.types is None or job.type in request.types)
        and (request.key is None or job.key == request.key)
        and (request.job_ids is None or job.id in request.job_ids)
    )
