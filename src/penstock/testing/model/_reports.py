from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.backends.base import Failure
from penstock.errors import PenstockError, ReportErrors
from penstock.job import IN_FLIGHT, JobStatus
from penstock.lifecycle import Verb, allows, refusal
from penstock.policy import FailureCategory
from penstock.testing import _checks as check
from penstock.testing.model._core import ModelCore
from penstock.testing.model._rows import Row, S, check_fence

Report = Callable[[Row, datetime], Row]

_FREEING_UPDATES = frozenset({S.COMPLETED, S.STOPPED, S.UNKNOWN_STOPPED})


class ModelReports(ModelCore):
    """See `penstock.backends.contract.reports`."""

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
        check_fence(row, attempt, str(verb), is_over=is_over)
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

    def _completing(self, result: bytes | None) -> Report:
        data = check.optional_data("result", result, self._options.max_payload)

        def apply(row: Row, now: datetime) -> Row:
            started_at = row.job.started_at or now
            return self._move(
                row, Verb.COMPLETE, S.COMPLETED, now, result=data, finalized_at=now, started_at=started_at
            )

        return apply

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

    def _failing(self, failure: Failure) -> Report:
        failure = check.failure(failure)

        def apply(row: Row, now: datetime) -> Row:
            return self._fail(row, Verb.FAIL, failure, now)

        return apply

    def _fail(self, row: Row, verb: Verb, failure: Failure, now: datetime) -> Row:
        job, policy, category = row.job, row.job.retry, failure.category
        was_counted = row.lost_attempt == job.attempt
        counts = category is not FailureCategory.CANCELLED and not was_counted
        failures = job.failures + counts
        delay = check.optional_duration("retry_after", failure.retry_after)
        if category is FailureCategory.PERMANENT:
            target = S.FAILED
        elif category is FailureCategory.CANCELLED:
            target = S.STOPPED
        elif policy is None or policy.allows(category, failures):
            target = S.FAILED_RETRY
        else:
            target = S.DEAD_LETTER
        if delay is None and policy is not None and target is S.FAILED_RETRY:
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

    def stop_job(self, job_id: str, error_message: str = "", *, attempt: int | None = None) -> dict[str, int]:
        check.report(job_id, attempt)
        return self._report(Verb.STOP, job_id, attempt, self._ending(Verb.STOP, S.STOPPED, error_message))

    def stop_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {each: self._ending(Verb.STOP, S.STOPPED, text) for each, text in given.items()}
        return self._reports(Verb.STOP, reports, attempts)

    def stop_job_with_retry(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        apply = self._ending(Verb.STOP_WITH_RETRY, S.STOPPED, error_message, retried=True)
        return self._report(Verb.STOP_WITH_RETRY, job_id, attempt, apply)

    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {
            each: self._ending(Verb.STOP_WITH_RETRY, S.STOPPED, text, retried=True)
            for each, text in given.items()
        }
        return self._reports(Verb.STOP_WITH_RETRY, reports, attempts)

    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        apply = self._ending(Verb.MARK_UNKNOWN_STOPPED, S.UNKNOWN_STOPPED, error_message)
        return self._report(Verb.MARK_UNKNOWN_STOPPED, job_id, attempt, apply)

    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {
            each: self._ending(Verb.MARK_UNKNOWN_STOPPED, S.UNKNOWN_STOPPED, text)
            for each, text in given.items()
        }
        return self._reports(Verb.MARK_UNKNOWN_STOPPED, reports, attempts)

    def _ending(self, verb: Verb, target: JobStatus, message: str, *, retried: bool = False) -> Report:
        text = check.message("error_message", message)

        def apply(row: Row, now: datetime) -> Row:
            fields: dict[str, Any] = {}
            if retried:
                fields = {"retry_count": row.job.retry_count + 1, "last_retry_at": now}
            return self._move(row, verb, target, now, error={"error_message": text}, **fields)

        return apply

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
            is_over = source not in {*IN_FLIGHT, S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED}
            check_fence(row, attempt, str(Verb.UPDATE_STATUS), is_over=is_over)
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

        def apply(row: Row, now: datetime) -> Row:
            target = S.FAILED_RETRY if row.job.status is S.RUNNING else S.STOPPED
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
            return lambda row, now: self._move(row, Verb.ACKNOWLEDGE, S.UNKNOWN_STOPPED, now)
        error = {"error_category": FailureCategory.CANCELLED}
        return lambda row, now: self._move(row, Verb.ACKNOWLEDGE, S.STOPPED, now, error=error)

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

    def _note(self, job_id: str, attempt: int | None, verb: str, **fields: Any) -> None:
        with self._transaction():
            row = self._row(job_id)
            self._check_in_flight(row, attempt, verb)
            self._put(row, job=msgspec.structs.replace(row.job, **fields))
