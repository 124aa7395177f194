"""The process queue: adds, starts, stops and deletes jobs, and keeps their records.

A job's process writes what it has to say into memory that it shares with the queue. A thread, the recorder, brings it
into the registry: ends at once, progress a few times a second. Whoever waits for a job is told after the registry knows.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, Self

from penstock._process import Ending, Supervisor
from penstock.errors import (
    InvalidArgumentError,
    InvalidTransitionError,
    JobExistsError,
    JobNotFoundError,
    PenstockError,
    ProcessControlError,
    QueueClosedError,
    shown,
)
from penstock.processes.ipc import Snapshot
from penstock.processes.jobs import STOP_SECONDS, QueueJobBase, RunningJob
from penstock.processes.registry import Registry
from penstock.processes.types import DELETED, FINAL, JobCommand, JobId, JobRecord, JobStatus

__all__ = ["JobQueue", "Metrics"]

logger = logging.getLogger("penstock.processes")

RECORD_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 1.0
#: How often a registry is asked what others want of the jobs that run.
HEED_SECONDS: Final = 0.5
LOST: Final = "the registry says that the job is not this queue's any more"
SUSPENDED: Final = "Suspended"
_COUNTED: Final = {
    JobStatus.COMPLETED: "completes",
    JobStatus.ERROR: "errors",
    JobStatus.INTERRUPTED: "interrupts",
}


class Metrics(NamedTuple):
    """What a queue has done, and how many of its jobs run now.

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


@dataclass
class _Entry:
    """A job of the queue, its last record, and its process while it has one."""

    job: QueueJobBase
    record: JobRecord
    process: RunningJob | None = None
    generation: int = -1
    is_ended: bool = False
    is_suspended: bool = False
    is_lost: bool = False


