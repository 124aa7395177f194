"""Records of process jobs as jobs of a store: the same life cycle, journal and Spark tables as everything else."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from penstock.backends import Backend
from penstock.errors import (
    InvalidTransitionError,
    JobNotFoundError,
    PayloadTooLargeError,
    PenstockError,
    QueueClosedError,
    invalid,
    shown,
)
from penstock.job import Job, distinct
from penstock.job import JobStatus as StoredStatus
from penstock.liveness import Heartbeat, Owner, upkeep_seconds
from penstock.payloads.json import decode_json, encode_json
from penstock.policy import RetryPolicy
from penstock.processes.registry import Registry
from penstock.processes.types import (
    JobCommand,
    JobId,
    JobRecord,
    JobStatus,
    check_is_record,
    check_progress_kept,
    check_record,
    lookup_id,
)

__all__ = ["PROCESS_TYPE", "BackendRegistry"]

logger = logging.getLogger("penstock.processes")

PROCESS_TYPE: Final = "process"
MAX_DESCRIPTION: Final = 2000
_PAGE: Final = 1000
_NULL: Final = b"null"
#: The error code of a job whose last allowed attempt was lost.
LOST_CODE: Final = "lost"


class BackendRegistry(Registry):
    """Keeps records in a store. Jobs are `held` there, so no worker claims them, and have one attempt.

    While this object has running jobs it sends heartbeats for their process, so that they are not reclaimed; if that
    process dies, they end in ERROR. A process that was frozen for longer than the store's liveness has lost the jobs that
    ran then, and registers as another owner for those it starts later.

    Args:
        backend: the store; it stays open.
        type: the type of the jobs in the store.
    """

    def __init__(self, backend: Backend, *, type: str = PROCESS_TYPE) -> None:
        if not isinstance(backend, Backend):
            raise invalid("backend", "a Backend", backend)
        self.backend = backend
        self._type = type
        self._heartbeat = Heartbeat(
            "processes-beat", backend, self._beat, label="the heartbeat of this process", log=logger
        )
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._assignee = f"processes-{socket.gethostname()}-{self._pid}"
        self._lock = threading.RLock()
        self._attempts: dict[JobId, int] = {}
        self._owner: Owner | None = None

    def _check_fork(self) -> None:
        """Reset this object in the child of a fork: jobs, owner and lock are the parent's."""
        if self._pid != os.getpid():
            self._reset()

    def __repr__(self) -> str:
        return f"<BackendRegistry {self.backend!r}>"

    # -- the contract -------------------------------------------------------------------------------------------

    def append(self, record: JobRecord) -> None:
        """Move the stored job to the record's status, through the steps between if some were left out.

        The store keeps its own time of the change, cuts a description at 2,000 characters, and a completed job's
        progress is 100, any other's at most 99.

        Raises:
            InvalidArgumentError: a field could not be read back as it is; nothing is written.
            InvalidJobStateError: there is no move from the job's status to the record's, the job has ended with
                another description or result, or another process runs it now.
            JobNotFoundError: it ran here, and was deleted from the store meanwhile.
        """
        self._check_fork()
        record = check_record(record)
        size = len(encode_json(record.result, "result"))
        if size > self.backend.options.max_payload:  # checked first, so that nothing is written
            raise PayloadTooLargeError("result", size, self.backend.options.max_payload)
        with self._lock:
            job = self._find(record.job_id)
            if record.status is JobStatus.COMPLETED and job is not None and self._is_lost_here(job):
                self._end(job, record)  # it ended before it was killed: the result counts
                return
            self._check_not_reclaimed(record, job)
            if job is None:
                self.backend.enqueue_job(self._new_job(record))
                job = self.backend.get_job(record.job_id)
            self._move(job, record)

    def _new_job(self, record: JobRecord) -> Job:
        job = Job(
            id=record.job_id,
            type=self._type,
            held=True,
            retry=RetryPolicy(max_attempts=1),
            created_at=record.created_at,
        )
        if record.status is not JobStatus.PENDING:
            return job  # the rest is stored by the moves to that status
        return msgspec.structs.replace(
            job,
            progress=record.progress,
            description=_described(record) or None,
            checkpoint=None if record.result is None else encode_json(record.result, "result"),
        )

    def latest(self, job_id: JobId) -> JobRecord | None:
        normal = lookup_id(job_id)
        job = self._find(normal)
        if job is None and normal != job_id:
            job = self._find(job_id)  # a job of another client may have an id in upper case
        return None if job is None else _record_of(job)

    def all_latest(self) -> list[JobRecord]:
        found: dict[JobId, JobRecord] = {}
        after: str | None = None
        while True:
            try:
                page = self.backend.list_jobs(type=self._type, after=after, limit=_PAGE)
            except JobNotFoundError:
                after = None  # deleted since the last page: from the beginning
                continue
            found |= {job.id: _record_of(job) for job in page}
            if len(page) < _PAGE:
                return list(found.values())
            after = page[-1].id

    def delete(self, record: JobRecord) -> None:
        """Delete the job from the store; its history stays in the journal."""
        self._check_fork()
        job_id = check_is_record(record).job_id
        with self._lock:
            job = self._find(job_id)
            if job is None:
                return
            if job.status.holds_slot:
                self.backend.stop_job(job.id, "Deleted", attempt=self._attempts.get(job.id))
            elif job.status.is_eligible:
                self.backend.cancel_jobs(job_ids=[job.id])
            self._release(job.id)
            self.backend.delete_jobs(job_ids=[job.id])

    def commands(self, job_ids: Collection[JobId]) -> dict[JobId, JobCommand]:
        """Return commands for the jobs that other clients of the store cancelled, ended, deleted or reclaimed."""
        self._check_fork()
        wanted: dict[JobId, JobCommand] = {}
        job_ids = distinct("job_ids", job_ids)
        with self._lock:
            found = self.backend.runtime.statuses(tuple(job_ids)) if job_ids else {}
            for job_id in job_ids:
                attempt = self._attempts.get(job_id)
                status, stored = found.get(job_id, (None, -1))
                if attempt is None:
                    continue
                if status is None or stored != attempt or not status.holds_slot:
                    wanted[job_id] = JobCommand.DELETE
                elif status is StoredStatus.CANCELLING:
                    wanted[job_id] = JobCommand.STOP
        return wanted

    # -- moving a job -------------------------------------------------------------------------------------------

    def _find(self, job_id: JobId) -> Job | None:
        return self.backend.get_jobs([job_id]).get(job_id)

    def _is_lost_here(self, job: Job) -> bool:
        """Whether the store reclaimed the only attempt of a job while it ran here."""
        return job.status is StoredStatus.DEAD_LETTER and (
            self._attempts.get(job.id) == job.attempt and job.error_code == LOST_CODE
        )

    def _check_not_reclaimed(self, record: JobRecord, job: Job | None) -> None:
        """Release a job that ran here and that the store has reclaimed; refuse the record if it runs elsewhere."""
        attempt = self._attempts.get(record.job_id)
        if attempt is None or (job is not None and job.attempt == attempt and job.status.holds_slot):
            return
        self._release(record.job_id)
        if job is None:
            raise JobNotFoundError(record.job_id)
        if job.status.holds_slot:
            raise _refusal(job, record)

    def _move(self, job: Job, record: JobRecord) -> None:
        here, wanted = job.process_status, record.status
        if here is wanted is not JobStatus.RUNNING:
            if _differs(record, _record_of(job)):
                raise _refusal(job, record)
            return
        if wanted is JobStatus.PENDING:
            raise _refusal(job, record)
        if here in (
            JobStatus.PENDING,
            JobStatus.RUNNING,
        ):  # from the others there is no move, or it is a new run
            check_progress_kept(_record_of(job), record)
        if here is JobStatus.PENDING:
            job = self._claim(job, record)
        elif here is JobStatus.INTERRUPTED and wanted is JobStatus.RUNNING:
            job = self._restart(job)
        elif here is not JobStatus.RUNNING:
            raise _refusal(job, record)
        self._save(job, record)
        if wanted is not JobStatus.RUNNING:
            self._end(job, record)

    def _claim(self, job: Job, record: JobRecord) -> Job:
        claimed = self.backend.dequeue_jobs(self._assignee, job_ids=[job.id], owner=self._owner_id())
        if not claimed:
            raise _refusal(self.backend.get_job(job.id), record)
        self._hold(claimed[0])
        return claimed[0]

    def _restart(self, job: Job) -> Job:
        restarted = self.backend.restart_job(job.id, self._assignee, owner=self._owner_id())
        self._hold(restarted)
        return restarted

    def _save(self, job: Job, record: JobRecord) -> None:
        """Store progress, description, and the result unless the job completes with it."""
        attempt = self._attempts.get(job.id)
        described = _described(record)
        if record.progress != job.progress or described != (job.description or ""):
            self.backend.save_progress(job.id, record.progress, described, attempt=attempt)
        data = encode_json(record.result, "result")
        if record.status is not JobStatus.COMPLETED and data != (job.checkpoint or _NULL):
            self.backend.save_checkpoint(job.id, data, attempt=attempt)

    def _end(self, job: Job, record: JobRecord) -> None:
        attempt = self._attempts.get(job.id)
        if record.status is JobStatus.COMPLETED:
            # A completed job without a result must not show what it had saved before.
            is_none = record.result is None and job.checkpoint is None
            data = None if is_none else encode_json(record.result, "result")
            self.backend.complete_job(job.id, data, attempt=attempt)
        elif record.status is JobStatus.ERROR:
            self._fail(job, record.description or "the job failed", attempt)
        else:
            self.backend.stop_job(job.id, record.description or "", attempt=attempt)
        self._release(job.id)

    def _fail(self, job: Job, message: str, attempt: int | None) -> None:
        try:
            self.backend.fail_job(job.id, message, attempt=attempt)
        except InvalidTransitionError as error:
            if error.status != StoredStatus.CANCELLING:
                raise
            # It was cancelled while it failed: it has ended, as requested.
            self.backend.stop_job(job.id, message, attempt=attempt)

    # -- holding ------------------------------------------------------------------------------------------------

    def _owner_id(self) -> str:
        """Return the owner id to claim under, after a heartbeat if the last one is old; it beats from now on."""
        if self._owner is None:
            self._owner = Owner(self.backend)
        owner_id = self._owner.live_id()
        self._heartbeat.start()
        return owner_id

    def _hold(self, job: Job) -> None:
        self._attempts[job.id] = job.attempt
        self._owner_id()

    def _release(self, job_id: JobId) -> None:
        self._attempts.pop(job_id, None)
        if not self._attempts:
            self._heartbeat.beat_now()

    def _beat(self) -> None:
        """Send a heartbeat and help with the upkeep; without jobs, remove the owner instead."""
        with self._lock:
            if not self._attempts:
                self._heartbeat.retire()
                self._close_owner()
                return
            try:
                if self._owner is not None:
                    self._owner.beat()
                if self.backend.runtime.take_upkeep(timedelta(seconds=upkeep_seconds(self.backend))):
                    self.backend.maintain()
            except QueueClosedError:
                self._owner = None
                self._heartbeat.retire()  # under the lock, so that a later claim starts it again

    def _close_owner(self) -> None:
        """Remove the owner of a process that has no jobs any more."""
        owner, self._owner = self._owner, None
        if owner is not None:
            with contextlib.suppress(PenstockError):
                owner.close()


