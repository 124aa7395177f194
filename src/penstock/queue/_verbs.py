from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from penstock.backends import UNSET, Backend, Failure, JoinedBackend, UnsetType
from penstock.backends.contract.overview import JobCounts, Overview
from penstock.backends.contract.selection import JobPage, JobSelection
from penstock.durations import Duration
from penstock.errors import QueueClosedError
from penstock.events import EventBus
from penstock.job import Job, JobStats, JobStatus, JournalEntry, Key, Maintenance, Priority
from penstock.policy import FailureCategory
from penstock.queue.emitter import Emitter

__all__ = ["StoreVerbs", "VerbCaller"]

T = TypeVar("T")

#: Whole jobs that are held at a time while they are iterated over: their payloads may be large.
_PORTION: Final = 200


class VerbCaller:
    """Calls verbs of a store until it is closed."""

    backend: JoinedBackend

    def __init__(self, backend: JoinedBackend) -> None:
        self.backend = backend
        self._closed = False

    def _run(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._check_open()
        return verb(*args, **kwargs)

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError("the queue is closed; open a new one")

    def get_job(self, job_id: str) -> Job:
        """See `Backend.get_job`."""
        return self._run(self.backend.get_job, job_id)

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """See `Backend.get_jobs`."""
        return self._run(self.backend.get_jobs, job_ids)


class StoreVerbs(VerbCaller):
    """The verbs of a queue that call the store's verb of the same name.

    Those that report return None, because the queue itself keeps track of the slots they free.
    """

    backend: Backend

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._bus = EventBus()
        self._emitter = Emitter(backend, self._bus)

    def _run(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a verb of the store and emit its events."""
        self._check_open()
        try:
            return verb(*args, **kwargs)
        finally:
            self._emitter.emit_pending()

    def _check_open(self) -> None:
        super()._check_open()
        self._emitter.follow_subscribers()  # in a child of a fork, nothing listens yet

    # -- reports ------------------------------------------------------------------------------------------------

    def complete_job(self, job_id: str, result: bytes | None = None, *, attempt: int | None = None) -> None:
        """See `Backend.complete_job`."""
        self._run(self.backend.complete_job, job_id, result, attempt=attempt)

    def complete_jobs(
        self, results: Mapping[str, bytes | None], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        """See `Backend.complete_jobs`."""
        self._run(self.backend.complete_jobs, results, attempts=attempts)

    def fail_job(
        self,
        job_id: str,
        error_message: str,
        *,
        attempt: int | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: Duration | None = None,
    ) -> None:
        """See `Backend.fail_job`."""
        self._run(
            self.backend.fail_job,
            job_id,
            error_message,
            attempt=attempt,
            category=category,
            code=code,
            retry_after=retry_after,
        )

    def fail_jobs(
        self,
        failures: Mapping[str, str | Failure],
        *,
        attempts: Mapping[str, int] | None = None,
        category: FailureCategory = FailureCategory.TEMPORARY,
        code: str | None = None,
        retry_after: Duration | None = None,
    ) -> None:
        """See `Backend.fail_jobs`."""
        self._run(
            self.backend.fail_jobs,
            failures,
            attempts=attempts,
            category=category,
            code=code,
            retry_after=retry_after,
        )

    def stop_job(self, job_id: str, error_message: str = "", *, attempt: int | None = None) -> None:
        """See `Backend.stop_job`."""
        self._run(self.backend.stop_job, job_id, error_message, attempt=attempt)

    def stop_jobs(self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None) -> None:
        """See `Backend.stop_jobs`."""
        self._run(self.backend.stop_jobs, messages, attempts=attempts)

    def stop_job_with_retry(self, job_id: str, error_message: str, *, attempt: int | None = None) -> None:
        """See `Backend.stop_job_with_retry`."""
        self._run(self.backend.stop_job_with_retry, job_id, error_message, attempt=attempt)

    def stop_jobs_with_retry(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        """See `Backend.stop_jobs_with_retry`."""
        self._run(self.backend.stop_jobs_with_retry, messages, attempts=attempts)

    def mark_job_unknown_stopped(
        self, job_id: str, error_message: str, *, attempt: int | None = None
    ) -> None:
        """See `Backend.mark_job_unknown_stopped`."""
        self._run(self.backend.mark_job_unknown_stopped, job_id, error_message, attempt=attempt)

    def mark_jobs_unknown_stopped(
        self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        """See `Backend.mark_jobs_unknown_stopped`."""
        self._run(self.backend.mark_jobs_unknown_stopped, messages, attempts=attempts)

    def update_job_status(
        self,
        job_id: str,
        status: JobStatus,
        result: bytes | None = None,
        error_message: str = "",
        *,
        attempt: int | None = None,
    ) -> None:
        """See `Backend.update_job_status`."""
        self._run(self.backend.update_job_status, job_id, status, result, error_message, attempt=attempt)

    def release_jobs(self, messages: Mapping[str, str], *, attempts: Mapping[str, int] | None = None) -> None:
        """See `Backend.release_jobs`."""
        self._run(self.backend.release_jobs, messages, attempts=attempts)

    def acknowledge_cancellation(
        self, job_id: str, was_executing: bool, *, attempt: int | None = None
    ) -> None:
        """See `Backend.acknowledge_cancellation`. With `was_executing=False` the stream's slot stays taken."""
        self._run(self.backend.acknowledge_cancellation, job_id, was_executing, attempt=attempt)

    def acknowledge_cancellations(
        self, executing: Mapping[str, bool], *, attempts: Mapping[str, int] | None = None
    ) -> None:
        """See `Backend.acknowledge_cancellations`."""
        self._run(self.backend.acknowledge_cancellations, executing, attempts=attempts)

    def save_progress(
        self, job_id: str, percent: int, description: str | None = None, *, attempt: int | None = None
    ) -> None:
        """See `Backend.save_progress`."""
        self._run(self.backend.save_progress, job_id, percent, description, attempt=attempt)

    def save_checkpoint(self, job_id: str, data: bytes, *, attempt: int | None = None) -> None:
        """See `Backend.save_checkpoint`."""
        self._run(self.backend.save_checkpoint, job_id, data, attempt=attempt)

    def save_output(self, job_id: str, output: str, *, attempt: int | None = None) -> None:
        """See `Backend.save_output`."""
        self._run(self.backend.save_output, job_id, output, attempt=attempt)

    # -- changing and repeating ---------------------------------------------------------------------------------

    def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, waiting_only: bool = False
    ) -> tuple[list[str], list[str]]:
        """See `Backend.cancel_jobs`."""
        return self._run(self.backend.cancel_jobs, tags, job_ids, waiting_only=waiting_only)

    def update_job(
        self,
        job_id: str,
        *,
        priority: Priority | int | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        correlation_id: str | UnsetType | None = UNSET,
        callback_url: str | UnsetType | None = UNSET,
    ) -> None:
        """See `Backend.update_job`."""
        self._run(
            self.backend.update_job,
            job_id,
            priority=priority,
            tags=tags,
            correlation_id=correlation_id,
            callback_url=callback_url,
        )

    def redrive_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> list[str]:
        """See `Backend.redrive_jobs`."""
        return self._run(self.backend.redrive_jobs, tags, job_ids)

    def restart_job(self, job_id: str, assignee_id: str) -> Job:
        """See `Backend.restart_job`."""
        return self._run(self.backend.restart_job, job_id, assignee_id)

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        """See `Backend.heartbeat`."""
        return self._run(self.backend.heartbeat, assignee_id, jobs=jobs)

    def maintain(self) -> Maintenance:
        """See `Backend.maintain`."""
        return self._run(self.backend.maintain)

    def cleanup_expired_jobs(self, ttl: Duration) -> int:
        """See `Backend.cleanup_expired_jobs`."""
        return self._run(self.backend.cleanup_expired_jobs, ttl)

    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        """See `Backend.delete_jobs`."""
        return self._run(self.backend.delete_jobs, tags, job_ids)

    # -- reading ------------------------------------------------------------------------------------------------

    def get_job_stats(self, tags: Sequence[str] = ()) -> JobStats:
        """See `Backend.get_job_stats`."""
        return self._run(self.backend.get_job_stats, tags)

    def overview(self) -> Overview:
        """See `Reading.overview`."""
        return self._run(self.backend.reading.overview)

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
        """See `Backend.list_jobs`."""
        return self._run(
            self.backend.list_jobs,
            status=status,
            type=type,
            tags=tags,
            after=after,
            limit=limit,
            newest=newest,
        )

    def count_jobs(self, tags: Sequence[str] = ()) -> JobCounts:
        """See `Reading.count_jobs`."""
        return self._run(self.backend.reading.count_jobs, tags)

    def select_jobs(
        self,
        selection: JobSelection,
        *,
        after: int | None = None,
        upto: int | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> JobPage:
        """See `Reading.select_jobs`."""
        return self._run(
            self.backend.reading.select_jobs, selection, after=after, upto=upto, limit=limit, newest=newest
        )

    def iter_jobs(
        self,
        *,
        status: str | Sequence[str] = (),
        type: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        key: Key | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        newest: bool = False,
    ) -> Iterator[Job]:
        """Iterate over all jobs that match, however many there are; what is left out does not limit.

        They are read in portions while you iterate: jobs may change, come and go meanwhile.

            for job in queue.iter_jobs(status=["failed", "dead"], type="resize", error="disk full"):
                print(job.id)

        Args:
            status: one or several, any of which; also the groups that `penstock stats` counts, such as "retrying".
            type: one or several, any of which.
            tags: all of these.
            key: exactly this key.
            since: created at this moment or later.
            until: created before this moment.
            error: text in the error message.
            newest: the other way round: those that were enqueued last come first.

        Raises:
            InvalidArgumentError: one of these is wrong.
        """
        selection = JobSelection(
            statuses=(status,) if isinstance(status, str) else status,
            types=(type,) if isinstance(type, str) else type,
            tags=tags,
            key=Key.of(key),
            since=since,
            until=until,
            error=error,
        )
        return self._iterated(selection, newest=newest)

    def _iterated(self, selection: JobSelection, *, newest: bool) -> Iterator[Job]:
        after: int | None = None
        while True:
            page = self.select_jobs(selection, after=after, limit=_PORTION, newest=newest)
            ids = [each.id for each in page.jobs]
            yield from (self.get_jobs(ids) if ids else {}).values()
            if page.next is None:
                return
            after = page.next

    def find_ids(self, prefix: str, limit: int = 10) -> list[str]:
        """See `Reading.find_ids`."""
        return self._run(self.backend.reading.find_ids, prefix, limit)

    def get_output(self, job_id: str) -> str:
        """See `Reading.get_output`."""
        return self._run(self.backend.reading.get_output, job_id)

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """See `Backend.read_journal`."""
        return self._run(self.backend.read_journal, after, limit)

    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        """See `Journal.history`."""
        return self._run(self.backend.journal.history, job_id, limit)