class JobQueue:
    """Runs jobs in processes of their own and keeps their records in a registry. Thread-safe.

    Args:
        registry: where records are kept. It stays open when the queue is closed.
    """

    def __init__(self, registry: Registry) -> None:
        if not isinstance(registry, Registry):
            raise InvalidArgumentError(
                f"registry must be a Registry, got {shown(registry)}", field="registry", value=registry
            )
        self.registry = registry
        registry.attach()
        self._supervisor = Supervisor()
        self._entries: dict[JobId, _Entry] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._counts = dict.fromkeys(("starts", "completes", "errors", "interrupts"), 0)
        self._recorder: threading.Thread | None = None
        self._is_closed = False

    # -- looking ------------------------------------------------------------------------------------------------

    def get_jobs(self) -> Mapping[JobId, QueueJobBase]:
        """Return the jobs of this queue by id; the mapping cannot be changed."""
        with self._lock:
            return MappingProxyType({job_id: entry.job for job_id, entry in self._entries.items()})

    def get_job_status(self, job_id: JobId) -> JobRecord:
        """Return what is known of a job; while it runs, with its progress of this moment.

        Raises:
            JobNotFoundError: neither the queue nor its registry has such a job.
        """
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None:
                return self._known(job_id)
            if entry.record.status is not JobStatus.RUNNING:
                return entry.record
            return self._live(entry)

    def get_job_output(self, job_id: JobId) -> str:
        """Return what the job's last run wrote to stdout and stderr; the middle of very much is left out."""
        with self._lock:
            process = self._entry(job_id).process
        return "" if process is None else process.output

    def wait_for_job(self, job_id: JobId, timeout: float | None = None) -> JobRecord:
        """Wait until a job has ended, and return its record.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (record := self._entry(job_id).record).status not in FINAL:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"job {job_id} is still {record.status.name} after {timeout:g} s")
                self._changed.wait(left)
            return record

    @property
    def metrics(self) -> Metrics:
        """How often jobs were started and how they ended, and how many run."""
        with self._lock:
            running = sum(entry.record.status is JobStatus.RUNNING for entry in self._entries.values())
            return Metrics(**self._counts, running=running)

    # -- operations ---------------------------------------------------------------------------------------------

    def add_job(self, job: QueueJobBase) -> JobId:
        """Add a job, PENDING, and return its id.

        Raises:
            JobAlreadyExistsError: the queue or its registry has a job of that id.
        """
        if not isinstance(job, QueueJobBase):
            raise InvalidArgumentError(
                f"job must be a QueueJobBase, got {shown(job)}", field="job", value=job
            )
        with self._lock:
            self._check_open()
            known = None if job.job_id in self._entries else self.registry.latest(job.job_id)
            if job.job_id in self._entries or (known is not None and known.description != DELETED):
                raise JobExistsError(job.job_id)
            now = datetime.now(UTC)
            record = JobRecord(job.job_id, JobStatus.PENDING, 0, None, None, now, now)
            self.registry.append(record)
            self._entries[job.job_id] = _Entry(job, record)
        self._log("added", job.job_id)
        return job.job_id

    def start_job(self, job_id: JobId) -> None:
        """Start a job in a process of its own. The registry knows it before the process does.

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
            self._record(entry, status=JobStatus.RUNNING, progress=0, description="Started", result=None)
            entry.is_ended = entry.is_suspended = entry.is_lost = False
            try:
                entry.process = entry.job._start(  # noqa: SLF001 - ours
                    self._supervisor, lambda ending: self._has_ended(entry, ending)
                )
            except BaseException as error:
                with contextlib.suppress(PenstockError):
                    self._record(entry, status=JobStatus.ERROR, description=f"not started: {error}")
                raise
            self._counts["starts"] += 1
            self._run_recorder()
        self._log("started", job_id)

    def stop_job(self, job_id: JobId, timeout: float | None = None, *, terminate: bool = True) -> None:
        """Stop a running job and wait until it has ended.

        The job is asked first. If it has not ended after `timeout` seconds (10 by default; 1 if it has never looked
        whether it should stop), SIGTERM interrupts what it is doing, and `on_stop` is called; a job that has not ended
        2 s after the timeout is killed.

        Args:
            terminate: whether to do more than ask.

        Raises:
            InvalidJobStateError: the job is not running.
            ProcessControlError: with `terminate=False`, it has not ended in time; it has been asked, and goes on.
        """
        patience = _seconds(STOP_SECONDS if timeout is None else timeout)
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
        self._log("deleted", job_id)

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
        self._log("deleted", job_id)

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
                # With its lock in our hands it cannot be stopped while it has it.
                with entry.job._state.lock:  # noqa: SLF001 - ours
                    process.process.suspend()
                entry.is_suspended = True
                self._record(entry, description=SUSPENDED)
        self._log("suspended", job_id)

    def resume_job(self, job_id: JobId) -> None:
        """Let a suspended job go on.

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
            self._record(entry, description=entry.job._state.read().description)  # noqa: SLF001 - ours
        self._log("resumed", job_id)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Stop what runs (10 s of grace by default), record it, and let go of threads and processes. Idempotent."""
        patience = _seconds(STOP_SECONDS if timeout is None else timeout)
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
        with self._changed:
            self._changed.notify_all()
        if self._recorder is not None:
            self._recorder.join(STOP_SECONDS)
        self._supervisor.close()
        self.registry.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- recording ----------------------------------------------------------------------------------------------

    def _live(self, entry: _Entry) -> JobRecord:
        """Return the last record with what the job has said since."""
        return _merged(entry, entry.job._state.read())  # noqa: SLF001 - ours

    def _record(self, entry: _Entry, **changes: object) -> None:
        """Append a changed record; nothing has changed if that fails."""
        record = replace(entry.record, updated_at=datetime.now(UTC), **changes)  # type: ignore[arg-type]
        self.registry.append(record)
        entry.record = record
        self._changed.notify_all()

    def _has_ended(self, entry: _Entry, _ending: Ending) -> None:
        """Have the recorder write down an end. Called on the supervisor's thread."""
        with self._changed:
            entry.is_ended = True
            self._changed.notify_all()

    def _run_recorder(self) -> None:
        if self._recorder is None:
            self._recorder = threading.Thread(
                target=self._keep_records, name="penstock-recorder", daemon=True
            )
            self._recorder.start()

    def _keep_records(self) -> None:
        pause = RECORD_SECONDS
        heed_at = 0.0
        while True:
            with self._changed:
                running = [e for e in self._entries.values() if e.record.status is JobStatus.RUNNING]
                if not running:
                    if self._is_closed:
                        return
                    self._changed.wait()
                    continue
                if pause > RECORD_SECONDS or not any(entry.is_ended for entry in running):
                    self._changed.wait(pause)
                pause = RECORD_SECONDS
                steps: list[Callable[[], None]] = [partial(self._bring, entry) for entry in running]
                if time.monotonic() >= heed_at:
                    heed_at = time.monotonic() + HEED_SECONDS
                    steps.insert(0, partial(self._heed, running))
                for step in steps:
                    try:
                        step()
                    except PenstockError as error:
                        logger.warning("the registry refused a record, trying again: %s", error)
                        pause = RETRY_SECONDS
                if self._is_closed and pause > RECORD_SECONDS:
                    return  # nobody waits for a registry that is out of reach

    def _heed(self, running: list[_Entry]) -> None:
        """Do what others want of the jobs that run here."""
        entries = {entry.job.job_id: entry for entry in running if not (entry.is_ended or entry.is_lost)}
        for job_id, command in self.registry.commands(entries.keys()).items():
            entry = entries[job_id]
            if command is not JobCommand.STOP:
                self._lose(entry)
            elif entry.process is not None and entry.job._state.command() is JobCommand.START:  # noqa: SLF001 - ours
                entry.process.ask_to_stop(JobCommand.STOP, STOP_SECONDS)

    def _lose(self, entry: _Entry) -> None:
        """End a job that is not ours any more."""
        logger.warning("job %s was taken from this queue and is killed", entry.job.job_id)
        entry.is_lost = True
        if entry.process is not None:
            entry.process.kill()

    def _bring(self, entry: _Entry) -> None:
        """Bring what a job has said into the registry."""
        try:
            if entry.is_ended:
                self._bring_end(entry)
            elif not (entry.is_suspended or entry.is_lost):
                self._bring_news(entry)
        except (InvalidTransitionError, JobNotFoundError):
            if entry.is_ended:
                self._give_up(entry)
            else:
                self._lose(entry)

    def _bring_news(self, entry: _Entry) -> None:
        state = entry.job._state  # noqa: SLF001 - ours
        generation = state.generation()
        if generation == entry.generation:
            return
        record = _merged(entry, state.read())
        try:
            if record != entry.record:
                self._record(
                    entry, progress=record.progress, description=record.description, result=record.result
                )
        except InvalidArgumentError as error:  # a result that is too large; its end will tell
            logger.warning("what job %s says cannot be recorded: %s", entry.job.job_id, error)
        entry.generation = generation

    def _bring_end(self, entry: _Entry) -> None:
        now = entry.job._state.read()  # noqa: SLF001 - ours
        entry.is_suspended = False
        if entry.is_lost:
            self._give_up(entry)
            return
        status = now.status
        try:
            self._record(
                entry, status=status, progress=now.progress, description=now.description, result=now.result
            )
        except InvalidArgumentError as error:
            status = JobStatus.ERROR
            told = f"{now.description}; the result cannot be kept: {error}"
            self._record(entry, status=status, progress=min(99, now.progress), description=told)
        self._count_end(entry, status)

    def _give_up(self, entry: _Entry) -> None:
        """Take the registry's word for how a job ended that is not ours any more."""
        known = self.registry.latest(entry.job.job_id)
        if known is None or known.status not in FINAL:
            known = replace(
                entry.record, status=JobStatus.ERROR, description=LOST, updated_at=datetime.now(UTC)
            )
        entry.record = known
        self._changed.notify_all()
        self._count_end(entry, known.status)

    def _count_end(self, entry: _Entry, status: JobStatus) -> None:
        self._counts[_COUNTED[status]] += 1
        self._log(status.name.lower(), entry.job.job_id)

    def _await_end(self, entry: _Entry, timeout: float) -> None:
        until = time.monotonic() + timeout
        with self._changed:
            while entry.record.status is JobStatus.RUNNING:
                left = until - time.monotonic()
                if left <= 0:
                    raise ProcessControlError(
                        f"job {entry.job.job_id} did not stop within {timeout:g} s",
                        job_id=entry.job.job_id,
                    )
                self._changed.wait(left)

    # -- shared -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise QueueClosedError("the process queue is closed; make a new one")

    def _known(self, job_id: JobId) -> JobRecord:
        """Return what the registry knows of a job that is not in this queue."""
        record = self.registry.latest(job_id)
        if record is None or record.description == DELETED:
            raise JobNotFoundError(job_id)
        return record

    def _entry(self, job_id: JobId) -> _Entry:
        entry = self._entries.get(job_id)
        if entry is None:
            raise JobNotFoundError(job_id)
        return entry

    def _running(self, job_id: JobId, verb: str) -> _Entry:
        entry = self._entry(job_id)
        if entry.record.status is not JobStatus.RUNNING or entry.process is None or entry.is_ended:
            raise _not_running(job_id, entry, verb)
        return entry

    @staticmethod
    def _log(event: str, job_id: JobId) -> None:
        logger.info("job %s %s", job_id, event, extra={"event": event, "job_id": job_id})


def _not_running(job_id: JobId, entry: _Entry, verb: str) -> InvalidTransitionError:
    status = entry.job._state.read().status.name  # noqa: SLF001 - ours
    return InvalidTransitionError(
        f"{verb} of job {job_id} is not possible: it is {status}, not RUNNING",
        job_id=job_id,
        status=status,
        verb=verb,
    )


def _merged(entry: _Entry, now: Snapshot) -> JobRecord:
    if now.status in FINAL:  # it has said how it ended, but is not gone: the end is told when it is
        return entry.record
    return replace(
        entry.record,
        progress=min(99, now.progress),
        description=SUSPENDED if entry.is_suspended else now.description,
        result=now.result,
    )


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InvalidArgumentError(
            f"timeout must be a finite number of seconds of at least 0, got {shown(value)}",
            field="timeout",
            value=value,
        )
    return float(value)
