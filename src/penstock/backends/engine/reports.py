"""Reports about attempts, and cancellation: each decides by row, and is fenced by its attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from penstock.backends import _arguments as arguments
from penstock.backends import _decisions as decisions
from penstock.backends._rows import STATUSES, Row
from penstock.backends._settlement import settle
from penstock.backends._store import Outright, Reach, Transaction
from penstock.backends.base import Failure
from penstock.backends.engine.core import EngineCore, stale
from penstock.errors import JobNotFoundError, PenstockError, ReportErrors
from penstock.job import FINAL, IN_FLIGHT, JobStatus
from penstock.lifecycle import Verb, allows, refusal
from penstock.policy import FailureCategory, duration

__all__ = ["ReportVerbs"]

Decision = Callable[[Row, Any, int], None]

# Where the last attempt may still have something to say: it holds the job, or nobody knows what became of it.
MAY_REPORT: Final = IN_FLIGHT | {JobStatus.UNKNOWN_RETRY, JobStatus.UNKNOWN_STOPPED}


class ReportVerbs(EngineCore):
    """The verbs that say what became of jobs."""

    def complete_job(
        self, job_id: str, result: bytes | None = None, *, attempt: int | None = None
    ) -> dict[str, int]:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        results = {job_id: self._result(result)}
        fences = {} if attempt is None else {job_id: attempt}
        return self._write(Outright(lambda tx: _only(*self._complete(tx, results, fences))))

    def complete_jobs(
        self, results: Mapping[str, bytes | None], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        arguments.mapping("results", results)
        checked = {job_id: self._result(result) for job_id, result in results.items()}
        fences = arguments.attempts(attempts)
        freed, errors = self._write(Outright(lambda tx: self._complete(tx, checked, fences)))
        return _all(freed, errors, len(results))

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
        failure = _checked_failure(
            Failure(message=error_message, category=category, code=code, retry_after=retry_after)
        )
        return self._report_one(Verb.FAIL, job_id, failure, attempt, decisions.fail)

    def fail_jobs(
        self,
        failures: Mapping[str, str | Failure],
        *,
        attempts: Mapping[str, int] | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: timedelta | float | None = None,
    ) -> dict[str, int]:
        arguments.mapping("failures", failures)
        checked = {
            job_id: _checked_failure(
                each
                if isinstance(each, Failure)
                else Failure(message=each, category=category, code=code, retry_after=retry_after)
            )
            for job_id, each in failures.items()
        }
        return self._report(Verb.FAIL, checked, attempts, decisions.fail)

    def stop_job(self, job_id: str, error_message: str = "", *, attempt: int | None = None) -> dict[str, int]:
        text = arguments.message("error_message", error_message)
        return self._report_one(Verb.STOP, job_id, text, attempt, decisions.stop)

    def stop_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        return self._report(Verb.STOP, _checked_messages(messages), attempts, decisions.stop)

    def stop_job_with_retry(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        text = arguments.message("error_message", error_message)
        return self._report_one(Verb.STOP_WITH_RETRY, job_id, text, attempt, decisions.stop_with_retry)

    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        return self._report(
            Verb.STOP_WITH_RETRY, _checked_messages(messages), attempts, decisions.stop_with_retry
        )

    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        text = arguments.message("error_message", error_message)
        return self._report_one(
            Verb.MARK_UNKNOWN_STOPPED, job_id, text, attempt, decisions.mark_unknown_stopped
        )

    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        return self._report(
            Verb.MARK_UNKNOWN_STOPPED, _checked_messages(messages), attempts, decisions.mark_unknown_stopped
        )

    def release_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        return self._report(Verb.RELEASE, _checked_messages(messages), attempts, decisions.release)

    def acknowledge_cancellation(
        self, job_id: str, was_executing: bool, *, attempt: int | None = None
    ) -> None:
        arguments.boolean("was_executing", was_executing)
        self._report_one(Verb.ACKNOWLEDGE, job_id, was_executing, attempt, decisions.acknowledge)

    def acknowledge_cancellations(
        self, executing: Mapping[str, bool], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        for value in arguments.mapping("executing", executing).values():
            arguments.boolean("was_executing", value)
        self._report(Verb.ACKNOWLEDGE, executing, attempts, decisions.acknowledge)

    def update_job_status(
        self,
        job_id: str,
        status: JobStatus,
        result: bytes | None = None,
        error_message: str = "",
        *,
        attempt: int | None = None,
    ) -> dict[str, int]:
        arguments.job_id(job_id)
        target = arguments.status(status)
        text = arguments.message("error_message", error_message)
        data = self._result(result)
        arguments.attempt(attempt)

        def work(tx: Transaction) -> dict[str, int]:
            tx.expect(Reach.ALL)
            row = self._row(tx, job_id)
            source = JobStatus(row.status)
            if attempt is not None and (attempt != row.attempt or source not in MAY_REPORT):
                raise stale(Verb.UPDATE_STATUS, row, attempt)
            if source is target and target not in FINAL:
                return {}
            if not allows(Verb.UPDATE_STATUS, source, target):
                raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
            if target is JobStatus.CANCELLING and source.is_final and row.key is not None:
                tx.lock_keys([row.key])
                if any(member.is_in_flight for member in tx.key_members([row.key])):
                    raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
            frees = source.holds_slot and target in decisions.FREEING_UPDATES
            decisions.update_status(row, target, text, tx.now)
            self._save(tx, [row])
            if row.closed and row.unmet:
                tx.drop_edges_of([row.seq])  # it waits for nothing any more
            if data is not None:
                tx.store_results([(row.seq, data)])
            settle(tx, [row])
            return {row.assignee_id: 1} if frees and row.assignee_id is not None else {}

        return self._write(work)

    def _report_one(
        self, verb: Verb, job_id: str, value: object, attempt: int | None, decide: Decision
    ) -> dict[str, int]:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        fences = {} if attempt is None else {job_id: attempt}

        def work(tx: Transaction) -> dict[str, int]:
            return _only(*self._apply(tx, verb, {job_id: value}, fences, decide))

        return self._write(work)

    def _report(
        self, verb: Verb, values: Mapping[str, Any], attempts: Mapping[str, int] | None, decide: Decision
    ) -> dict[str, int]:
        arguments.mapping("values", values)
        fences = arguments.attempts(attempts)
        freed, errors = self._write(lambda tx: self._apply(tx, verb, values, fences, decide))
        return _all(freed, errors, len(values))

    def _complete(
        self, tx: Transaction, results: Mapping[str, bytes | None], fences: Mapping[str, int]
    ) -> tuple[dict[str, int], list[PenstockError]]:
        """Complete the simple ones in one statement and the rest one by one."""
        done = tx.complete_simple({job_id: fences.get(job_id) for job_id in results})
        freed = Counter(assignee for _, _, assignee in done if assignee is not None)
        tx.store_results([(seq, results[job_id]) for job_id, seq, _ in done])
        errors: list[PenstockError] = []
        if len(done) < len(results):
            rest = dict(results)
            for job_id, _, _ in done:
                del rest[job_id]
            also_freed, errors = self._apply(tx, Verb.COMPLETE, rest, fences, decisions.complete)
            freed.update(also_freed)
        return dict(freed), errors

    def _apply(
        self,
        tx: Transaction,
        verb: Verb,
        values: Mapping[str, Any],
        fences: Mapping[str, int],
        decide: Decision,
    ) -> tuple[dict[str, int], list[PenstockError]]:
        """Decide each report by itself; what is refused changes nothing."""
        freed: Counter[str] = Counter()
        errors: list[PenstockError] = []
        changed: list[Row] = []
        tx.expect(Reach.NEXT if verb is Verb.COMPLETE else Reach.ALL)
        rows = tx.rows(values.keys())
        for job_id, value in values.items():
            row = rows.get(job_id)
            error = _objection(verb, job_id, row, fences.get(job_id))
            if error is not None or row is None:
                errors.append(error or JobNotFoundError(job_id))
                continue
            if row.is_in_flight and row.assignee_id is not None:
                freed[row.assignee_id] += 1
            decide(row, value, tx.now)
            changed.append(row)
        self._save(tx, changed)
        if verb is Verb.COMPLETE:
            tx.store_results([(row.seq, values[row.id]) for row in changed])
        settle(tx, changed)
        return dict(freed), errors

    def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, waiting_only: bool = False
    ) -> tuple[list[str], list[str]]:
        arguments.boolean("waiting_only", waiting_only)
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)

        def work(tx: Transaction) -> tuple[list[str], list[str]]:
            tx.expect(Reach.ALL)
            rows, missing = self._selected(tx, wanted_tags, wanted_ids)
            cancelled: list[str] = []
            unknown: list[str] = list(missing)
            changed: list[Row] = []
            for row in rows:
                if row.closed or (waiting_only and row.is_in_flight):
                    unknown.append(row.id)
                    continue
                cancelled.append(row.id)
                if row.status != JobStatus.CANCELLING:
                    decisions.cancel(row, tx.now)
                    changed.append(row)
            self._save(tx, changed)
            tx.drop_edges_of([row.seq for row in changed if row.closed and row.unmet])
            settle(tx, changed)
            return cancelled, unknown

        return self._write(work)

    def _result(self, result: bytes | None) -> bytes | None:
        return None if result is None else arguments.blob("result", result, self._options.max_payload)


def _checked_failure(failure: Failure) -> Failure:
    after = failure.retry_after
    return msgspec.structs.replace(
        failure,
        message=arguments.message("error_message", failure.message, required=True),
        category=arguments.category(failure.category),
        code=arguments.optional_text("code", failure.code, arguments.MAX_TYPE),
        retry_after=None if after is None else duration(after, "retry_after"),
    )


def _checked_messages(messages: Mapping[str, str]) -> dict[str, str]:
    arguments.mapping("messages", messages)
    return {job_id: arguments.message("error_message", text) for job_id, text in messages.items()}


def _only(freed: dict[str, int], errors: list[PenstockError]) -> dict[str, int]:
    """Return what a single report freed, or raise why it was refused."""
    if errors:
        raise errors[0]
    return freed


def _all(freed: dict[str, int], errors: list[PenstockError], count: int) -> dict[str, int]:
    """Return what a plural report freed, or raise what of it was refused."""
    if errors:
        raise ReportErrors(f"{len(errors)} of {count} reports were refused", errors, freed)
    return freed


def _objection(verb: Verb, job_id: str, row: Row | None, attempt: int | None) -> PenstockError | None:
    """Return why a report is refused, or None."""
    if row is None:
        return JobNotFoundError(job_id)
    allowed = allows(verb, STATUSES[row.status])
    if attempt is not None and (attempt != row.attempt or not (allowed or row.is_in_flight)):
        return stale(verb, row, attempt)
    return None if allowed else refusal(verb, job_id, JobStatus(row.status))
