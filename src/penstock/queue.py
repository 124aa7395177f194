"""The queue people use: the store's verbs, plus streams, submission with defaults, events, flows and blocking.

Verbs mean what they mean on the `Backend`; those that report return None, because the queue itself keeps track of the
slots they free.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack

import msgspec

from penstock._dispatcher import Dispatcher
from penstock._emitter import Emitter
from penstock._json import encode_json
from penstock._tracing import is_on, send
from penstock.backends.base import UNSET, Backend, Failure, UnsetType
from penstock.errors import InvalidArgumentError, PenstockError, QueueClosedError, shown
from penstock.events import Event, EventBus, EventKind, run_to_end
from penstock.flow import Flow, flatten
from penstock.job import Job, JobStats, JobStatus, JournalEntry, Key, Maintenance, Priority, distinct
from penstock.overview import Overview
from penstock.policy import (
    DEFAULT_RETRY,
    DEFAULT_TIMEOUTS,
    FailureCategory,
    RetryPolicy,
    Timeouts,
    duration,
)
from penstock.scope import checkpoint, shielded
from penstock.stream import JobStream, check_stream

__all__ = ["Queue", "SpawnOptions", "labels", "stored_jobs"]

logger = logging.getLogger("penstock")
T = TypeVar("T")

DRAIN_LOOK_SECONDS: Final = 0.1


class SpawnOptions(TypedDict, total=False):
    """The arguments that `Queue.spawn` has in common with `Queue.submit`."""

    tags: Sequence[str] | Mapping[str, str]
    priority: Priority | int
    key: Key | str | Sequence[str] | None
    run_at: datetime | None
    delay: timedelta | float | None
    after: Sequence[str]
    after_any: Sequence[str]
    retry: RetryPolicy | UnsetType | None
    timeouts: Timeouts | UnsetType
    idempotency_key: str | None
    correlation_id: str | None
    callback_url: str | None
    held: bool


class Queue:
    """A durable queue over a store. Thread-safe. A queue with open streams maintains itself in the background.

    `penstock.connect(…)` makes one. A context manager that closes it.

    Args:
        backend: the store; the queue closes it with itself.

    Attributes:
        backend: the store.
    """

    def __init__(self, backend: Backend) -> None:
        if not isinstance(backend, Backend):
            raise InvalidArgumentError(
                f"backend must be a Backend, got {shown(backend)}", field="backend", value=backend
            )
        self.backend = backend
        self._bus = EventBus()
        self._emitter = Emitter(backend, self._bus)
        self._dispatcher = Dispatcher(backend, self._emitter.tell)
        self._lock = threading.Lock()
        self._closed = False
        self._drain_watch: threading.Event | None = None
        self._is_joined = False

    def __repr__(self) -> str:
        return f"<Queue {self.backend!r}>"

    @property
    def events(self) -> EventBus:
        """What happens to the jobs that go through this queue, as events, after each commit."""
        self._check_open()
        if self._is_joined:
            raise InvalidArgumentError(
                "a joined transaction tells no events: subscribe to the queue itself", field="connection"
            )
        return self._bus

    # -- streams ------------------------------------------------------------------------------------------------

    def stream_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        max_assigned_jobs: int = 1,
        *,
        types: Sequence[str] | None = None,
    ) -> JobStream:
        """Have jobs pushed to this consumer as they become eligible, up to its capacity.

        Every stream has a capacity of its own, also two streams of one assignee.

        Args:
            assignee_id: who takes the jobs.
            tags: only jobs that have all of these.
            max_assigned_jobs: how many may be with the consumer at a time; each report makes room for another.
            types: only these types; None is any.

        Raises:
            InvalidArgumentError: an empty assignee, a capacity below 1, tags that are no strings.
            QueueClosedError: the queue was closed.
        """
        checked = check_stream(assignee_id, tags, max_assigned_jobs, types)
        checkpoint()
        self._check_open()
        return self._dispatcher.open(*checked)

    def claim_jobs(
        self,
        assignee_id: str,
        limit: int = 1,
        *,
        tags: Sequence[str] = (),
        types: Sequence[str] | None = None,
        key: Key | str | None = None,
        job_ids: Sequence[str] | None = None,
    ) -> list[Job]:
        """Take jobs by hand, held by this process for as long as it lives; the filters are `Backend.dequeue_jobs`'s.

        For faces of the queue that pull instead of being pushed to.
        """
        self._check_open()
        owner = self._dispatcher.hold(types)
        jobs = self._run(
            self.backend.dequeue_jobs,
            assignee_id,
            tags,
            limit,
            types=types,
            key=key,
            job_ids=job_ids,
            owner=owner,
        )
        self._dispatcher.keep_alive(jobs)
        return jobs

    # -- submission ---------------------------------------------------------------------------------------------

    def submit(
        self,
        type: str,
        payload: object = None,
        *,
        tags: Sequence[str] | Mapping[str, str] = (),
        priority: Priority | int = Priority.NORMAL,
        key: Key | str | Sequence[str] | None = None,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        after: Sequence[str] = (),
        after_any: Sequence[str] = (),
        retry: RetryPolicy | UnsetType | None = UNSET,
        timeouts: Timeouts | UnsetType = UNSET,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        callback_url: str | None = None,
        parent_id: str | None = None,
        held: bool = False,
    ) -> Job:
        """Store a job with the formal model's defaults and return it as stored.

        Args:
            type: what to do.
            payload: bytes as they are; None is empty; anything else becomes JSON.
            tags: labels; a mapping becomes "key=value" labels.
            priority: 0 CRITICAL to 4 BULK.
            key: jobs of one key run one at a time, in order.
            run_at: not before this moment; or
            delay: not before this has passed.
            after: ids of jobs that must complete first.
            after_any: ids of jobs of which one must end first.
            retry: three attempts with exponential backoff unless given; None is for ever, at once.
            timeouts: 30 min of execution, 5 min of silence, 7 days of lifetime unless given.
            idempotency_key: the same key again (per type, for a day) gives back the job that has it.
            correlation_id: for tracing.
            callback_url: told how the job ended, by a worker or a `CallbackDelivery`; the queue itself calls nobody.
            parent_id: ancestry only.
            held: claimed only by its id.
        """
        job = self.new_job(
            type,
            payload,
            tags=tags,
            key=key,
            run_at=run_at,
            delay=delay,
            retry=retry,
            timeouts=timeouts,
            priority=priority,
            after=after,
            after_any=after_any,
            idempotency_key=idempotency_key,
            correlation_id=correlation_id,
            callback_url=callback_url,
            parent_id=parent_id,
            held=held,
        )
        return self._stored([job], [self.enqueue_job(job)])[0]

    def submit_many(self, requests: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Store many jobs, all or none; each request is a mapping of `submit`'s arguments."""
        if isinstance(requests, Mapping) or not isinstance(requests, Iterable):
            raise InvalidArgumentError(
                f"requests must be an iterable of mappings, got {shown(requests)}",
                field="requests",
                value=requests,
            )
        jobs = [self._requested_as(request) for request in requests]
        return self._stored(jobs, self.enqueue_jobs(jobs))

    def _stored(self, requests: Sequence[Job], ids: Sequence[str]) -> list[Job]:
        if not self._is_joined:
            return stored_jobs(self.backend, requests, ids)
        # Nothing is stored yet, and a read that fails spoils the transaction.
        found = self.backend.get_jobs(ids)
        return [found[job_id] for job_id in ids]

    def _requested_as(self, request: Mapping[str, Any]) -> Job:
        if not isinstance(request, Mapping) or "type" not in request:
            raise InvalidArgumentError(
                f"a request must be a mapping with a type, got {shown(request)}",
                field="requests",
                value=request,
            )
        try:
            return self.new_job(**request)
        except TypeError as error:
            raise InvalidArgumentError(
                f"a request is wrong: {error}", field="requests", value=request
            ) from None

    def new_job(
        self,
        /,
        type: str,
        payload: object = None,
        *,
        tags: Sequence[str] | Mapping[str, str] = (),
        key: Key | str | Sequence[str] | None = None,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        retry: RetryPolicy | UnsetType | None = UNSET,
        timeouts: Timeouts | UnsetType = UNSET,
        **fields: Any,
    ) -> Job:
        """Return the job that `submit` would store with these arguments, without storing it."""
        if delay is not None:
            if run_at is not None:
                raise InvalidArgumentError("give run_at or delay, not both", field="delay", value=delay)
            run_at = self.backend.now() + duration(delay, "delay")
        if payload is None:
            data = b""
        elif isinstance(payload, bytes | bytearray | memoryview):
            data = bytes(payload)
        else:
            data = encode_json(payload)
        return Job.new(
            type,
            data,
            tags=labels(tags) if isinstance(tags, Mapping) else tags,
            key=Key.of(key),
            run_at=run_at,
            retry=DEFAULT_RETRY if retry is UNSET else retry,
            timeouts=DEFAULT_TIMEOUTS if timeouts is UNSET else timeouts,
            **fields,
        )

    def enqueue_job(self, job: Job) -> str:
        """See `Backend.enqueue_job`."""
        if is_on():
            return send(
                [job], lambda jobs: self._run(self.backend.enqueue_job, jobs[0]), lambda job_id: [job_id]
            )
        return self._run(self.backend.enqueue_job, job)

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        """See `Backend.enqueue_jobs`."""
        return send(jobs, lambda jobs: self._run(self.backend.enqueue_jobs, jobs), _same)

    def enqueue_flow(self, flow: Flow) -> list[str]:
        """Store a tree of jobs in one transaction, children first, and return the ids in that order."""
        return self.enqueue_jobs(flatten(flow, max_depth=self.backend.max_depth))

    def spawn(self, parent: Job, type: str, payload: object = None, **request: Unpack[SpawnOptions]) -> Job:
        """Store a job on behalf of a running one: whatever waits for the parent waits for it too.

        See `Backend.spawn_jobs`.

        Args:
            parent: the running job, as it was delivered: its attempt is the fence.
            type: what to do.
            payload: as for `submit`.
            **request: `submit`'s other arguments.

        Raises:
            StaleAttemptError: that attempt is over.
        """
        if not isinstance(parent, Job):
            raise InvalidArgumentError(
                f"parent must be a Job, got {shown(parent)}", field="parent", value=parent
            )
        job = self._requested_as({**request, "type": type, "payload": payload})
        return self._stored([job], self.spawn_jobs(parent.id, [job], attempt=parent.attempt))[0]

    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        """See `Backend.spawn_jobs`."""
        return send(
            jobs, lambda jobs: self._run(self.backend.spawn_jobs, parent_id, jobs, attempt=attempt), _same
        )

    def joined(self, connection: object) -> Queue:
        """Return a queue whose submissions join a transaction of the caller's own. PostgreSQL only.

            with connection.transaction():
                connection.execute("INSERT INTO orders …")
                queue.joined(connection).submit("invoice", {"order": 7})

        The jobs are there if, and only if, the transaction is committed, and waiting workers are told then. A job with
        a key or dependencies holds that key and those jobs until the transaction ends, so keep it short. Only `submit`,
        `submit_many`, `enqueue_job`, `enqueue_jobs`, `enqueue_flow`, `get_job` and `get_jobs` are possible. The
        transaction must be READ COMMITTED.

        Args:
            connection: a `psycopg.Connection`, or a `Session`, `scoped_session` or `Connection` of SQLAlchemy whose
                engine is `postgresql+psycopg`, to the database of this queue; it need not be of the same user. Those
                of asyncio are for `penstock.aio`.

        Raises:
            InvalidArgumentError: not PostgreSQL, or a connection that cannot be joined; says what to pass.
        """
        self._check_open()
        joined = Queue(self.backend.joined(connection))
        joined._is_joined = True
        return joined

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
        retry_after: timedelta | float | None = None,
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
        retry_after: timedelta | float | None = None,
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

    # -- cancellation and holders -------------------------------------------------------------------------------

    def cancel_jobs(
        self, tags: Sequence[str] = (), job_ids: Sequence[str] = (), *, waiting_only: bool = False
    ) -> tuple[list[str], list[str]]:
        """See `Backend.cancel_jobs`."""
        return self._run(self.backend.cancel_jobs, tags, job_ids, waiting_only=waiting_only)

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

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """See `Backend.mark_worker_unresponsive`. Frees all slots of its streams."""
        self._run(self.backend.mark_worker_unresponsive, assignee_id)
        self._dispatcher.restore_lost(assignee_id)

    def reset_running_jobs(self) -> None:
        """See `Backend.reset_running_jobs`. Frees all slots of all streams."""
        self._run(self.backend.reset_running_jobs)
        self._dispatcher.restore_lost(None)

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        """See `Backend.heartbeat`."""
        return self._run(self.backend.heartbeat, assignee_id, jobs=jobs)

    def restart_job(self, job_id: str, assignee_id: str) -> Job:
        """See `Backend.restart_job`."""
        return self._run(self.backend.restart_job, job_id, assignee_id)

    # -- while running, changing, repeating ---------------------------------------------------------------------

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

    def get_output(self, job_id: str) -> str:
        """See `Backend.get_output`."""
        return self._run(self.backend.get_output, job_id)

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

    # -- reading and upkeep -------------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> Job:
        """See `Backend.get_job`."""
        return self._run(self.backend.get_job, job_id)

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """See `Backend.get_jobs`."""
        return self._run(self.backend.get_jobs, job_ids)

    def get_job_stats(self, tags: Sequence[str] = ()) -> JobStats:
        """See `Backend.get_job_stats`."""
        return self._run(self.backend.get_job_stats, tags)

    def overview(self) -> Overview:
        """See `Backend.overview`."""
        return self._run(self.backend.overview)

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

    def read_journal(self, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """See `Backend.read_journal`."""
        return self._run(self.backend.read_journal, after, limit)

    def job_history(self, job_id: str, limit: int = 1000) -> list[JournalEntry]:
        """See `Backend.job_history`."""
        return self._run(self.backend.job_history, job_id, limit)

    def maintain(self) -> Maintenance:
        """See `Backend.maintain`."""
        return self._run(self.backend.maintain)

    def cleanup_expired_jobs(self, ttl: timedelta) -> int:
        """See `Backend.cleanup_expired_jobs`."""
        return self._run(self.backend.cleanup_expired_jobs, ttl)

    def delete_jobs(self, tags: Sequence[str] = (), job_ids: Sequence[str] = ()) -> int:
        """See `Backend.delete_jobs`."""
        return self._run(self.backend.delete_jobs, tags, job_ids)

    # -- blocking -----------------------------------------------------------------------------------------------

    def block(self, on_drained: Callable[[], object] | None = None) -> None:
        """Accept no new jobs, in any process, until `unblock`. Retries and spawned jobs pass.

        Args:
            on_drained: called once, when nothing waits and nothing runs; at once if that is so already. May be a
                coroutine function. `unblock` drops it.
        """
        if on_drained is not None and not callable(on_drained):
            raise InvalidArgumentError(
                f"on_drained must be callable, got {shown(on_drained)}", field="on_drained", value=on_drained
            )
        self.set_blocked(True)
        if on_drained is not None:
            self._watch_drain(on_drained)

    def unblock(self) -> None:
        """Accept new jobs again."""
        self.set_blocked(False)

    def set_blocked(self, blocked: bool) -> None:
        """See `Backend.set_blocked`; `block` and `unblock` are its two sides."""
        self._run(self.backend.set_blocked, blocked)
        if not blocked:
            self._drop_drain_watch()
        self._tell_queue_event(EventKind.QUEUE_BLOCKED if blocked else EventKind.QUEUE_UNBLOCKED)

    def is_blocked(self) -> bool:
        """Whether new jobs are refused."""
        return self._run(self.backend.is_blocked)

    def is_drained(self) -> bool:
        """Whether nothing waits and nothing runs."""
        stats = self._run(self.backend.get_job_stats)
        return stats.total_jobs == stats.completed_jobs + stats.stopped_jobs

    def _watch_drain(self, on_drained: Callable[[], object]) -> None:
        self._drop_drain_watch()
        if self.is_drained():
            run_to_end(on_drained())
            return
        dropped = self._drain_watch = threading.Event()

        def watch() -> None:
            while not dropped.wait(DRAIN_LOOK_SECONDS):
                with contextlib.suppress(PenstockError):
                    if self.is_drained():
                        if not dropped.is_set():
                            dropped.set()
                            _call(on_drained)
                        return

        threading.Thread(target=watch, name="penstock-drain", daemon=True).start()

    def _drop_drain_watch(self) -> None:
        watch, self._drain_watch = self._drain_watch, None
        if watch is not None:
            watch.set()

    def _tell_queue_event(self, kind: EventKind) -> None:
        self._emitter.add(Event(kind=kind, at=self.backend.now()))
        self._emitter.tell()

    # -- ending -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all streams, give back what was not taken, close the store. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drop_drain_watch()
        self._emitter.close()
        with contextlib.ExitStack() as steps:  # from the last to the first; each is taken, whichever fails
            steps.callback(self.backend.close)
            steps.callback(self._emitter.stop)
            steps.callback(self._dispatcher.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- shared -------------------------------------------------------------------------------------------------

    def _run(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a verb of the store and tell what it did."""
        self._check_open()
        try:
            return verb(*args, **kwargs)
        finally:
            self._emitter.tell()

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError("the queue is closed; open a new one")
        self._emitter.attend()  # in a child of a fork, nobody listens yet


def stored_jobs(backend: Backend, requests: Sequence[Job], ids: Sequence[str]) -> list[Job]:
    """Return jobs that were just stored under these ids, as they are now.

    They are stored: whoever is told otherwise would submit them again. So no scope ends this, and if the store cannot
    answer, or somebody has deleted a job since, the request itself is the answer.
    """
    found: dict[str, Job] = {}
    try:
        with shielded():
            found = backend.get_jobs(ids)
    except PenstockError as error:
        logger.warning("jobs were stored, but could not be read: %s", error)
    return [
        found.get(job_id) or msgspec.structs.replace(request, id=job_id)
        for request, job_id in zip(requests, ids, strict=True)
    ]


def _same(ids: list[str]) -> list[str]:
    return ids


def _call(on_drained: Callable[[], object]) -> None:
    try:
        run_to_end(on_drained())
    except Exception:  # nobody is there to catch it
        logger.exception("the callback of a drained queue failed")


def labels(tags: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """Return tags as they are stored; a mapping becomes "key=value" labels."""
    if not isinstance(tags, Mapping):
        return distinct("tags", tags)
    found = []
    for name, value in tags.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"tags must map strings to strings, got {shown((name, value))}", field="tags", value=name
            )
        found.append(f"{name.replace(chr(92), chr(92) * 2).replace('=', chr(92) + '=')}={value}")
    return tuple(found)