def _record_of(job: Job) -> JobRecord:
    status = job.process_status
    created = job.created_at or datetime.now(UTC)
    error = job.error_message if status in {JobStatus.ERROR, JobStatus.INTERRUPTED} else ""
    return JobRecord(
        job_id=job.id,
        status=status,
        progress=100 if status is JobStatus.COMPLETED else min(job.progress, 99),
        description=error or job.description or None,
        result=_value(job.result if job.result is not None else job.checkpoint),
        created_at=created,
        updated_at=job.updated_at or created,
    )


def _described(record: JobRecord) -> str:
    return (record.description or "")[:MAX_DESCRIPTION]


def _differs(record: JobRecord, known: JobRecord) -> bool:
    """Whether a record differs from the stored one of the same status; None matches anything."""
    if record.status is JobStatus.PENDING and min(record.progress, 99) != known.progress:
        return True
    if record.description and _described(record) != _described(known):
        return True
    return record.result is not None and encode_json(record.result) != encode_json(known.result)


def _value(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return decode_json(data)
    except msgspec.DecodeError:  # of a job of another client, whose results may be any bytes
        return data.decode("utf-8", "backslashreplace")


def _refusal(job: Job, record: JobRecord) -> InvalidTransitionError:
    return InvalidTransitionError(
        f"job {shown(job.id)} cannot become {record.status.name}: it is {job.process_status.name} ({job.status})",
        job_id=job.id,
        status=job.process_status.name,
        verb=record.status.name.lower(),
    )
