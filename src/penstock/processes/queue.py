"""The process queue: adds, starts, stops and deletes jobs, and keeps their records.

A job's process writes its progress and its end into memory that it shares with the queue; the recorder
(`penstock.processes._recorder`) writes both into the registry. A wait for a job returns after the registry has the record.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple, Self

from penstock.errors import (
    InvalidTransitionError,
    JobExistsError,
    JobNotFoundError,
    PenstockError,
    ProcessControlError,
    QueueClosedError,
    invalid,
)
from penstock.isolation import Supervisor
from penstock.processes._recorder import SUSPENDED, Entry, Recorder, log_event
from penstock.processes.jobs import STOP_SECONDS, QueueJobBase
from penstock.processes.registry import Registry
from penstock.processes.types import (
    DELETED,
    FINAL,
    JobCommand,
    JobId,
    JobRecord,
    JobStatus,
    check_job_id,
    check_seconds,
    lookup_id,
)

__all__ = ["JobQueue", "Metrics"]


class Metrics(NamedTuple):
    """Counters of a queue, and how many of its jobs run now.

    Attributes:
        starts: jobs started.
        completes: jobs that completed.
        errors: jobs that ended in ERROR.
        interrupts: jobs that were stopped.
        running: jobs that run now.
    """

    starts: int
    completes: int
    errors: int
    interrupts: int
    running: int


class JobQueue:
    """Runs jobs in processes of their own and keeps their records in a registry. Thread-safe.

    Args:
        registry: where records are kept. It stays open when the queue is closed.
    """

    def __init__(self, registry: Registry) -> None:
        if not isinstance(registry, Registry):
            raise invalid("registry", "a Registry", registry)
        self.registry = registry
        registry.attach()
        self._supervisor = Supervisor()
        self._entries: dict[JobId, Entry] = {}
        self._lock = threading.RLock()
        self._recorder = Recorder(registry, self._entries, self._lock)
        self._is_closed = False

    # -- reading ------------------------------------------------------------------------------------------------

    def get_jobs(self) -> Mapping[JobId, QueueJobBase]:
        """Return the jobs of this queue by id; the mapping cannot be changed."""
        with self._lock:
            return MappingProxyType({job_id: entry.job for job_id, entry in self._entries.items()})

    def get_job_status(self, job_id: JobId) -> JobRecord:
        """Return the record of a job; while it runs, with its present progress.

        Raises:
            JobNotFoundError: neither the queue nor its registry has such a job.
        """
        job_id = lookup_id(job_id)
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None:
                return self._known(job_id)
            if entry.record.status is not JobStatus.RUNNING:
                return entry.record
            return self._recorder.live(entry)

    def get_job_output(self, job_id: JobId) -> str:
        """Return the output of the job's last run on stdout and stderr; the middle of a long one is left out."""
        with self._lock:
            process = self._entry(job_id).process
        return "" if process is None else process.output

    def wait_for_job(self, job_id: JobId, timeout: float | None = None) -> JobRecord:
        """Wait until a job has ended, and return its record.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + check_seconds(timeout)
        with self._recorder.changed:
            while (record := self._entry(job_id).record).status not in FINAL:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"job {job_id} is still {record.status.name} after {timeout:g} s")
                self._recorder.changed.wait(left)
            return record

    @property
    def metrics(self) -> Metrics:
        """Counts of starts and ends, and how many jobs run."""
        with self._lock:
            running = sum(entry.record.status is JobStatus.RUNNING for entry in self._entries.values())
            return Metrics(**self._recorder.counts, running=running)

    # -- operations ---------------------------------------------------------------------------------------------

    def add_job(self, job: QueueJobBase) -> JobId:
        """Add a job, PENDING, and return its id, a UUID in lower case: one UUID is one job however it is written.

        Raises:
            JobAlreadyExistsError: the queue or its registry has a job of that id.
        """
        if not isinstance(job, QueueJobBase):
            raise invalid("job", "a QueueJobBase", job)
        job_id = check_job_id(getattr(job, "job_id", None))
        with self._lock:
            self._check_open()
            known = None if job_id in self._entries else self.registry.latest(job_id)
            if job_id in self._entries or (known is not None and known.description != DELETED):
                raise JobExistsError(job_id)
            now = datetime.now(UTC)
            record = JobRecord(job_id, JobStatus.PENDING, 0, None, None, now, now)
            self.registry.append(record)
            self._entries[job_id] = Entry(job, record)
        log_event("added", job_id)
        return job_id

    def start_job(self, job_id: JobId) -> None:
        """Start a job in a process of its own. The record is written before the process starts.

        Raises:
            InvalidJobStateError: it is neither PENDING, nor INTERRUPTED and of a class that supports a restart.
            ProcessControlError: the process could not be started; the job is in ERROR then.
        """
        with self._lock:
            self._check_open()
            entry = self._entry(job_id)
            entry.job.check_start()
            if entry.record.status is JobStatus.RUNNING:
                raise InvalidTransitionError(
                    f"job {job_id} cannot be started: it is RUNNING",
                    job_id=job_id,
                    status="RUNNING",
                    verb="start",
                )
            self._recorder.write(
                entry, status=JobStatus.RUNNING, progress=0, description="Started", result=None
            )
            entry.is_ended = entry.is_suspended = entry.is_reclaimed = False
            try:
                entry.process = entry.job._start(  # noqa: SLF001 - ours
                    self._supervisor, lambda _ending: self._recorder.note_end(entry)
                )
            except BaseException as error:
                with contextlib.suppress(PenstockError):
                    self._recorder.write(entry, status=JobStatus.ERROR, description=f"not started: {error}")
                raise
            self._recorder.counts["starts"] += 1
            self._recorder.start()
        log_event("started", job_id)

    def stop_job(self, job_id: JobId, timeout: float | None = None, *, terminate: bool = True) -> None:
        """Stop a running job and wait until it has ended.

        The job is asked first. If it has not ended after `timeout` seconds (10 by default; 1 if it has never checked
        whether it should stop), SIGTERM interrupts it, and `on_stop` is called; a job that has not ended 2 s after the
        timeout is killed.

        Args:
            terminate: whether to do more than ask.

        Raises:
            InvalidJobStateError: the job is not running.
            ProcessControlError: with `terminate=False`, it has not ended in time; it was asked to, and continues.
        """
        patience = check_seconds(STOP_SECONDS if timeout is None else timeout)
        with self._lock:
            self._check_open()
            entry = self._running(job_id, "stop")
            process = entry.process
            assert process is not None  # noqa: S101 - it runs
            if not process.ask_to_stop(JobCommand.STOP, patience if terminate else None):
                raise _not_running(job_id, entry, "stop")
        self._await_end(entry, patience + 2 * STOP_SECONDS if terminate else patience)

    def delete_job(self, job_id: JobId, force: bool = False) -> None:
        """Remove a job from the queue. One that runs is stopped first, or killed with `force`.

        One that only the registry knows, from an earlier process, is removed from there.

        Raises:
            InvalidJobStateError: it runs in another queue.
        """
        job_id = lookup_id(job_id)
        with self._lock:
            self._check_open()
            if job_id not in self._entries:
                self._delete_record(job_id)
                return
            entry = self._entry(job_id)
            process = entry.process
            is_running = entry.record.status is JobStatus.RUNNING and process is not None
            if is_running and process is not None:
                process.ask_to_stop(JobCommand.DELETE, None if force else STOP_SECONDS)
                if force:
                    process.kill()
        if is_running:
            self._await_end(entry, 3 * STOP_SECONDS)
        with self._lock:
            if self._entries.get(job_id) is entry:
                self.registry.delete(replace(entry.record, updated_at=datetime.now(UTC)))
                del self._entries[job_id]
        log_event("deleted", job_id)

    def _delete_record(self, job_id: JobId) -> None:
        record = self._known(job_id)
        if record.status is JobStatus.RUNNING:
            raise InvalidTransitionError(
                f"job {job_id} cannot be deleted here: it runs in another queue",
                job_id=job_id,
                status=record.status.name,
                verb="delete",
            )
        self.registry.delete(replace(record, updated_at=datetime.now(UTC)))
        log_event("deleted", job_id)

    def suspend_job(self, job_id: JobId) -> None:
        """Stop the processes of a running job for a while; it stays RUNNING, with the description "Suspended".

        Raises:
            InvalidJobStateError: the job is not running.
            ProcessControlError: its process does not stop.
        """
        with self._lock:
            self._check_open()
            entry = self._running(job_id, "suspend")
            process = entry.process
            assert process is not None  # noqa: S101 - it runs
            if not entry.is_suspended:
                # While this thread holds the lock of its state, it cannot be suspended while holding it.
                with entry.job._state.lock:  # noqa: SLF001 - ours
                    process.process.suspend()
                entry.is_suspended = True
                self._recorder.write(entry, description=SUSPENDED)
        log_event("suspended", job_id)

    def resume_job(self, job_id: JobId) -> None:
        """Continue a suspended job.

        Raises:
            InvalidJobStateError: the job is not suspended.
        """
        with self._lock:
            self._check_open()
            entry = self._running(job_id, "resume")
            if not entry.is_suspended or entry.process is None:
                raise InvalidTransitionError(
                    f"job {job_id} is not suspended",
                    job_id=job_id,
                    status=entry.record.status.name,
                    verb="resume",
                )
            entry.is_suspended = False
            entry.process.process.resume()
            self._recorder.write(entry, description=entry.job._state.read().description)  # noqa: SLF001 - ours
        log_event("resumed", job_id)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Stop what runs (10 s of grace by default), record it, and end threads and processes. Idempotent."""
        patience = check_seconds(STOP_SECONDS if timeout is None else timeout)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            running = [entry for entry in self._entries.values() if entry.record.status is JobStatus.RUNNING]
            for entry in running:
                if entry.process is not None:
                    entry.process.ask_to_stop(JobCommand.STOP, patience)
        for entry in running:
            with contextlib.suppress(ProcessControlError):
                self._await_end(entry, patience + 2 * STOP_SECONDS)
        self._recorder.close(STOP_SECONDS)
        self._supervisor.close()
        self.registry.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- shared ------------------------------------------------------------------------------------------------

    def _await_end(self, entry: Entry, timeout: float) -> None:
        until = time.monotonic() + timeout
        with self._recorder.changed:
            while entry.record.status is JobStatus.RUNNING:
                left = until - time.monotonic()
                if left <= 0:
                    raise ProcessControlError(
                        f"job {entry.job.job_id} did not stop within {timeout:g} s",
                        job_id=entry.job.job_id,
                    )
                self._recorder.changed.wait(left)

    def _check_open(self) -> None:
        if self._is_closed:
            raise QueueClosedError("the process queue is closed; make a new one")

    def _known(self, job_id: JobId) -> JobRecord:
        """Return the registry's record of a job that is not in this queue."""
        record = self.registry.latest(job_id)
        if record is None or record.description == DELETED:
            raise JobNotFoundError(job_id)
        return record

    def _entry(self, job_id: JobId) -> Entry:
        entry = self._entries.get(lookup_id(job_id))
        if entry is None:
            raise JobNotFoundError(job_id)
        return entry

    def _running(self, job_id: JobId, verb: str) -> Entry:
        entry = self._entry(job_id)
        if entry.record.status is not JobStatus.RUNNING or entry.process is None or entry.is_ended:
            raise _not_running(job_id, entry, verb)
        return entry


def _not_running(job_id: JobId, entry: Entry, verb: str) -> InvalidTransitionError:
    status = entry.job._state.read().status.name  # noqa: SLF001 - ours
    return InvalidTransitionError(
        f"{verb} of job {job_id} is not possible: it is {status}, not RUNNING",
        job_id=job_id,
        status=status,
        verb=verb,
    )
