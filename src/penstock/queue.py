"""The queue people use: the store's verbs, plus streams, submission with defaults, events, flows and blocking.

Verbs mean what they mean on the `Backend`; those that report return None, because the queue itself keeps track of the
slots they free.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, Unpack

from penstock._dispatcher import Dispatcher
from penstock._draining import DrainWatch
from penstock._json import encode_json
from penstock._requests import SpawnOptions, labels, stored_jobs
from penstock._tracing import is_on, send
from penstock._verbs import StoreVerbs
from penstock.backends.base import UNSET, Backend, UnsetType
from penstock.errors import InvalidArgumentError, shown
from penstock.events import Event, EventBus, EventKind
from penstock.flow import Flow, flatten
from penstock.job import Job, Key, Priority
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, duration
from penstock.scope import checkpoint, shielded
from penstock.stream import JobStream, check_stream

__all__ = ["Queue"]


class Queue(StoreVerbs):
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
        super().__init__(backend)
        self._dispatcher = Dispatcher(backend, self._emitter.tell)
        self._lock = threading.Lock()
        self._drain_watch = DrainWatch()
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
        self._dispatcher.presence.keep_alive(jobs)
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

    # -- holders that lost their jobs -------------------------------------------------------------------------------

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """See `Backend.mark_worker_unresponsive`. Frees all slots of its streams."""
        self._run(self.backend.mark_worker_unresponsive, assignee_id)
        self._dispatcher.restore_lost(assignee_id)

    def reset_running_jobs(self) -> None:
        """See `Backend.reset_running_jobs`. Frees all slots of all streams."""
        self._run(self.backend.reset_running_jobs)
        self._dispatcher.restore_lost(None)

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
            self._drain_watch.start(self.is_drained, on_drained)

    def unblock(self) -> None:
        """Accept new jobs again."""
        self.set_blocked(False)

    def set_blocked(self, blocked: bool) -> None:
        """See `Backend.set_blocked`; `block` and `unblock` are its two sides."""
        self._run(self.backend.set_blocked, blocked)
        if not blocked:
            self._drain_watch.drop()
        self._tell_queue_event(EventKind.QUEUE_BLOCKED if blocked else EventKind.QUEUE_UNBLOCKED)

    def is_blocked(self) -> bool:
        """Whether new jobs are refused."""
        return self._run(self.backend.is_blocked)

    def is_drained(self) -> bool:
        """Whether nothing waits and nothing runs."""
        stats = self._run(self.backend.get_job_stats)
        return stats.total_jobs == stats.completed_jobs + stats.stopped_jobs

    def _tell_queue_event(self, kind: EventKind) -> None:
        with shielded():  # it is done: whoever is told that the time is over would do it again
            at = self.backend.now()
        self._emitter.add(Event(kind=kind, at=at))
        self._emitter.tell()

    # -- ending -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all streams, give back what was not taken, close the store. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drain_watch.drop()
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


def _same(ids: list[str]) -> list[str]:
    return ids
