"""Every verb of the contract, once, over the primitives of a store.

A verb checks its arguments, then gives the store a piece of work: find the rows, decide, save, settle what follows. The
work of each subject is a module of functions over a `Transaction`: `submission`, `claiming`, `leases`, `reports`,
`running`, `changing`, `upkeep`. What is decided per row is in `decisions`, what follows from it in `settlement`. The
roles (`journal`, `owners`, `outbox`, `runtime`, `reading`) are classes with the names of the contract's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.backends.contract.backend import Backend, read_stored
from penstock.backends.contract.values import UNSET, ClaimRequest, Failure, UnsetType
from penstock.backends.engine import (
    arguments,
    changing,
    claiming,
    decisions,
    leases,
    reports,
    running,
)
from penstock.backends.engine.access import StoreAccess
from penstock.backends.engine.journal import EngineJournal
from penstock.backends.engine.outbox import EngineOutbox
from penstock.backends.engine.owners import EngineOwners
from penstock.backends.engine.reading import EngineReading
from penstock.backends.engine.reports import Decision, checked_failure, checked_messages, freed_or_raise
from penstock.backends.engine.rows import damage_named, job_of, micros_of, moment_at, plain_as_stored
from penstock.backends.engine.runtime import EngineRuntime
from penstock.backends.engine.spawning import adopted, spawn
from penstock.backends.engine.store import Store, Transaction, ValidatesFirst
from penstock.backends.engine.submission import Submission
from penstock.backends.engine.upkeep import Upkeep
from penstock.backends.options import StoreOptions
from penstock.durations import Duration, duration
from penstock.errors import JobNotFoundError, invalid
from penstock.job import Job, JobStats, JobStatus, JournalEntry, Key, Maintenance, Priority
from penstock.lifecycle import Verb
from penstock.policy import FailureCategory
from penstock.scope import checkpoint

__all__ = ["EngineBackend"]


class EngineBackend(Backend):
    """The contract over a `Store`."""

    def __init__(
        self, store: Store, options: StoreOptions, *, has_own_clock: bool, is_new: bool = False
    ) -> None:
        access = StoreAccess(store, options, has_own_clock=has_own_clock)
        self._store = store
        self._access = access
        self._write = access.write
        self._upkeep = Upkeep(access)
        self.options = options
        self.journal = EngineJournal(access)
        self.owners = EngineOwners(access)
        self.outbox = EngineOutbox(access)
        self.runtime = EngineRuntime(access, is_new=is_new)
        self.reading = EngineReading(access)

    # -- submission ---------------------------------------------------------------------------------------------

    def enqueue_job(self, job: Job) -> str:
        options = self.options
        if arguments.checked_plain(job, options.max_payload) and options.max_pending is None:
            if self._access.iterating:
                self._access.refuse_iterated()
            self._store.enqueue_plain(job)
            return job.id
        return self._write(lambda tx: Submission(tx, options, check=False).run([job])[0])

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        arguments.jobs(jobs)
        options = self.options
        if not isinstance(jobs, list | tuple):
            return self._access.write_iterated(lambda tx: Submission(tx, options).run_batch(jobs))
        all_plain = arguments.check_batch(jobs, options.max_payload)
        if not jobs:
            checkpoint()
        return self._write(
            lambda tx: Submission(tx, options, check=False, all_plain=all_plain).run_batch(jobs)
        )

    def submit_jobs(self, jobs: Sequence[Job]) -> list[Job]:
        options = self.options
        if not isinstance(jobs, list | tuple):
            raise invalid("jobs", "a list or tuple of Job", jobs)
        all_plain = arguments.check_batch(jobs, options.max_payload)
        if all_plain and len(jobs) == 1 and options.max_pending is None:
            if self._access.iterating:
                self._access.refuse_iterated()
            moment = self._store.enqueue_plain(jobs[0])
            if moment is not None:
                return [plain_as_stored(jobs[0], moment)]
            return read_stored(self, jobs, [jobs[0].id])
        if not jobs:
            checkpoint()
        ids, stored = self._write(
            lambda tx: Submission(tx, options, check=False, all_plain=all_plain).run_returning(jobs)
        )
        repeated = {job_id: job for job, job_id in zip(jobs, ids, strict=True) if job_id not in stored}
        if repeated:
            stored |= zip(repeated, read_stored(self, [*repeated.values()], [*repeated]), strict=True)
        return [stored[job_id] for job_id in ids]

    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        arguments.jobs(jobs)
        publication = arguments.publication(writer, batch)

        def work(tx: Transaction) -> int:
            if publication is not None and not tx.note_publication(*publication):
                return 0
            submission = Submission(tx, self.options, skips_stored=True)
            submission.run_batch(jobs)
            return submission.stored

        return self._write(work) if isinstance(jobs, list | tuple) else self._access.write_iterated(work)

    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        arguments.job_id(parent_id)
        arguments.attempt(attempt)
        arguments.jobs(jobs)
        children = adopted(parent_id, [arguments.check_job(job, self.options.max_payload) for job in jobs])
        return self._write(lambda tx: spawn(tx, self.options, parent_id, children, attempt))

    def set_blocked(self, blocked: bool) -> None:
        arguments.boolean("blocked", blocked)
        self._write(lambda tx: tx.set_blocked(blocked))
        if blocked:
            self._store.await_submissions()

    def is_blocked(self) -> bool:
        checkpoint()
        return self._store.is_blocked()

    # -- claims and leases --------------------------------------------------------------------------------------

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
        claim = claiming.checked_claim(assignee_id, tags, limit, types, key, job_ids, owner)
        return self._write(ValidatesFirst(claiming.claim, claim))

    def dequeue_jobs_for(self, requests: Sequence[ClaimRequest]) -> list[list[Job]]:
        return self._write(ValidatesFirst(claiming.claim_all, claiming.checked_claims(requests)))

    def restart_job(self, job_id: str, assignee_id: str, *, owner: str | None = None) -> Job:
        arguments.job_id(job_id)
        arguments.assignee(assignee_id)
        arguments.optional_text("owner", owner, arguments.MAX_ID)
        return self._write(lambda tx: claiming.restart(tx, job_id, assignee_id, owner))

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        arguments.assignee(assignee_id)
        attempts = None if jobs is None else dict(arguments.attempts(jobs))
        return self._write(lambda tx: leases.renew(tx, assignee_id, attempts))

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        arguments.assignee(assignee_id)
        self._write(lambda tx: leases.mark_unresponsive(tx, assignee_id))

    def reset_running_jobs(self) -> None:
        self._write(lambda tx: leases.reclaim_in_flight(tx, None, Verb.RESET))

    # -- reports ------------------------------------------------------------------------------------------------

    def complete_job(
        self, job_id: str, result: bytes | None = None, *, attempt: int | None = None
    ) -> dict[str, int]:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        results = {job_id: arguments.result(result, self.options.max_payload)}
        fences = {} if attempt is None else {job_id: attempt}
        return self._write(ValidatesFirst(reports.complete_one, results, fences))

    def complete_jobs(
        self, results: Mapping[str, bytes | None], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        arguments.mapping("results", results)
        most = self.options.max_payload
        checked = {job_id: arguments.result(result, most) for job_id, result in results.items()}
        fences = arguments.attempts(attempts)
        return freed_or_raise(self._write(ValidatesFirst(reports.complete, checked, fences)), len(results))

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
        failure = checked_failure(
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
        retry_after: Duration | None = None,
    ) -> dict[str, int]:
        arguments.mapping("failures", failures)
        checked = {
            job_id: checked_failure(
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
        return self._report(Verb.STOP, checked_messages(messages), attempts, decisions.stop)

    def stop_job_with_retry(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        text = arguments.message("error_message", error_message)
        return self._report_one(Verb.STOP_WITH_RETRY, job_id, text, attempt, decisions.stop_with_retry)

    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        checked = checked_messages(messages)
        return self._report(Verb.STOP_WITH_RETRY, checked, attempts, decisions.stop_with_retry)

    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> dict[str, int]:
        text, decide = arguments.message("error_message", error_message), decisions.mark_unknown_stopped
        return self._report_one(Verb.MARK_UNKNOWN_STOPPED, job_id, text, attempt, decide)

    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        checked, decide = checked_messages(messages), decisions.mark_unknown_stopped
        return self._report(Verb.MARK_UNKNOWN_STOPPED, checked, attempts, decide)

    def release_jobs(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        return self._report(Verb.RELEASE, checked_messages(messages), attempts, decisions.release)

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
        data = arguments.result(result, self.options.max_payload)
        arguments.attempt(attempt)
        return self._write(lambda tx: reports.update_status(tx, job_id, target, data, text, attempt))

    def _report_one(
        self, verb: Verb, job_id: str, value: object, attempt: int | None, decide: Decision
    ) -> dict[str, int]:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        return self._write(lambda tx: reports.report_one(tx, verb, job_id, value, attempt, decide))

    def _report(
        self, verb: Verb, values: Mapping[str, Any], attempts: Mapping[str, int] | None, decide: Decision
    ) -> dict[str, int]:
        fences = arguments.attempts(attempts)
        outcome = self._write(lambda tx: reports.report(tx, verb, values, fences, decide))
        return freed_or_raise(outcome, len(values))

    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        arguments.percent(percent)
        if description is not None:
            description = arguments.message("description", description)[: arguments.MAX_DESCRIPTION]
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        self._write(lambda tx: running.save_progress(tx, job_id, attempt, percent, description))

    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        checked = arguments.blob("checkpoint", data, self.options.max_payload)
        self._write(lambda tx: running.save_checkpoint(tx, job_id, attempt, checked))

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:
        arguments.job_id(job_id)
        arguments.attempt(attempt)
        data = arguments.output(output, self.options.max_payload)
        self._write(lambda tx: running.save_output(tx, job_id, attempt, data))

    # -- changes from outside -----------------------------------------------------------------------------------

    def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, waiting_only: bool = False
    ) -> tuple[list[str], list[str]]:
        arguments.boolean("waiting_only", waiting_only)
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)
        return self._write(lambda tx: changing.cancel(tx, wanted_tags, wanted_ids, waiting_only))

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
        wanted = changing.checked_update(priority, tags, correlation_id, callback_url)
        self._write(lambda tx: changing.update(tx, job_id, wanted))

    def redrive_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> list[str]:
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)
        return self._write(lambda tx: changing.redrive(tx, self.options, wanted_tags, wanted_ids))

    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        wanted_tags, wanted_ids = arguments.selection(tags, job_ids)
        return self._write(lambda tx: changing.delete(tx, wanted_tags, wanted_ids))

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

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        if type(after) is not int or after < 0:
            raise invalid("after", "a whole number of at least 0", after)
        arguments.limit(limit)
        checkpoint()
        return self._store.read_journal(after, limit)

    def now(self) -> datetime:
        return moment_at(self._store.now())

    # -- upkeep -------------------------------------------------------------------------------------------------

    def maintain(self) -> Maintenance:
        return self._upkeep.maintain()

    def cleanup_expired_jobs(self, ttl: Duration) -> int:
        return self._upkeep.clean_up(micros_of(duration(ttl, "ttl", positive=True)))

    def close(self) -> None:
        self._store.close()
