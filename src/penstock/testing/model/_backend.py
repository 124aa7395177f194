"""The verbs of the contract over a `ModelState`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.backends import UNSET, Backend, ClaimRequest, Failure, UnsetType
from penstock.clock import Clock
from penstock.durations import Duration
from penstock.errors import DependencyError, JobNotFoundError, QueueBlockedError, invalid
from penstock.job import IN_FLIGHT, Job, JobStats, JobStatus, JournalEntry, Key, Maintenance, Priority
from penstock.lifecycle import Verb, allows, refusal
from penstock.policy import FailureCategory
from penstock.testing import _checks as check
from penstock.testing.model._changing import CANCEL_TO, check_all, copy_of, raise_dependents
from penstock.testing.model._claiming import answer_claim, lose, start_attempt
from penstock.testing.model._journal import ModelJournal
from penstock.testing.model._outbox import ModelOutbox, forget_given_up
from penstock.testing.model._owners import ModelOwners
from penstock.testing.model._reading import ModelReading
from penstock.testing.model._reports import (
    FREEING_UPDATES,
    acknowledging,
    completing,
    ending,
    failing,
    note,
    releasing,
    report_all,
    report_alone,
)
from penstock.testing.model._rows import S, check_fence, is_past, not_possible
from penstock.testing.model._runtime import ModelRuntime
from penstock.testing.model._state import ModelState
from penstock.testing.model._submission import (
    enqueue,
    in_order,
    insert,
    join,
    listed_jobs,
    places_named,
    refuse_repeats,
    take_in,
)
from penstock.testing.model._upkeep import apply_retention, expire, lose_abandoned, time_out, wake_delayed


class ModelBackend(Backend):
    """The contract in memory.

    Args:
        clock: where the time comes from.
        new_id: makes the ids of redriven copies.
        options: those of `penstock.open_backend`.
    """

    def __init__(
        self, clock: Clock | None = None, *, new_id: Callable[[], str] | None = None, **options: Any
    ) -> None:
        state = ModelState(clock, new_id=new_id, **options)
        self._state = state
        self.options = state.options
        self.journal = ModelJournal(state)
        self.owners = ModelOwners(state)
        self.outbox = ModelOutbox(self, state)
        self.runtime = ModelRuntime(self, state)
        self.reading = ModelReading(self, state)

    def enqueue_job(self, job: Job) -> str:
        check.job(job, self._state.options.max_payload)
        return enqueue(self._state, [job])[0]

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        batch = listed_jobs(self._state, jobs)
        with places_named(batch):
            return enqueue(self._state, batch)

    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        check.publication(writer, batch)
        given = listed_jobs(self._state, jobs)
        with self._state.transaction() as now:
            if writer is not None and batch is not None and batch <= self._state.published.get(writer, -1):
                return 0
            if self._state.is_blocked:
                raise QueueBlockedError
            refuse_repeats(self._state, given)
            missing = [job for job in given if job.id not in self._state.rows]
            before = len(self._state.rows)
            with places_named(given):
                take_in(self._state, missing, now, is_blocked=False)
            if writer is not None and batch is not None:
                self._state.published[writer] = batch
            return len(self._state.rows) - before

    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        check.report(parent_id, attempt)
        given = check.jobs(jobs, self._state.options.max_payload)
        for job in given:
            if job.parent_id not in (None, parent_id):
                raise invalid("parent_id", f"{parent_id} or None", job.parent_id)
        children = [msgspec.structs.replace(job, parent_id=parent_id) for job in given]
        with self._state.transaction() as now:
            parent = self._state.row(parent_id)
            self._state.check_in_flight(parent, attempt, "spawn")
            if parent.job.status is not S.RUNNING:
                raise not_possible("spawn", parent.job)
            waiting = {row.job.id for row in self._state.rows.values() if parent_id in row.open_after}
            downstream = waiting | {
                row.job.id for row in self._state.rows.values() if waiting & self._state.awaited_by(row)
            }
            ids = take_in(self._state, children, now, is_blocked=False)
            refs = {ref for job in children for ref in (*job.after, *job.after_any)}
            for job_id in {*ids, *refs}:
                if job_id in downstream or (job_id == parent_id and job_id in ids):
                    raise DependencyError(f"{job_id} waits for {parent_id}", reason="cycle", job_id=job_id)
            family = in_order(
                self._state,
                [job_id for job_id in ids if self._state.rows[job_id].job.status is not S.COMPLETED],
            )
            for row in list(self._state.rows.values()):
                if row.job.id == parent_id or parent_id in row.spawned:
                    self._state.put(row, spawned=row.spawned | frozenset(family))
            for job_id in in_order(self._state, waiting):
                join(self._state, self._state.rows[job_id], family, now)
            return ids

    def set_blocked(self, blocked: bool) -> None:
        check.flag("blocked", blocked)
        with self._state.transaction():
            self._state.is_blocked = blocked

    def is_blocked(self) -> bool:
        self._state.check_usable()
        return self._state.is_blocked

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
        with self._state.transaction() as now:
            for row in list(self._state.rows.values()):
                if row.is_delayed and row.due_at <= now:
                    self._state.put(row, is_delayed=False)
            return [answer_claim(self._state, request, now) for request in wanted]

    def restart_job(self, job_id: str, assignee_id: str, *, owner: str | None = None) -> Job:
        check.text("job_id", job_id, check.MAX_ID)
        check.text("assignee_id", assignee_id, check.MAX_ASSIGNEE)
        with self._state.transaction() as now:
            row = self._state.row(job_id)
            if not allows(Verb.RESTART, row.job.status) or not row.job.held or self._state.key_is_busy(row):
                raise refusal(Verb.RESTART, job_id, row.job.status)
            row = self._state.put(row, ready_at=now)
            row = start_attempt(self._state, row, Verb.RESTART, assignee_id, now, owner=owner)
            return self._state.view(row, now)

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        check.text("assignee_id", assignee_id, check.MAX_ASSIGNEE)
        wanted = None if jobs is None else check.attempts(jobs, field="jobs")
        with self._state.transaction() as now:
            self._state.unresponsive.discard(assignee_id)
            held = [
                row
                for row in self._state.rows.values()
                if row.job.assignee_id == assignee_id
                and row.job.status in IN_FLIGHT
                and (wanted is None or wanted.get(row.job.id) == row.job.attempt)
            ]
            for row in held:
                self._state.put(row, lease_from=now)
            return len(held)

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        check.text("assignee_id", assignee_id, check.MAX_ASSIGNEE)
        with self._state.transaction() as now:
            self._state.unresponsive.add(assignee_id)
            for row in list(self._state.rows.values()):
                if row.job.assignee_id == assignee_id and row.job.status in IN_FLIGHT:
                    lose(self._state, row, Verb.UNRESPONSIVE, now)

    def reset_running_jobs(self) -> None:
        with self._state.transaction() as now:
            for row in list(self._state.rows.values()):
                if row.job.status in IN_FLIGHT:
                    lose(self._state, row, Verb.RESET, now)

    def complete_job(
        self, job_id: str, result: bytes | None = None, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        return report_alone(self._state, Verb.COMPLETE, job_id, attempt, completing(self._state, result))

    def complete_jobs(
        self, results: Mapping[str, bytes | None], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("results", results)
        reports = {job_id: completing(self._state, result) for job_id, result in given.items()}
        return report_all(self._state, Verb.COMPLETE, reports, attempts)

    def fail_job(
        self,
        job_id: str,
        error_message: str,
        *,
        attempt: int | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: Duration | None = None,
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        failure = Failure(message=error_message, category=category, code=code, retry_after=retry_after)
        return report_alone(self._state, Verb.FAIL, job_id, attempt, failing(self._state, failure))

    def fail_jobs(
        self,
        failures: Mapping[str, str | Failure],
        *,
        attempts: Mapping[str, int] | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: Duration | None = None,
    ) -> dict[str, int]:
        reports = {}
        for job_id, given in check.mapping("failures", failures).items():
            plain = not isinstance(given, Failure)
            reports[job_id] = failing(
                self._state,
                Failure(message=given, category=category, code=code, retry_after=retry_after)
                if plain
                else given,
            )
        return report_all(self._state, Verb.FAIL, reports, attempts)

    def stop_job(self, job_id: str, error_message: str = "", *, attempt: int | None = None) -> dict[str, int]:
        check.report(job_id, attempt)
        return report_alone(
            self._state, Verb.STOP, job_id, attempt, ending(self._state, Verb.STOP, S.STOPPED, error_message)
        )

    def stop_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {each: ending(self._state, Verb.STOP, S.STOPPED, text) for each, text in given.items()}
        return report_all(self._state, Verb.STOP, reports, attempts)

    def stop_job_with_retry(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        apply = ending(self._state, Verb.STOP_WITH_RETRY, S.STOPPED, error_message, retried=True)
        return report_alone(self._state, Verb.STOP_WITH_RETRY, job_id, attempt, apply)

    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {
            each: ending(self._state, Verb.STOP_WITH_RETRY, S.STOPPED, text, retried=True)
            for each, text in given.items()
        }
        return report_all(self._state, Verb.STOP_WITH_RETRY, reports, attempts)

    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        check.report(job_id, attempt)
        apply = ending(self._state, Verb.MARK_UNKNOWN_STOPPED, S.UNKNOWN_STOPPED, error_message)
        return report_alone(self._state, Verb.MARK_UNKNOWN_STOPPED, job_id, attempt, apply)

    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {
            each: ending(self._state, Verb.MARK_UNKNOWN_STOPPED, S.UNKNOWN_STOPPED, text)
            for each, text in given.items()
        }
        return report_all(self._state, Verb.MARK_UNKNOWN_STOPPED, reports, attempts)

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
        data = check.optional_data("result", result, self._state.options.max_payload)
        text = check.message("error_message", error_message)
        with self._state.transaction() as now:
            row = self._state.row(job_id)
            source = row.job.status
            is_over = source not in {*IN_FLIGHT, S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED}
            check_fence(row, attempt, str(Verb.UPDATE_STATUS), is_over=is_over)
            if source is target and not source.is_final:
                return {}
            if not allows(Verb.UPDATE_STATUS, source, target):
                raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
            if target in IN_FLIGHT and self._state.key_is_busy(row):
                raise refusal(Verb.UPDATE_STATUS, job_id, source, target)
            fields: dict[str, Any] = {}
            if data is not None:
                fields["result"] = data
            if text:
                fields["error_message"] = text
            if target in IN_FLIGHT and source not in IN_FLIGHT:
                row = self._state.put(row, owner=None, lease_from=now)
            self._state.move(row, Verb.UPDATE_STATUS, target, now, **fields)
            freed = source in IN_FLIGHT and target in FREEING_UPDATES
            return {row.job.assignee_id: 1} if freed and row.job.assignee_id is not None else {}

    def release_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        given = check.mapping("messages", messages)
        reports = {job_id: releasing(self._state, text) for job_id, text in given.items()}
        return report_all(self._state, Verb.RELEASE, reports, attempts)

    def acknowledge_cancellation(
        self, job_id: str, was_executing: bool, *, attempt: int | None = None
    ) -> None:
        check.report(job_id, attempt)
        report_alone(
            self._state, Verb.ACKNOWLEDGE, job_id, attempt, acknowledging(self._state, was_executing)
        )

    def acknowledge_cancellations(
        self, executing: Mapping[str, bool], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        given = check.mapping("executing", executing)
        reports = {job_id: acknowledging(self._state, flag) for job_id, flag in given.items()}
        report_all(self._state, Verb.ACKNOWLEDGE, reports, attempts)

    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        check.report(job_id, attempt)
        fields: dict[str, Any] = {"progress": check.whole("percent", percent, 0, 100)}
        if description is not None:
            fields["description"] = check.text("description", description, 10_000, empty=True)
        note(self._state, job_id, attempt, "save_progress", **fields)

    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        check.report(job_id, attempt)
        kept = check.data("checkpoint", data, self._state.options.max_payload)
        note(self._state, job_id, attempt, "save_checkpoint", checkpoint=kept)

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:
        check.report(job_id, attempt)
        with self._state.transaction():
            row = self._state.row(job_id)
            self._state.check_in_flight(row, attempt, "save_output")
            self._state.outputs[job_id] = output

    def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, waiting_only: bool = False
    ) -> tuple[list[str], list[str]]:
        check.flag("waiting_only", waiting_only)
        tags, job_ids = check.selection(tags, job_ids)
        with self._state.transaction() as now:
            cancelled: list[str] = []
            unknown = [job_id for job_id in job_ids if job_id not in self._state.rows]
            for row in self._state.select(tags, job_ids):
                status = row.job.status
                if status.is_final or (waiting_only and status in IN_FLIGHT):
                    unknown.append(row.job.id)
                    continue
                cancelled.append(row.job.id)
                if status is not S.CANCELLING:
                    self._state.move(row, Verb.CANCEL, CANCEL_TO[status], now)
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
        with self._state.transaction() as now:
            row = self._state.row(job_id)
            if row.job.status.is_final:
                raise refusal(Verb.UPDATE, job_id, row.job.status)
            self._state.write(row, Verb.UPDATE, now, source=row.job.status, **fields)
            if "priority" in fields:
                raise_dependents(self._state, job_id, fields["priority"], now)

    def redrive_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> list[str]:
        tags, job_ids = check.selection(tags, job_ids)
        dead = {S.FAILED, S.DEAD_LETTER}
        with self._state.transaction() as now:
            if self._state.is_blocked:
                raise QueueBlockedError
            missing = [job_id for job_id in job_ids if job_id not in self._state.rows]
            if missing:
                raise JobNotFoundError(missing[0], missing)
            check_all(
                [self._state.row(job_id) for job_id in job_ids],
                lambda job: job.status in dead,
                rule="only failed and dead_letter jobs can be redriven",
                verb="redrive",
            )
            listed = {job_id: position for position, job_id in enumerate(job_ids)}
            chosen = [
                row.job
                for row in self._state.select(tags, job_ids)
                if row.job.status in dead and (row.verb != Verb.PROPAGATE or row.job.id in job_ids)
            ]
            chosen.sort(key=lambda job: listed.get(job.id, len(listed)))
            copies = [copy_of(job, self._state.new_id()) for job in chosen]
            for copy in copies:
                insert(self._state, copy, now)
            return [copy.id for copy in copies]

    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        tags, job_ids = check.selection(tags, job_ids)
        with self._state.transaction() as now:
            chosen = self._state.select(tags, job_ids)
            check_all(
                chosen,
                lambda job: job.status.is_final,
                rule="only jobs in a final status can be deleted",
                verb=Verb.DELETE,
            )
            for row in chosen:
                self._state.remove(row, Verb.DELETE, now)
            return len(chosen)

    def get_job(self, job_id: str) -> Job:
        check.text("job_id", job_id, check.MAX_ID)
        self._state.check_usable()
        with self._state.lock:
            return self._state.view(self._state.row(job_id), self._state.clock.now())

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        wanted = check.ids("job_ids", job_ids)
        self._state.check_usable()
        with self._state.lock:
            now = self._state.clock.now()
            return {
                job_id: self._state.view(self._state.rows[job_id], now)
                for job_id in wanted
                if job_id in self._state.rows
            }

    def get_job_stats(self, tags: Sequence[str] = ()) -> JobStats:
        wanted = check.tags("tags", tags)
        self._state.check_usable()
        with self._state.lock:
            jobs = [row.job for row in self._state.rows.values() if set(wanted) <= set(row.job.tags)]
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
        self._state.check_usable()
        with self._state.lock:
            start = None if after is None else self._state.row(after).number
            now = self._state.clock.now()
            rows = reversed(self._state.rows.values()) if newest else self._state.rows.values()
            matching = [
                row
                for row in rows
                if (start is None or (row.number < start if newest else row.number > start))
                and status in (None, row.job.status)
                and type in (None, row.job.type)
                and set(wanted) <= set(row.job.tags)
            ]
            return [self._state.view(row, now) for row in matching[:limit]]

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        check.whole("after", after, 0, 2**62)
        check.whole("limit", limit, 1, 2**31 - 1)
        self._state.check_usable()
        with self._state.lock:
            start = bisect_right(self._state.journal, after, key=lambda row: row.seq)
            return self._state.journal[start : start + limit]

    def maintain(self) -> Maintenance:
        with self._state.transaction() as now:
            expired = expire(self._state, now)
            lost = lose_abandoned(self._state, now)
            timed_out = time_out(self._state, now)
            due = wake_delayed(self._state, now)
            removed = apply_retention(self._state, now)
            forget_given_up(self._state, now)
            return Maintenance(expired=expired, lost=lost, timed_out=timed_out, due=due, removed=removed)

    def cleanup_expired_jobs(self, ttl: Duration) -> int:
        span = check.ttl(ttl)
        with self._state.transaction() as now:
            old = [
                row
                for row in self._state.rows.values()
                if row.job.status is S.COMPLETED and is_past(row.job.finalized_at, span, now)
            ]
            for row in old:
                self._state.remove(row, Verb.CLEANUP, now)
            return len(old)

    def now(self) -> datetime:
        return self._state.clock.now()

    def close(self) -> None:
        with self._state.lock:
            self._state.is_closed = True
