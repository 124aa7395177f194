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

from penstock._json import decode_json, encode_json
from penstock.backends.base import Backend
from penstock.errors import (
    InvalidArgumentError,
    InvalidTransitionError,
    JobNotFoundError,
    PenstockError,
    QueueClosedError,
    shown,
)
from penstock.job import Job
from penstock.job import JobStatus as StoredStatus
from penstock.policy import RetryPolicy
from penstock.processes.registry import Registry
from penstock.processes.types import JobCommand, JobId, JobRecord, JobStatus

__all__ = ["PROCESS_TYPE", "BackendRegistry"]

logger = logging.getLogger("penstock.processes")

PROCESS_TYPE: Final = "process"
UPKEEP: Final = timedelta(seconds=5)
_PAGE: Final = 1000


class BackendRegistry(Registry):
    """Keeps records in a store. Jobs are `held` there, so no worker takes them, and have one attempt.

    While this object has running jobs it says for them that their process lives, so that nobody takes them for lost;
    and if that process dies, they end in ERROR.

    Args:
        backend: the store; it stays open.
        type: the type of the jobs in the store.
    """

    def __init__(self, backend: Backend, *, type: str = PROCESS_TYPE) -> None:
        if not isinstance(backend, Backend):
            raise InvalidArgumentError(
                f"backend must be a Backend, got {shown(backend)}", field="backend", value=backend
            )
        self.backend = backend
        self._type = type
        self._assignee = f"processes-{socket.gethostname()}-{os.getpid()}"
        self._lock = threading.RLock()
        self._attempts: dict[JobId, int] = {}
        self._owner: str | None = None
        self._beat: threading.Thread | None = None
        self._wake = threading.Condition(self._lock)

    def __repr__(self) -> str:
        return f"<BackendRegistry {self.backend!r}>"

    # -- the contract -------------------------------------------------------------------------------------------

    def append(self, record: JobRecord) -> None:
        """Lead the stored job to the record's status, through the steps between if some were left out.

        Raises:
            InvalidJobStateError: there is no way there from where the job is, or somebody else has it now.
            JobNotFoundError: it ran here, and was deleted from the store meanwhile.
        """
        if not isinstance(record, JobRecord):
            raise InvalidArgumentError(
                f"record must be a JobRecord, got {shown(record)}", field="record", value=record
            )
        encode_json(record.result, "result")
        with self._lock:
            job = self._find(record.job_id)
            self._notice_loss(record, job)
            if job is None:
                self.backend.enqueue_job(
                    Job(
                        id=record.job_id, type=self._type, held=True, retry=RetryPolicy(max_attempts=1),
                        created_at=record.created_at,
                    )
                )  # fmt: skip
                job = self.backend.get_job(record.job_id)
            self._lead(job, record)

    def latest(self, job_id: JobId) -> JobRecord | None:
        job = self._find(job_id)
        return None if job is None else _record_of(job)

    def all_latest(self) -> list[JobRecord]:
        found: dict[JobId, JobRecord] = {}
        after: str | None = None
        while True:
            try:
                page = self.backend.list_jobs(type=self._type, after=after, limit=_PAGE)
            except JobNotFoundError:
                after = None  # deleted since we saw it: from the beginning
                continue
            found |= {job.id: _record_of(job) for job in page}
            if len(page) < _PAGE:
                return list(found.values())
            after = page[-1].id

    def delete(self, record: JobRecord) -> None:
        """Delete the job from the store; its history stays in the journal."""
        with self._lock:
            job = self._find(record.job_id)
            if job is None:
                return
            if job.status.holds_slot:
                self.backend.stop_job(job.id, "Deleted", attempt=self._attempts.get(job.id))
            elif job.status.is_eligible:
                self.backend.cancel_jobs(job_ids=[job.id])
            self._let_go(job.id)
            self.backend.delete_jobs(job_ids=[job.id])

    def commands(self, job_ids: Collection[JobId]) -> dict[JobId, JobCommand]:
        """Find out what was done to jobs through other faces of the store: cancelled, ended, deleted, given up for lost."""
        wanted: dict[JobId, JobCommand] = {}
        with self._lock:
            found = self.backend.statuses(tuple(job_ids)) if job_ids else {}
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

    # -- leading a job ------------------------------------------------------------------------------------------

    def _find(self, job_id: JobId) -> Job | None:
        return self.backend.get_jobs([job_id]).get(job_id)

    def _notice_loss(self, record: JobRecord, job: Job | None) -> None:
        """Let go of a job that ran here and that the store has taken away; what is said of it now is not our business."""
        attempt = self._attempts.get(record.job_id)
        if attempt is None or (job is not None and job.attempt == attempt and job.status.holds_slot):
            return
        self._let_go(record.job_id)
        if job is None:
            raise JobNotFoundError(record.job_id)
        if job.status.holds_slot:
            raise _no_way(job, record)

    def _lead(self, job: Job, record: JobRecord) -> None:
        here, wanted = job.process_status, record.status
        if here is wanted is not JobStatus.RUNNING:
            return  # an ended job keeps what it ended with
        if here is JobStatus.PENDING:
            job = self._claim(job, record)
        elif here is JobStatus.INTERRUPTED and wanted is JobStatus.RUNNING:
            job = self._restart(job)
        elif here is not JobStatus.RUNNING:
            raise _no_way(job, record)
        self._say(job, record)
        if wanted is JobStatus.PENDING:
            raise _no_way(job, record)
        if wanted is not JobStatus.RUNNING:
            self._end(job, record)

    def _claim(self, job: Job, record: JobRecord) -> Job:
        claimed = self.backend.dequeue_jobs(self._assignee, job_ids=[job.id], owner=self._living())
        if not claimed:
            raise _no_way(self.backend.get_job(job.id), record)
        self._hold(claimed[0])
        return claimed[0]

    def _restart(self, job: Job) -> Job:
        restarted = self.backend.restart_job(job.id, self._assignee, owner=self._living())
        self._hold(restarted)
        return restarted

    def _say(self, job: Job, record: JobRecord) -> None:
        """Store progress, description and a result that is not the last word."""
        attempt = self._attempts.get(job.id)
        if record.progress != job.progress or record.description != job.description:
            self.backend.save_progress(job.id, record.progress, record.description, attempt=attempt)
        if record.result is not None and record.status is not JobStatus.COMPLETED:
            data = encode_json(record.result, "result")
            if data != job.checkpoint:
                self.backend.save_checkpoint(job.id, data, attempt=attempt)

    def _end(self, job: Job, record: JobRecord) -> None:
        attempt = self._attempts.get(job.id)
        if record.status is JobStatus.COMPLETED:
            data = None if record.result is None else encode_json(record.result, "result")
            self.backend.complete_job(job.id, data, attempt=attempt)
        elif record.status is JobStatus.ERROR:
            self._fail(job, record.description or "the job failed", attempt)
        else:
            self.backend.stop_job(job.id, record.description or "", attempt=attempt)
        self._let_go(job.id)

    def _fail(self, job: Job, message: str, attempt: int | None) -> None:
        try:
            self.backend.fail_job(job.id, message, attempt=attempt)
        except InvalidTransitionError as error:
            if error.status != StoredStatus.CANCELLING:
                raise
            # It was cancelled while it failed. It has ended, and that is what was asked for.
            self.backend.stop_job(job.id, message, attempt=attempt)

    # -- holding ------------------------------------------------------------------------------------------------

    def _living(self) -> str:
        if self._owner is None:
            self._owner = self.backend.open_owner()
        if self._beat is None:
            self._beat = threading.Thread(
                target=self._keep_alive, name="penstock-processes-beat", daemon=True
            )
            self._beat.start()
        return self._owner

    def _hold(self, job: Job) -> None:
        self._attempts[job.id] = job.attempt
        self._living()

    def _let_go(self, job_id: JobId) -> None:
        self._attempts.pop(job_id, None)
        if not self._attempts:
            self._wake.notify_all()

    def _keep_alive(self) -> None:
        """Say that this process lives for as long as it has jobs, and help with the upkeep of the store."""
        pause = self.backend.liveness.total_seconds() / 3
        with self._wake:
            while True:
                self._wake.wait(pause)
                if not self._attempts:
                    owner, self._owner, self._beat = self._owner, None, None
                    if owner is not None:
                        with contextlib.suppress(PenstockError):
                            self.backend.close_owner(owner)
                    return
                try:
                    if self._owner is not None:
                        self.backend.beat_owner(self._owner)
                    if self.backend.take_upkeep(UPKEEP):
                        self.backend.maintain()
                except QueueClosedError:
                    self._owner = self._beat = None
                    return  # there is no store any more to tell
                except PenstockError as error:
                    logger.warning("the store does not hear that this process lives: %s", error)


def _record_of(job: Job) -> JobRecord:
    status = job.process_status
    created = job.created_at or datetime.now(UTC)
    told = job.error_message if status in {JobStatus.ERROR, JobStatus.INTERRUPTED} else ""
    return JobRecord(
        job_id=job.id,
        status=status,
        progress=100 if status is JobStatus.COMPLETED else min(job.progress, 99),
        description=told or job.description,
        result=_value(job.result if job.result is not None else job.checkpoint),
        created_at=created,
        updated_at=job.updated_at or created,
    )


def _value(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return decode_json(data)
    except msgspec.DecodeError:  # of a job of another face, whose results may be any bytes
        return data.decode("utf-8", "backslashreplace")


def _no_way(job: Job, record: JobRecord) -> InvalidTransitionError:
    return InvalidTransitionError(
        f"job {shown(job.id)} cannot become {record.status.name}: it is {job.process_status.name} ({job.status})",
        job_id=job.id,
        status=job.process_status.name,
        verb=record.status.name.lower(),
    )
