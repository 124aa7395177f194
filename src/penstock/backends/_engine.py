"""Every verb of the contract, once, over the primitives of a store.

A verb checks its arguments, then hands the store a piece of work: find the rows, decide, save, settle what follows. What
is decided per row stands in `_decisions`; what follows from it in `_settlement`; new jobs in `_submission`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from penstock.backends import _arguments as arguments
from penstock.backends import _decisions as decisions
from penstock.backends._liveness import gone_owners, is_this_process, this_process
from penstock.backends._options import StoreOptions
from penstock.backends._outbox import OutboxVerbs
from penstock.backends._overview import MOST_COUNTED, encode_intakes, overview_of
from penstock.backends._rows import STATUSES, Row, damage_named, encode_strings, job_of, micros_of, moment_at
from penstock.backends._settlement import settle
from penstock.backends._spawning import adopted, spawn
from penstock.backends._store import (
    SPAWNED,
    Blobs,
    Claim,
    HandedOut,
    Outright,
    Reach,
    Store,
    Transaction,
    jobs_of,
    tell,
)
from penstock.backends._submission import PlainSubmission, Submission
from penstock.backends.base import (
    UNSET,
    Change,
    ClaimRequest,
    Failure,
    Retention,
    Taker,
    UnsetType,
)
from penstock.errors import (
    InvalidArgumentError,
    InvalidTransitionError,
    JobNotFoundError,
    PenstockError,
    QueueBlockedError,
    ReportErrors,
    StaleAttemptError,
    shown,
)
from penstock.job import (
    FINAL,
    IN_FLIGHT,
    Job,
    JobStats,
    JobStatus,
    JournalEntry,
    Key,
    Maintenance,
    Priority,
    distinct,
)
from penstock.lifecycle import Verb, allows, refusal
from penstock.overview import Finding, Intake, Overview
from penstock.policy import FailureCategory, duration
from penstock.scope import checkpoint

__all__ = ["EngineBackend"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

Decision = Callable[[Row, Any, int], None]

PROMOTED_PER_CLAIM: Final = 1_000
UPKEEP_BATCH: Final = 500
EXECUTION_GRACE: Final = micros_of(timedelta(seconds=10))
CLOCK_JUMP: Final = 2.0
ONE_BEAT: Final = 5.0
# Where the last attempt may still have something to say: it holds the job, or nobody knows what became of it.
MAY_REPORT: Final = IN_FLIGHT | {JobStatus.UNKNOWN_RETRY, JobStatus.UNKNOWN_STOPPED}


class EngineBackend(OutboxVerbs):
    """The contract over a `Store`."""

    def __init__(self, store: Store, options: StoreOptions, *, has_own_clock: bool) -> None:
        self._store = store
        self._options = options
        self._reclaiming = _ClockWatch(enabled=not has_own_clock)
        self._listeners: dict[object, Callable[[Sequence[Change]], None]] = {}
        self._listener_lock = threading.Lock()
        self._taker: Taker | None = None
        self._iterating: set[int] = set()
        self._pid = os.getpid()
        self.poll_seconds = store.poll_seconds
        self.liveness = options.liveness
        self.max_depth = options.max_depth
        self.max_payload = options.max_payload

    @property
    def options(self) -> StoreOptions:
        """The options in force."""
        return self._options

    # -- submission ---------------------------------------------------------------------------------------------

    def enqueue_job(self, job: Job) -> str:
        arguments.check_job(job, self._options.max_payload)
        if job.is_plain and self._options.max_pending is None:
            return self._write(PlainSubmission(job))
        return self._write(lambda tx: Submission(tx, self._options, check=False).run([job])[0])

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
            raise InvalidArgumentError(
                f"jobs must be an iterable of Job, got {shown(jobs)}", field="jobs", value=jobs
            )
        if not isinstance(jobs, list | tuple):
            return self._enqueue_from(jobs)
        arguments.check_batch(jobs, self._options.max_payload)
        if not jobs:
            checkpoint()
        return self._write(lambda tx: Submission(tx, self._options, check=False).run_batch(jobs))

    def _enqueue_from(self, jobs: Iterable[Job]) -> list[str]:
        return self._write_iterated(lambda tx: Submission(tx, self._options).run_batch(jobs))

    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
            raise InvalidArgumentError(
                f"jobs must be an iterable of Job, got {shown(jobs)}", field="jobs", value=jobs
            )
        publication = arguments.publication(writer, batch)

        def work(tx: Transaction) -> int:
            if publication is not None and not tx.note_publication(*publication):
                return 0
            submission = Submission(tx, self._options, skips_stored=True)
            submission.run_batch(jobs)
            return submission.stored

        return self._write(work) if isinstance(jobs, list | tuple) else self._write_iterated(work)

    def _write_iterated(self, work: Callable[[Transaction], T]) -> T:
        """Run work that reads an iterator. That can be read once, so its transaction is run once, and by itself."""
        if self._is_iterated():
            raise _written_while_iterated()
        me = threading.get_ident()
        self._iterating.add(me)
        try:
            return self._write_alone(work)
        finally:
            self._iterating.discard(me)

    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        arguments.job_id(parent_id)
        arguments.attempt(attempt)
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
            raise InvalidArgumentError(
                f"jobs must be an iterable of Job, got {shown(jobs)}", field="jobs", value=jobs
            )
        checked = adopted(parent_id, [arguments.check_job(job, self._options.max_payload) for job in jobs])
        return self._write(lambda tx: spawn(tx, self._options, parent_id, checked, attempt))

    # -- claiming -----------------------------------------------------------------------------------------------

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
        claim = _checked_claim(assignee_id, tags, limit, types, key, job_ids, owner)
        return self._write(Outright(lambda tx: self._claim(tx, claim)))

    def dequeue_jobs_for(self, requests: Sequence[ClaimRequest]) -> list[list[Job]]:
        if isinstance(requests, str | bytes) or not isinstance(requests, Sequence):
            raise InvalidArgumentError(
                f"requests must be a sequence of ClaimRequest, got {shown(requests)}",
                field="requests",
                value=requests,
            )
        for each in requests:
            if not isinstance(each, ClaimRequest):
                raise InvalidArgumentError(
                    f"requests must hold ClaimRequest only, got {shown(each)}", field="requests", value=each
                )
        claims = [_claim_of(each) for each in requests]
        return self._write(Outright(lambda tx: [self._claim(tx, claim) for claim in claims]))

    def restart_job(self, job_id: str, assignee_id: str, *, owner: str | None = None) -> Job:
        arguments.job_id(job_id)
        arguments.assignee(assignee_id)
        arguments.optional_text("owner", owner, arguments.MAX_ID)

        def work(tx: Transaction) -> Job:
            row = self._row(tx, job_id)
            if not allows(Verb.RESTART, JobStatus(row.status)):
                raise refusal(Verb.RESTART, job_id, JobStatus(row.status))
            if not row.held:
                raise InvalidTransitionError(
                    f"job {shown(job_id)} cannot be restarted: only held jobs can, others are retried",
                    job_id=job_id,
                    status=row.status,
                    verb=Verb.RESTART,
                )
            if row.key is not None:
                tx.lock_keys([row.key])
                if any(member.is_in_flight for member in tx.key_members([row.key])):
                    raise InvalidTransitionError(
                        f"job {shown(job_id)} cannot be restarted while another job of its key is running",
                        job_id=job_id,
                        status=row.status,
                        verb=Verb.RESTART,
                    )
            decisions.start(row, assignee_id, owner, Verb.RESTART, tx.now)
            self._save(tx, [row])
            settle(tx, [row])
            return jobs_of(tx, [row])[0]

        return self._write(work)

    def _claim(self, tx: Transaction, claim: Claim) -> list[Job]:
        if claim.types == () or claim.job_ids == ():
            return []
        if claim.job_ids is not None:
            return jobs_of(tx, self._claim_listed(tx, claim, claim.job_ids))
        portion = max(PROMOTED_PER_CLAIM, claim.limit)
        jobs: list[Job] = []
        while True:
            promoted = tx.promote(portion)
            jobs += tx.claim(claim._replace(limit=claim.limit - len(jobs)))
            # What the claim wants may be due behind a portion of jobs that it does not want.
            if len(jobs) == claim.limit or promoted < portion:
                return jobs

    def _claim_listed(self, tx: Transaction, claim: Claim, ids: tuple[str, ...]) -> list[Row]:
        wanted = set(claim.tags)
        rows = [
            row
            for row in tx.rows(ids).values()
            if decisions.is_takeable(row, tx.now)
            and (claim.types is None or row.type in claim.types)
            and (claim.key is None or row.key == claim.key)
            and (not wanted or wanted <= set(decisions.tags_of(row)))
        ]
        rows.sort(key=lambda row: (row.priority, row.order_at, row.seq))
        rows = rows[: claim.limit]
        for row in rows:
            decisions.start(row, claim.assignee_id, claim.owner, Verb.CLAIM, tx.now)
        self._save(tx, rows)
        return rows

    # -- reports ------------------------------------------------------------------------------------------------

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
                raise _stale(Verb.UPDATE_STATUS, row, attempt)
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

    # -- cancellation -------------------------------------------------------------------------------------------

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

    # -- holders ------------------------------------------------------------------------------------------------

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        arguments.assignee(assignee_id)
        self._write(lambda tx: self._lose_held(tx, assignee_id, Verb.UNRESPONSIVE))

    def reset_running_jobs(self) -> None:
        self._write(lambda tx: self._lose_held(tx, None, Verb.RESET))

    def _lose_held(self, tx: Transaction, assignee_id: str | None, verb: Verb) -> int:
        tx.expect(Reach.ALL)
        return self._lose(tx, tx.rows_in_flight(assignee_id), verb)

    def _lose(self, tx: Transaction, rows: list[Row], verb: Verb) -> int:
        for row in rows:
            decisions.lose(row, verb, tx.now)
        self._save(tx, rows)
        settle(tx, rows)
        return len(rows)

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        arguments.assignee(assignee_id)
        attempts = None if jobs is None else dict(arguments.attempts(jobs))
        return self._write(lambda tx: tx.renew(assignee_id, attempts))

    def open_owner(self) -> str:
        host, pid, started = this_process()
        owner = f"{uuid.uuid4()}"
        self._write(lambda tx: tx.put_owner(decisions.owner(owner, host, pid, started, tx.now)))
        return owner

    def beat_owner(self, owner: str, *, intakes: Sequence[Intake] | None = None) -> bool:
        arguments.text("owner", owner, arguments.MAX_ID)
        told = None if intakes is None else encode_intakes(intakes)
        return self._write(lambda tx: tx.beat(owner, told))

    def has_owner(self, owner: str) -> bool:
        arguments.text("owner", owner, arguments.MAX_ID)
        checkpoint()
        return self._store.has_owner(owner)

    def close_owner(self, owner: str) -> None:
        arguments.text("owner", owner, arguments.MAX_ID)
        self._write(lambda tx: tx.drop_owners([owner]))

    # -- while running ------------------------------------------------------------------------------------------

    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        arguments.percent(percent)
        if description is not None:
            description = arguments.message("description", description)[: arguments.MAX_DESCRIPTION]

        def work(tx: Transaction) -> None:
            row = self._running_row(tx, job_id, attempt, "save_progress")
            row.progress = percent
            if description is not None:
                row.description = description
            tx.store_progress(row)

        arguments.job_id(job_id)
        arguments.attempt(attempt)
        self._write(work)

    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        checked = arguments.blob("checkpoint", data, self._options.max_payload)

        def work(tx: Transaction) -> None:
            row = self._running_row(tx, job_id, attempt, "save_checkpoint")
            tx.store_checkpoint(row.seq, checked)

        self._write(work)

    def _running_row(self, tx: Transaction, job_id: str, attempt: int | None, verb: str) -> Row:
        row = self._row(tx, job_id)
        if attempt is not None and (attempt != row.attempt or not row.is_in_flight):
            raise _stale(verb, row, attempt)
        if not row.is_in_flight:
            raise InvalidTransitionError(
                f"{verb} of job {shown(job_id)} is not possible: it is {row.status}, allowed in running, cancelling",
                job_id=job_id,
                status=row.status,
                verb=verb,
            )
        return row

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        data = arguments.output(output, self._options.max_payload)

        def work(tx: Transaction) -> None:
            row = self._running_row(tx, job_id, attempt, "save_output")
            tx.store_output(row.seq, data)

        self._write(work)

    def get_output(self, job_id: str) -> str:
        arguments.job_id(job_id)
        checkpoint()
        data = self._store.fetch_output(job_id)
        if data is None:
            raise JobNotFoundError(job_id)
        return data.decode(errors="replace")

    # -- changing and repeating ---------------------------------------------------------------------------------

    def update_job(
        self,
        job_id: str,
        *,
        priority: Priority | int | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
    ) -> None:
        arguments.job_id(job_id)
        new_priority = None if priority is UNSET else int(arguments.priority(priority))
        new_tags = None if tags is UNSET else encode_strings(arguments.tags(distinct("tags", tags)))
        if correlation_id is not UNSET:
            arguments.optional_text("correlation_id", correlation_id, arguments.MAX_ID)
        if callback_url is not UNSET:
            arguments.optional_text("callback_url", callback_url, arguments.MAX_CALLBACK_URL)

        def work(tx: Transaction) -> None:
            if new_priority is not None:
                tx.expect(Reach.ALL)  # whoever waits for it becomes as urgent
            row = self._row(tx, job_id)
            if row.closed:
                raise InvalidTransitionError(
                    f"job {shown(job_id)} is {row.status} and can no longer be updated",
                    job_id=job_id,
                    status=row.status,
                    verb=Verb.UPDATE,
                )
            row.note(Verb.UPDATE, tx.now)
            if new_priority is not None:
                row.priority = new_priority
            if correlation_id is not UNSET:
                row.correlation_id = correlation_id
            if callback_url is not UNSET:
                row.callback_url = callback_url
            retagged = new_tags is not None and new_tags != row.tags
            if new_tags is not None:
                row.tags = new_tags
            self._save(tx, [row])
            if retagged:
                tx.retag(row)
            if new_priority is not None and row.fan:
                self._raise_dependents(tx, row)

        self._write(work)

    def _raise_dependents(self, tx: Transaction, row: Row) -> None:
        """Make the jobs waiting for `row`, directly or not, at least as urgent as it."""
        reached: set[int] = set()
        wave = [row.seq]
        while wave:
            wave = sorted({edge.job_seq for edge in tx.edges_onto(wave) if edge.kind != SPAWNED} - reached)
            reached.update(wave)
        raised = [each for each in tx.rows_by_seq(sorted(reached)).values() if each.priority > row.priority]
        for each in raised:
            each.note(Verb.UPDATE, tx.now)
            each.priority = row.priority
        self._save(tx, raised)

    def redrive_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> list[str]:
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)

        def work(tx: Transaction) -> list[str]:
            if tx.is_blocked():
                raise QueueBlockedError
            tx.expect(ids=wanted_ids)
            tagged = tx.rows_tagged(wanted_tags) if wanted_tags else []
            listed = tx.rows(wanted_ids) if wanted_ids else {}
            for job_id in wanted_ids:
                if job_id not in listed:
                    raise JobNotFoundError(job_id)
                if listed[job_id].status not in decisions.DEAD:
                    raise _not_dead(listed[job_id])
            dead = {job_id: listed[job_id] for job_id in wanted_ids}
            dead |= {
                row.id: row for row in tagged if row.status in decisions.DEAD and row.verb != Verb.PROPAGATE
            }
            rows = list(dead.values())
            blobs = tx.blobs([row.seq for row in rows])
            copies = [decisions.copy_of(row, blobs.get(row.seq, Blobs()).payload) for row in rows]
            return Submission(tx, self._options, check=False).run(copies, external=False)

        return self._write(work)

    # -- reading ------------------------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> Job:
        arguments.job_id(job_id)
        found = self.get_jobs([job_id])
        if job_id not in found:
            raise JobNotFoundError(job_id)
        return found[job_id]

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        wanted = arguments.job_ids(job_ids)
        checkpoint()
        rows, now = self._store.fetch_jobs(wanted)
        with damage_named():
            found = {row.id: job_of(row, *blobs, now) for row, blobs in rows}
        return {job_id: found[job_id] for job_id in wanted if job_id in found}

    def get_job_stats(self, tags: Sequence[str] = ()) -> JobStats:
        wanted = arguments.tags(tags)
        checkpoint()
        return self._store.stats(wanted)

    def overview(self) -> Overview:
        checkpoint()
        liveness = micros_of(self._options.liveness)
        return overview_of(self._store.overview(MOST_COUNTED), liveness, MOST_COUNTED)

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
        wanted_status = None if status is None else str(arguments.status(status))
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        wanted_tags = arguments.tags(tags)
        arguments.optional_text("after", after, arguments.MAX_ID)
        arguments.limit(limit, most=1000)
        checkpoint()
        rows, now = self._store.list_jobs(
            status=wanted_status, type=type, tags=wanted_tags, after=after, limit=limit, newest=bool(newest)
        )
        with damage_named():
            return [job_of(row, *blobs, now) for row, blobs in rows]

    def count_keyed(self, key: Key | str | None = None, *, type: str | None = None) -> int:
        wanted = _checked_key(key)
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        checkpoint()
        return self._store.count_keyed(wanted, type)

    def list_keyed(
        self, key: Key | str | None = None, *, type: str | None = None, upto: int, limit: int = 1000
    ) -> list[str]:
        wanted = _checked_key(key)
        arguments.optional_text("type", type, arguments.MAX_TYPE)
        arguments.limit(limit)
        checkpoint()
        return self._store.list_keyed(wanted, type, upto, limit)

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        if type(after) is not int or after < 0:
            raise InvalidArgumentError(
                f"after must be a whole number of at least 0, got {shown(after)}", field="after", value=after
            )
        arguments.limit(limit)
        checkpoint()
        return self._store.read_journal(after, limit)

    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        arguments.job_id(job_id)
        arguments.limit(limit)
        checkpoint()
        found = self._store.job_history(job_id, limit)
        if found is None:
            raise JobNotFoundError(job_id)
        return found

    def store_id(self) -> str:
        checkpoint()
        return self._store.store_id()

    def journal_span(self) -> tuple[int, int]:
        checkpoint()
        return self._store.journal_span()

    def jobs_span(self) -> tuple[int, int]:
        checkpoint()
        return self._store.jobs_span()

    # -- upkeep -------------------------------------------------------------------------------------------------

    def maintain(self) -> Maintenance:
        expired = self._in_batches(self._expire)
        lost = 0
        if self._reclaiming.is_trusted():
            gone: list[str] = []
            lost = self._in_batches(lambda tx: self._reclaim(tx, gone))
            if gone:
                self._write(lambda tx: tx.drop_owners(self._still_gone(tx, gone)))
        timed_out = self._in_batches(self._time_out)
        due = self._in_batches(lambda tx: tx.promote(UPKEEP_BATCH))
        removed = self._in_batches(self._retire)
        self._write(lambda tx: tx.tidy())
        return Maintenance(expired=expired, lost=lost, timed_out=timed_out, due=due, removed=removed)

    def _in_batches(self, step: Callable[[Transaction], int]) -> int:
        """Repeat a bounded step until it finds less than a batch, each in a transaction of its own."""
        total = 0
        while True:
            done = self._write(step)
            total += done
            if done < UPKEEP_BATCH:
                return total

    def _expire(self, tx: Transaction) -> int:
        tx.expect(Reach.ALL)
        rows = tx.rows_expired(UPKEEP_BATCH)
        for row in rows:
            decisions.expire(row, tx.now)
        self._save(tx, rows)
        tx.drop_edges_of([row.seq for row in rows if row.unmet])
        settle(tx, rows)
        return len(rows)

    def _reclaim(self, tx: Transaction, gone: list[str]) -> int:
        liveness = micros_of(self._options.liveness)
        owners = tx.owners()
        gone[:] = gone_owners(owners, tx.now, liveness)
        spared = [owner.id for owner in owners if is_this_process(owner)]
        tx.expect(Reach.ALL)
        return self._lose(tx, tx.rows_lost(liveness, gone, spared, UPKEEP_BATCH), Verb.LOSE)

    def _still_gone(self, tx: Transaction, gone: Collection[str]) -> list[str]:
        """Return those that have not beaten since: one that was frozen may have come back."""
        return [
            owner
            for owner in gone_owners(tx.owners(), tx.now, micros_of(self._options.liveness))
            if owner in gone
        ]

    def _time_out(self, tx: Transaction) -> int:
        tx.expect(Reach.ALL)
        rows = tx.rows_overdue(EXECUTION_GRACE, UPKEEP_BATCH)
        for row in rows:
            decisions.time_out(row, tx.now)
        self._save(tx, rows)
        settle(tx, rows)
        return len(rows)

    def _retire(self, tx: Transaction) -> int:
        retention = self._options.retention or Retention(completed=None, other=None)
        rows: list[Row] = []
        if retention.completed is not None:
            before = tx.now - micros_of(retention.completed)
            rows += tx.rows_ended([JobStatus.COMPLETED], before, UPKEEP_BATCH)
        if retention.other is not None and len(rows) < UPKEEP_BATCH:
            before = tx.now - micros_of(retention.other)
            rows += tx.rows_ended(FINAL - {JobStatus.COMPLETED}, before, UPKEEP_BATCH - len(rows))
        return self._remove(tx, rows, Verb.CLEANUP)

    def cleanup_expired_jobs(self, ttl: timedelta) -> int:
        age = micros_of(duration(ttl, "ttl", positive=True))

        def step(tx: Transaction) -> int:
            rows = tx.rows_ended([JobStatus.COMPLETED], tx.now - age, UPKEEP_BATCH)
            return self._remove(tx, rows, Verb.CLEANUP)

        return self._in_batches(step)

    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)

        def work(tx: Transaction) -> int:
            rows, _ = self._selected(tx, wanted_tags, wanted_ids)
            for row in rows:
                if not row.closed:
                    raise InvalidTransitionError(
                        f"job {shown(row.id)} is {row.status}: only jobs in a final status can be deleted",
                        job_id=row.id,
                        status=row.status,
                        verb=Verb.DELETE,
                    )
            return self._remove(tx, rows, Verb.DELETE)

        return self._write(work)

    def _remove(self, tx: Transaction, rows: list[Row], verb: Verb) -> int:
        for row in rows:
            row.note(verb, tx.now)
        self._save(tx, rows)
        tx.delete(rows)
        return len(rows)

    def set_blocked(self, blocked: bool) -> None:
        arguments.boolean("blocked", blocked)
        self._write(lambda tx: tx.set_blocked(blocked))
        if blocked:
            self._store.await_submissions()

    def is_blocked(self) -> bool:
        checkpoint()
        return self._store.is_blocked()

    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        checkpoint()
        handle = object()
        if self._pid != os.getpid():  # a child's listeners are its own
            self._pid, self._listeners, self._listener_lock = os.getpid(), {}, threading.Lock()
        with self._listener_lock:
            self._listeners[handle] = listener
            self._store.on_commit = self._tell_listeners

        def stop() -> None:
            with self._listener_lock:
                self._listeners.pop(handle, None)
                if not self._listeners:
                    self._store.on_commit = None

        return stop

    def serve(self, taker: Taker) -> Callable[[], None]:
        def claim(tx: Transaction, changes: Sequence[Change]) -> HandedOut | None:
            wishes = taker.wishes(changes)
            if not wishes:
                return None
            try:
                jobs = [self._claim(tx, _claim_of(each)) for each in wishes]
            except BaseException:
                taker.receive([])
                raise

            def tell(is_committed: bool | None) -> None:
                if is_committed is None:
                    taker.doubt()
                else:
                    taker.receive(jobs if is_committed else [])

            return tell

        self._store.before_commit = claim
        self._taker = taker

        def stop() -> None:
            if self._store.before_commit is claim:
                self._store.before_commit = self._taker = None

        return stop

    def examine(self) -> list[Finding]:
        checkpoint()
        return self._store.examine()

    def now(self) -> datetime:
        return moment_at(self._store.now())

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(callback)

    def has_foreign_changes(self) -> bool:
        return self._store.has_foreign_changes()

    def released(self, jobs: Mapping[str, int]) -> dict[str, str]:
        states = self._store.states(list(jobs)) if jobs else {}
        gone: dict[str, str] = {}
        for job_id, attempt in jobs.items():
            status, current, verb = states.get(job_id, ("", -1, ""))
            if current != attempt or status not in IN_FLIGHT:
                gone[job_id] = verb if current == attempt else ""
        return gone

    def statuses(self, job_ids: Sequence[str]) -> dict[str, tuple[JobStatus, int]]:
        wanted = arguments.job_ids(job_ids)
        checkpoint()
        states = self._store.states(list(wanted)) if wanted else {}
        return {job_id: (JobStatus(status), attempt) for job_id, (status, attempt, _) in states.items()}

    def next_due(self) -> float | None:
        due_at = self._store.next_due_at()
        return None if due_at is None else max(0.0, (due_at - self._store.now()) / 1_000_000)

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        return self._store.ready_filters()

    def has_work(self, types: Sequence[str], tags: Sequence[str] = ()) -> bool:
        wanted = arguments.tags(tags)
        for each in types:
            arguments.optional_text("types", each, arguments.MAX_TYPE)
        checkpoint()
        return bool(types) and self._store.has_work(tuple(dict.fromkeys(types)), wanted)

    def take_upkeep(self, interval: timedelta) -> bool:
        return self._store.take_upkeep(micros_of(interval))

    def close(self) -> None:
        self._store.close()

    # -- shared -------------------------------------------------------------------------------------------------

    def _write(self, work: Callable[[Transaction], T]) -> T:
        if self._iterating and self._is_iterated():
            raise _written_while_iterated()
        return self._store.write(work)

    def _write_alone(self, work: Callable[[Transaction], T]) -> T:
        return self._store.write(work, alone=True)

    def _is_iterated(self) -> bool:
        """Whether this thread is inside an iterator that `enqueue_jobs` reads."""
        return threading.get_ident() in self._iterating

    def _save(self, tx: Transaction, rows: Sequence[Row]) -> None:
        if rows:
            tx.save(rows)
            tell(tx, rows)

    def _row(self, tx: Transaction, job_id: str) -> Row:
        row = tx.rows([job_id]).get(job_id)
        if row is None:
            raise JobNotFoundError(job_id)
        return row

    def _selected(
        self, tx: Transaction, tags: tuple[str, ...], ids: tuple[str, ...]
    ) -> tuple[list[Row], list[str]]:
        """Return the jobs that have all tags or are listed, in insertion order, and the ids nobody has."""
        found: dict[int, Row] = {}
        missing: list[str] = []
        if tags:
            tx.expect(ids=ids)
            found |= {row.seq: row for row in tx.rows_tagged(tags)}
        if ids:
            listed = tx.rows(ids)
            found |= {row.seq: row for row in listed.values()}
            missing = [job_id for job_id in ids if job_id not in listed]
        return [found[seq] for seq in sorted(found)], missing

    def _result(self, result: bytes | None) -> bytes | None:
        return None if result is None else arguments.blob("result", result, self._options.max_payload)

    def _tell_listeners(self, changes: Sequence[Change]) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(changes)
            except Exception:  # a listener's fault must not turn a commit into a failure
                logger.exception("a listener failed")


class _ClockWatch:
    """Notices when wall time jumps, so that nobody loses jobs to a clock that was set.

    If wall and monotonic time part by more than two seconds between two passes, reclaiming waits one beat.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._last: tuple[float, float] | None = None
        self._distrust_until = 0.0

    def is_trusted(self) -> bool:
        if not self._enabled:
            return True
        wall, steady = time.time(), time.monotonic()
        last, self._last = self._last, (wall, steady)
        if last is not None and abs((wall - last[0]) - (steady - last[1])) > CLOCK_JUMP:
            logger.warning("the wall clock jumped; jobs are not reclaimed for %g s", ONE_BEAT)
            self._distrust_until = steady + ONE_BEAT
        return steady >= self._distrust_until


