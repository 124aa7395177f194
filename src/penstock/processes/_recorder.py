"""The recorder of a process queue: writes what jobs report into the registry.

    child process ──shared memory──► recorder ──► registry ──► waiters are woken
                                        ▲            │
                                        └─ commands ─┘ stop, or killed because the registry has reclaimed it

Ends are recorded at once, progress a few times a second. The registry decides whether a job is still this queue's. A job
whose record it refuses was reclaimed, so its process is killed and the registry's record of its end is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from penstock.errors import InvalidArgumentError, InvalidTransitionError, JobNotFoundError, PenstockError
from penstock.processes._running import RunningJob
from penstock.processes._shared_state import Snapshot
from penstock.processes.jobs import STOP_SECONDS, QueueJobBase
from penstock.processes.registry import Registry
from penstock.processes.types import FINAL, JobCommand, JobId, JobRecord, JobStatus
from penstock.service import Service

__all__ = ["Entry", "Recorder", "log_event"]

logger = logging.getLogger("penstock.processes")

RECORD_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 1.0
#: How often a registry is polled for commands to the jobs that run.
COMMAND_SECONDS: Final = 0.5
RECLAIMED: Final = "the registry says that the job is not this queue's any more"
SUSPENDED: Final = "Suspended"
_COUNTED: Final = {
    JobStatus.COMPLETED: "completes",
    JobStatus.ERROR: "errors",
    JobStatus.INTERRUPTED: "interrupts",
}


@dataclass
class Entry:
    """A job of the queue, its last record, and its process while it has one."""

    job: QueueJobBase
    record: JobRecord
    process: RunningJob | None = None
    generation: int = -1
    is_ended: bool = False
    is_suspended: bool = False
    is_reclaimed: bool = False


class Recorder:
    """Writes the records of a queue's jobs, from a thread of its own while jobs run.

    Args:
        registry: where records are kept.
        entries: the jobs of the queue.
        lock: guards them and everything here.
    """

    def __init__(self, registry: Registry, entries: Mapping[JobId, Entry], lock: threading.RLock) -> None:
        self._registry = registry
        self._entries = entries
        #: Notified when a record was written or a job has ended.
        self.changed = threading.Condition(lock)
        #: Counts of starts, and of ends by status.
        self.counts = dict.fromkeys(("starts", "completes", "errors", "interrupts"), 0)
        self._pause = RECORD_SECONDS
        self._next_commands = 0.0
        self._is_closing = False
        self._service = Service("recorder", self._run, label="recording", log=logger)

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        self._service.start()

    def close(self, timeout: float) -> None:
        """End the thread when no job runs any more, or the registry fails; wait for that."""
        with self.changed:
            self._is_closing = True
            self.changed.notify_all()
        self._service.join(timeout)

    def write(self, entry: Entry, **changes: object) -> None:
        """Append a changed record; nothing has changed if that fails."""
        record = replace(entry.record, updated_at=datetime.now(UTC), **changes)  # type: ignore[arg-type]
        self._registry.append(record)
        entry.record = record
        self.changed.notify_all()

    def note_end(self, entry: Entry) -> None:
        """Wake the thread to record the end of a job at once. Called on the supervisor's thread."""
        with self.changed:
            entry.is_ended = True
            self.changed.notify_all()

    def live(self, entry: Entry) -> JobRecord:
        """Return the last record with what the job has reported since."""
        return _merged(entry, entry.job._state.read())  # noqa: SLF001 - ours

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self.changed:
            running = [each for each in self._entries.values() if each.record.status is JobStatus.RUNNING]
            if not running:
                if self._is_closing:
                    self._service.retire()
                else:
                    self.changed.wait()
                return
            if self._pause > RECORD_SECONDS or not any(entry.is_ended for entry in running):
                self.changed.wait(self._pause)
            self._pause = RECORD_SECONDS
            for step in self._steps(running):
                try:
                    step()
                except (
                    PenstockError
                ) as error:  # each job by itself: one refused record must not delay the others
                    logger.warning("the registry refused a record, which is retried: %s", error)
                    self._pause = RETRY_SECONDS
            if self._is_closing and self._pause > RECORD_SECONDS:
                self._service.retire()  # closing does not wait for a registry that is out of reach

    def _steps(self, running: list[Entry]) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = [partial(self._record, entry) for entry in running]
        if time.monotonic() >= self._next_commands:
            self._next_commands = time.monotonic() + COMMAND_SECONDS
            steps.insert(0, partial(self._obey_commands, running))
        return steps

    def _obey_commands(self, running: list[Entry]) -> None:
        """Stop or kill the jobs for which the registry has a command."""
        entries = {entry.job.job_id: entry for entry in running if not (entry.is_ended or entry.is_reclaimed)}
        for job_id, command in self._registry.commands(entries.keys()).items():
            entry = entries[job_id]
            if command is not JobCommand.STOP:
                self._kill_reclaimed(entry)
            elif entry.process is not None and entry.job._state.command() is JobCommand.START:  # noqa: SLF001 - ours
                entry.process.ask_to_stop(JobCommand.STOP, STOP_SECONDS)

    def _kill_reclaimed(self, entry: Entry) -> None:
        """Kill a job that is not this queue's any more."""
        logger.warning("job %s was reclaimed from this queue and is killed", entry.job.job_id)
        entry.is_reclaimed = True
        if entry.process is not None:
            entry.process.kill()

    def _record(self, entry: Entry) -> None:
        """Record what a job has reported."""
        try:
            if entry.is_ended:
                self._record_end(entry)
            elif not (entry.is_suspended or entry.is_reclaimed):
                self._record_progress(entry)
        except (InvalidTransitionError, JobNotFoundError):
            if entry.is_ended:
                self._adopt_end(entry)
            else:
                self._kill_reclaimed(entry)

    def _record_progress(self, entry: Entry) -> None:
        state = entry.job._state  # noqa: SLF001 - ours
        generation = state.generation()
        if generation == entry.generation:
            return
        record = _merged(entry, state.read())
        try:
            if record != entry.record:
                self.write(
                    entry, progress=record.progress, description=record.description, result=record.result
                )
        except InvalidArgumentError as error:  # a result that is too large; the record of its end will say so
            logger.warning("the progress of job %s cannot be recorded: %s", entry.job.job_id, error)
        entry.generation = generation

    def _record_end(self, entry: Entry) -> None:
        now = entry.job._state.read()  # noqa: SLF001 - ours
        entry.is_suspended = False
        if entry.is_reclaimed:
            self._adopt_end(entry)
            return
        status = now.status
        progress = 100 if status is JobStatus.COMPLETED else min(99, now.progress)
        try:
            self.write(
                entry, status=status, progress=progress, description=now.description, result=now.result
            )
        except InvalidArgumentError as error:
            status = JobStatus.ERROR
            text = f"{now.description}; the result cannot be kept: {error}"
            self.write(entry, status=status, progress=min(99, now.progress), description=text)
        self._count_end(entry, status)

    def _adopt_end(self, entry: Entry) -> None:
        """Take the registry's record of how a reclaimed job ended."""
        known = self._registry.latest(entry.job.job_id)
        if known is None or known.status not in FINAL:
            known = replace(
                entry.record, status=JobStatus.ERROR, description=RECLAIMED, updated_at=datetime.now(UTC)
            )
        entry.record = known
        self.changed.notify_all()
        self._count_end(entry, known.status)

    def _count_end(self, entry: Entry, status: JobStatus) -> None:
        self.counts[_COUNTED[status]] += 1
        log_event(status.name.lower(), entry.job.job_id)


def log_event(event: str, job_id: JobId) -> None:
    """Log what happened to a job."""
    logger.info("job %s %s", job_id, event, extra={"event": event, "job_id": job_id})


def _merged(entry: Entry, now: Snapshot) -> JobRecord:
    if now.status in FINAL:  # it has reported its end, but its process lives: recorded when that is gone
        return entry.record
    return replace(
        entry.record,
        progress=min(99, now.progress),
        description=SUSPENDED if entry.is_suspended else now.description,
        result=now.result,
    )
