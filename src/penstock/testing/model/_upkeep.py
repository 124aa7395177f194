from __future__ import annotations

from datetime import datetime, timedelta

from penstock.backends.base import Failure
from penstock.job import IN_FLIGHT, Maintenance
from penstock.lifecycle import Verb
from penstock.policy import FailureCategory
from penstock.testing import _checks as check
from penstock.testing.model._claiming import ModelClaiming
from penstock.testing.model._outbox import ModelOutbox
from penstock.testing.model._reports import ModelReports
from penstock.testing.model._rows import S, is_past

_TIMEOUT_GRACE = timedelta(seconds=10)


class ModelUpkeep(ModelOutbox, ModelReports, ModelClaiming):
    """See `penstock.backends.contract.upkeep`."""

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
            if not row.job.status.is_final and is_past(row.job.created_at, row.job.timeouts.lifetime, now)
        ]
        error = {
            "error_message": "its lifetime is over",
            "error_category": FailureCategory.TIMEOUT,
            "error_code": "lifetime",
        }
        for row in spent:
            self._move(row, Verb.EXPIRE, S.DEAD_LETTER, now, error=error)
        return len(spent)

    def _lose_abandoned(self, now: datetime) -> int:
        lost = [
            row
            for row in self._rows.values()
            if row.job.status in IN_FLIGHT
            and (
                is_past(row.lease_from, row.job.timeouts.visibility, now)
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
            if row.job.status is S.RUNNING
            and row.job.timeouts.execution is not None
            and is_past(row.job.attempt_started_at, row.job.timeouts.execution + _TIMEOUT_GRACE, now)
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
            and is_past(
                row.job.finalized_at,
                rule.completed if row.job.status is S.COMPLETED else rule.other,
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
                if row.job.status is S.COMPLETED and is_past(row.job.finalized_at, span, now)
            ]
            for row in old:
                self._remove(row, Verb.CLEANUP, now)
            return len(old)