def _checked_key(key: Key | str | None) -> str | None:
    wanted = arguments.key_filter(key)
    return None if wanted is None else encode_strings(wanted)


def _checked_claim(
    assignee_id: str,
    tags: Sequence[str],
    limit: int,
    types: Sequence[str] | None,
    key: Key | str | None,
    job_ids: Sequence[str] | None,
    owner: str | None,
) -> Claim:
    return Claim(
        assignee_id=arguments.assignee(assignee_id),
        tags=arguments.tags(tags),
        limit=arguments.limit(limit),
        types=arguments.types(types),
        key=_checked_key(key),
        job_ids=None if job_ids is None else arguments.job_ids(job_ids),
        owner=arguments.optional_text("owner", owner, arguments.MAX_ID),
    )


def _claim_of(request: ClaimRequest) -> Claim:
    return _checked_claim(
        request.assignee_id,
        request.tags,
        request.limit,
        request.types,
        request.key,
        request.job_ids,
        request.owner,
    )


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


def _written_while_iterated() -> InvalidArgumentError:
    # One answer for all stores: where one writes at a time this would wait for itself for ever, elsewhere the inner
    # write would stay when the batch is undone.
    return InvalidArgumentError(
        "jobs must not write to the store that they are written to while they are iterated; make a list of them first",
        field="jobs",
    )


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
        return _stale(verb, row, attempt)
    return None if allowed else refusal(verb, job_id, JobStatus(row.status))


def _stale(verb: str, row: Row, attempt: int) -> StaleAttemptError:
    return StaleAttemptError(
        job_id=row.id, status=row.status, verb=str(verb), attempt=attempt, current_attempt=row.attempt
    )


def _not_dead(row: Row) -> InvalidTransitionError:
    return InvalidTransitionError(
        f"job {shown(row.id)} is {row.status}: only failed and dead_letter jobs can be redriven",
        job_id=row.id,
        status=row.status,
        verb="redrive",
    )
