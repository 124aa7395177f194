"""The queue: the store's verbs, plus streams, submission with defaults, events, flows and blocking.

Verbs are those of the `Backend`; those that report return None, because the queue itself keeps track of the
slots they free.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from penstock.backends import Backend, JoinedBackend
from penstock.backends.contract.backend import read_stored
from penstock.backends.contract.joined import absent
from penstock.errors import (
    InvalidArgumentError,
    PenstockError,
    QueueClosedError,
    ReportErrors,
    StaleAttemptError,
    shown,
)
from penstock.events import Event, EventBus, EventKind
from penstock.job import Job, Key
from penstock.queue._dispatcher import Dispatcher
from penstock.queue._draining import DrainWatch
from penstock.queue._verbs import StoreVerbs
from penstock.queue.emitter import Emitter
from penstock.queue.flow import Flow, flatten
from penstock.queue.requests import (
    SubmitOptions,
    job_of,
    shows_options,
    warn_of_duplicates,
    warn_of_other_payloads,
)
from penstock.queue.stream import JobStream, check_claim, check_stream
from penstock.scope import checkpoint, shielded
from penstock.tracing import MODULE as TRACING
from penstock.tracing import send

T = TypeVar("T")

__all__ = ["Queue", "Submitter"]


class Submitter:
    """Submits jobs inside the caller's own transaction, and does nothing else; `Queue.joined` makes it.

    A context manager that closes it. Closing it leaves the connection, the transaction and the queue as they are.

    Args:
        backend: the verbs that join the transaction.

    Attributes:
        backend: the verbs that join the transaction.
    """

    backend: JoinedBackend

    def __init__(self, backend: JoinedBackend) -> None:
        self.backend = backend
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.backend!r}>"

    def _run(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a verb of the store."""
        self._check_open()
        return verb(*args, **kwargs)

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError("the queue is closed; open a new one")

    if not TYPE_CHECKING:  # a checker shall see that the other verbs of a queue are missing

        def __getattr__(self, name: str) -> NoReturn:
            raise absent(self, name, object if isinstance(self, Queue) else Queue)

    # -- submission ---------------------------------------------------------------------------------------------

    @shows_options
    def submit(self, type: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Job:
        """Store a job with the formal model's defaults and return it as stored.

        Args:
            type: the job's type.
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
            idempotency_key: a submission whose key another job has (per type, for a day) returns that job; a warning
                is logged if its payload differs.
            unique: "while_unfinished": the key is reserved until the job has ended.
            correlation_id: for tracing.
            callback_url: a worker or a `CallbackDelivery` posts the job's end to it; the queue itself does not.
            parent_id: ancestry only.
            held: claimed only by its id.
        """
        return self._submit([job_of(self.backend.now, type, payload, **options)])[0]

    def submit_many(self, requests: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Store many jobs, all or none; each request is a mapping of `submit`'s arguments."""
        if isinstance(requests, Mapping) or not isinstance(requests, Iterable):
            raise InvalidArgumentError(
                f"requests must be an iterable of mappings, got {shown(requests)}",
                field="requests",
                value=requests,
            )
        return self._submit([self._requested_as(request) for request in requests])

    def _submit(self, jobs: Sequence[Job]) -> list[Job]:
        """Store jobs and return them as stored."""
        stored: list[Job]
        if TRACING in sys.modules:
            stored = send(
                jobs,
                lambda marked: self._run(self.backend.submit_jobs, marked),
                lambda found: [job.id for job in found],
            )
        else:
            stored = self._run(self.backend.submit_jobs, jobs)
        warn_of_other_payloads(jobs, stored)
        return stored

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

    @shows_options
    def new_job(self, /, type: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Job:
        """Return the job that `submit` would store with these arguments, without storing it."""
        return job_of(self.backend.now, type, payload, **options)

    def enqueue_job(self, job: Job) -> str:
        """See `Backend.enqueue_job`."""
        if TRACING in sys.modules:
            job_id = send(
                [job], lambda jobs: self._run(self.backend.enqueue_job, jobs[0]), lambda job_id: [job_id]
            )
        else:
            job_id = self._run(self.backend.enqueue_job, job)
        if job_id != job.id:
            warn_of_duplicates(self.backend, [job], [job_id])
        return job_id

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        """See `Backend.enqueue_jobs`."""
        ids = send(jobs, lambda jobs: self._run(self.backend.enqueue_jobs, jobs), _same)
        if isinstance(jobs, list | tuple):  # an iterator is gone by now
            warn_of_duplicates(self.backend, jobs, ids)
        return ids

    def enqueue_flow(self, flow: Flow) -> list[str]:
        """Store a tree of jobs in one transaction, children first, and return the ids in that order."""
        return self.enqueue_jobs(flatten(flow, max_depth=self.backend.options.max_depth))

    def get_job(self, job_id: str) -> Job:
        """See `Backend.get_job`."""
        return self._run(self.backend.get_job, job_id)

    def get_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """See `Backend.get_jobs`."""
        return self._run(self.backend.get_jobs, job_ids)

    def close(self) -> None:
        """Refuse further calls. Idempotent."""
        self._closed = True
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Queue(Submitter, StoreVerbs):
    """A durable queue over a store. Thread-safe. A queue with open streams maintains itself in the background.

    `penstock.connect(…)` makes one. A context manager that closes it.

    Args:
        backend: the store; the queue closes it with itself.

    Attributes:
        backend: the store.
    """

    backend: Backend

    def __init__(self, backend: Backend) -> None:
        if not isinstance(backend, Backend):
            raise InvalidArgumentError(
                f"backend must be a Backend, got {shown(backend)}", field="backend", value=backend
            )
        super().__init__(backend)
        self._bus = EventBus()
        self._emitter = Emitter(backend, self._bus)
        self._dispatcher = Dispatcher(backend, self._emitter.emit_pending)
        self._lock = threading.Lock()
        self._drain_watch = DrainWatch()

    def __repr__(self) -> str:
        return f"<Queue {self.backend!r}>"

    def _run(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a verb of the store and emit its events."""
        emitter = self._emitter
        if self._closed or emitter.lost_listener:
            self._check_open()
        try:
            return verb(*args, **kwargs)
        except (StaleAttemptError, ReportErrors) as error:
            self._note_refused(error)
            raise
        finally:
            if emitter.pending or emitter.is_emitting:
                emitter.emit_pending()

    def _note_refused(self, error: StaleAttemptError | ReportErrors) -> None:
        """Free the slots of attempts whose reports came too late."""
        with contextlib.suppress(PenstockError):  # what the caller gets is the refusal
            for late in [error] if isinstance(error, StaleAttemptError) else error.exceptions:
                if isinstance(late, StaleAttemptError):
                    self._dispatcher.note_refused(late.job_id, late.attempt)

    def _check_open(self) -> None:
        super()._check_open()
        if self._emitter.lost_listener:
            self._emitter.follow_subscribers()

    @property
    def events(self) -> EventBus:
        """The events of the jobs of this queue, emitted after each commit."""
        self._check_open()
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
        """Open a stream that delivers jobs to this consumer as they become eligible, up to its capacity.

        Every stream has a capacity of its own, also two streams of one assignee.

        Args:
            assignee_id: the consumer's name in the store.
            tags: only jobs that have all of these.
            max_assigned_jobs: how many jobs the consumer may hold at a time; each report frees a slot.
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
        """Claim jobs by hand, held by this process for as long as it lives; the filters are `Backend.dequeue_jobs`'s.

        For consumers that poll instead of reading a stream.

        Raises:
            InvalidArgumentError: an argument is wrong; nothing was claimed or recorded.
        """
        wanted = check_claim(assignee_id, tags, limit, types, key, job_ids)
        self._check_open()
        if self._dispatcher.is_withheld(wanted.assignee_id):
            self.heartbeat(wanted.assignee_id)
        owner = self._dispatcher.hold(wanted.types)
        jobs = self._run(
            self.backend.dequeue_jobs,
            wanted.assignee_id,
            wanted.tags,
            wanted.limit,
            types=wanted.types,
            key=wanted.key,
            job_ids=wanted.job_ids,
            owner=owner,
        )
        self._dispatcher.owner.hold(jobs)
        return jobs

    # -- submission ---------------------------------------------------------------------------------------------

    def spawn(self, parent: Job, type: str, payload: object = None, **request: Unpack[SubmitOptions]) -> Job:
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
        ids = self.spawn_jobs(parent.id, [job], attempt=parent.attempt)
        return read_stored(self.backend, [job], ids)[0]

    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        """See `Backend.spawn_jobs`."""
        ids = send(
            jobs, lambda jobs: self._run(self.backend.spawn_jobs, parent_id, jobs, attempt=attempt), _same
        )
        if isinstance(jobs, list | tuple):
            warn_of_duplicates(self.backend, jobs, ids)
        return ids

    def joined(self, connection: object) -> Submitter:
        """Return a submitter of jobs inside the caller's own transaction. PostgreSQL only.

            with connection.transaction():
                connection.execute("INSERT INTO orders …")
                queue.joined(connection).submit("invoice", {"order": 7})

        The jobs are stored if, and only if, the transaction commits; waiting workers are notified then. A job with
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
        return Submitter(self.backend.joined(connection))

    # -- holders that lost their jobs -------------------------------------------------------------------------------

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        """See `Backend.mark_worker_unresponsive`. Frees all slots of its streams.

        Its streams, of this process or another, get nothing until it gives a sign of life: a report on one of these jobs,
        a `heartbeat`, a claim by hand or a new stream. Other streams are served.
        """
        self._run(self.backend.mark_worker_unresponsive, assignee_id)
        self._dispatcher.withhold(assignee_id)

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        """See `Backend.heartbeat`."""
        held = super().heartbeat(assignee_id, jobs=jobs)
        self._dispatcher.revive(assignee_id)
        return held

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
        self._emit_queue_event(EventKind.QUEUE_BLOCKED if blocked else EventKind.QUEUE_UNBLOCKED)

    def is_blocked(self) -> bool:
        """Whether new jobs are refused."""
        return self._run(self.backend.is_blocked)

    def is_drained(self) -> bool:
        """Whether nothing waits and nothing runs."""
        stats = self._run(self.backend.get_job_stats)
        return stats.total_jobs == stats.completed_jobs + stats.stopped_jobs

    def _emit_queue_event(self, kind: EventKind) -> None:
        with shielded():  # it is committed: a caller that got a timeout here would repeat it
            at = self.backend.now()
        self._emitter.add(Event(kind=kind, at=at))
        self._emitter.emit_pending()

    # -- ending -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all streams, release jobs not yet returned, close the store. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drain_watch.drop()
        self._emitter.close()
        with contextlib.ExitStack() as steps:  # run from the last to the first, even if one fails
            steps.callback(self.backend.close)
            steps.callback(self._emitter.stop)
            steps.callback(self._dispatcher.stop)


def _same(ids: list[str]) -> list[str]:
    return ids
