"""The queue for asyncio: the same verbs, awaited, and never a blocked loop.

    async with penstock.aio.connect("sqlite:///jobs.db") as queue:
        await queue.submit("resize", {"image": "cat.png"})
        async with queue.stream_jobs("worker-1", max_assigned_jobs=10) as stream:
            async for batch in stream:
                ...

There is one implementation, `penstock.Queue`. Each verb here runs that of the same name on a thread of the queue's own
pool; `_awaited` makes the one out of the other with its signature, so that editors and type checkers see the arguments.
The pool is not the loop's default one: calls wait for commits, and calls that wait at the same time share one commit.

Cancelling a task that awaits a verb withdraws the call if its transaction has not begun; if it has, the task waits for the
commit and is cancelled then. So no call is in progress after its task was cancelled. Jobs that a cancelled `claim_jobs`
had already claimed are released.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, Self, TypeVar

from penstock.app.gathering import as_completed_async as as_completed
from penstock.app.gathering import gather_async as gather
from penstock.backends import Awaited
from penstock.backends.contract.joined import absent
from penstock.clock import Clock
from penstock.errors import QueueClosedError
from penstock.events import Event, EventBus, EventKind, Subscriber
from penstock.job import Job, Key
from penstock.queue import Queue, Submitter
from penstock.queue import connect as connect_now
from penstock.queue.emitter import is_emitting
from penstock.queue.stream import JobStream, check_stream
from penstock.scope import CancelScope

__all__ = [
    "AsyncEvents",
    "AsyncJobStream",
    "AsyncQueue",
    "AsyncSubmitter",
    "as_completed",
    "connect",
    "gather",
]

P = ParamSpec("P")
T = TypeVar("T")

#: Enough calls at a time to fill a group commit; more would only wait in the store instead of here.
#: Jobs that `iter_jobs` reads at a time.
_PORTION: Final = 200
THREADS: Final = 32
LOOP_POLL_SECONDS: Final = 1.0  # a loop that has ended never answers, so waits check for that


class Threads:
    """Runs calls on a few threads, each with its caller's context and a way to withdraw it.

    Subscribers have a pool of their own: every thread of the other pool may be waiting for them.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-aio")
        self._subscribers = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-aio-subscriber")

    async def run(self, call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Return what `call` returns.

        Args:
            call: what may block.
            undo: called, on a thread, with the outcome of a call that could not be withdrawn any more.
        """
        scope = CancelScope()

        def inside() -> T:
            with scope:
                return call()

        future = self._submit(contextvars.copy_context().run, inside)
        outcome = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(outcome)
        except asyncio.CancelledError:
            scope.cancel()
            if not future.cancel() and await _ended(outcome) and undo is not None:
                await _ended(asyncio.wrap_future(self._submit(undo, outcome.result())))
            raise

    def _submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        try:
            return (self._subscribers if is_emitting() else self._executor).submit(call, *args)
        except RuntimeError:
            raise QueueClosedError("the queue is closed; open a new one") from None

    def stop(self) -> None:
        # No wait for the threads: callers await the calls themselves, and this may run on one of the threads.
        self._executor.shutdown(wait=False)
        self._subscribers.shutdown(wait=False)


async def _ended(outcome: asyncio.Future[Any]) -> bool:
    """Wait for a call that can no longer be withdrawn; return whether it succeeded."""
    while not outcome.done():
        try:
            await asyncio.wait([outcome])
        except asyncio.CancelledError:
            continue  # already being cancelled; the store's own time limits bound the wait
    return not outcome.cancelled() and outcome.exception() is None


def _awaited(
    verb: Callable[Concatenate[Any, P], T], *, undo: Callable[[Any, T], object] | None = None
) -> Callable[Concatenate[AsyncSubmitter, P], Coroutine[Any, Any, T]]:
    """Make a verb of `AsyncQueue` or `AsyncSubmitter` out of that of `Queue` or `Submitter`."""

    @functools.wraps(verb)
    async def awaited(self: AsyncSubmitter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        queue = self.queue
        return await self._threads.run(
            functools.partial(verb, queue, *args, **kwargs),
            None if undo is None else functools.partial(undo, queue),
        )

    return awaited


def _hand_back(queue: Queue, jobs: list[Job]) -> None:
    if jobs:
        queue.release_jobs(
            {job.id: "the claim was cancelled" for job in jobs},
            attempts={job.id: job.attempt for job in jobs},
        )


class AsyncSubmitter:
    """`penstock.Submitter` with verbs to await; `AsyncQueue.joined` makes it."""

    #: Submits on a thread.
    queue: Submitter

    def __init__(self, queue: Submitter, threads: Threads | None = None) -> None:
        self.queue = queue
        self._owns_threads = threads is None
        self._threads = threads or Threads()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue.backend!r}>"

    if not TYPE_CHECKING:  # a checker shall see that the other verbs of a queue are missing

        def __getattr__(self, name: str) -> NoReturn:
            raise absent(self, name, object if isinstance(self, AsyncQueue) else AsyncQueue)

    submit = _awaited(Submitter.submit)
    submit_many = _awaited(Submitter.submit_many)
    new_job = _awaited(Submitter.new_job)
    enqueue_job = _awaited(Submitter.enqueue_job)
    enqueue_jobs = _awaited(Submitter.enqueue_jobs)
    enqueue_flow = _awaited(Submitter.enqueue_flow)
    get_job = _awaited(Submitter.get_job)
    get_jobs = _awaited(Submitter.get_jobs)

    async def close(self) -> None:
        """See `Queue.close`."""
        has_begun = False

        def close() -> None:
            nonlocal has_begun
            has_begun = True
            self.queue.close()

        try:
            await self._threads.run(close)
        except QueueClosedError:
            return  # closed before
        finally:
            if has_begun and self._owns_threads:  # a call that is cancelled later than that has closed it
                self._threads.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncQueue(AsyncSubmitter):
    """`penstock.Queue` with verbs to await. Made by `penstock.aio.connect`; usable from any task of one loop."""

    #: The queue beneath, for threads and for what needs no waiting.
    queue: Queue

    def __init__(self, queue: Queue, threads: Threads | None = None) -> None:
        super().__init__(queue, threads)
        self._events = AsyncEvents(queue)

    @property
    def events(self) -> AsyncEvents:
        """The events of the jobs of this queue; see `Queue.events`."""
        return self._events

    def stream_jobs(
        self,
        assignee_id: str,
        tags: Sequence[str] = (),
        max_assigned_jobs: int = 1,
        *,
        types: Sequence[str] | None = None,
    ) -> AsyncJobStream:
        """See `Queue.stream_jobs`. It opens when it is entered or first asked for jobs."""
        who, wanted, capacity, kinds = check_stream(assignee_id, tags, max_assigned_jobs, types)
        return AsyncJobStream(
            self._threads, lambda: self.queue.stream_jobs(who, wanted, capacity, types=kinds)
        )

    def joined(self, connection: object) -> AsyncSubmitter:
        """Return a submitter of jobs inside the caller's own transaction; see `Queue.joined`. PostgreSQL only.

            async with session.begin():
                session.add(order)
                await queue.joined(session).submit("invoice", {"order": 7})

        Args:
            connection: a `psycopg.AsyncConnection`, or an `AsyncSession` or `AsyncConnection` of SQLAlchemy whose engine
                is `postgresql+psycopg`; also what `Queue.joined` takes, which is then used on a thread.

        Raises:
            InvalidArgumentError: not PostgreSQL, or a connection that cannot be joined; says what to pass.
        """
        awaited = Awaited(connection, functools.partial(wait_for, _here()))
        return AsyncSubmitter(self.queue.joined(awaited), self._threads)

    async def iter_jobs(
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
    ) -> AsyncIterator[Job]:
        """See `Queue.iter_jobs`: `async for job in await queue.iter_jobs(type="resize")`."""
        jobs = self.queue.iter_jobs(
            status=status,
            type=type,
            tags=tags,
            key=key,
            since=since,
            until=until,
            error=error,
            newest=newest,
        )
        return self._iterated(jobs)

    async def _iterated(self, jobs: Iterator[Job]) -> AsyncIterator[Job]:
        while portion := await self._threads.run(lambda: list(itertools.islice(jobs, _PORTION))):
            for job in portion:
                yield job

    async def block(self, on_drained: Callable[[], object] | None = None) -> None:
        """See `Queue.block`. The callback is called in this loop and may be a coroutine function."""
        if not callable(on_drained):  # None, or what the queue refuses
            return await self._threads.run(lambda: self.queue.block(on_drained))
        callback = functools.partial(_call_in, _here(), on_drained)
        return await self._threads.run(lambda: self.queue.block(callback))

    claim_jobs = _awaited(Queue.claim_jobs, undo=_hand_back)

    spawn = _awaited(Queue.spawn)
    spawn_jobs = _awaited(Queue.spawn_jobs)

    complete_job = _awaited(Queue.complete_job)
    complete_jobs = _awaited(Queue.complete_jobs)
    fail_job = _awaited(Queue.fail_job)
    fail_jobs = _awaited(Queue.fail_jobs)
    stop_job = _awaited(Queue.stop_job)
    stop_jobs = _awaited(Queue.stop_jobs)
    stop_job_with_retry = _awaited(Queue.stop_job_with_retry)
    stop_jobs_with_retry = _awaited(Queue.stop_jobs_with_retry)
    mark_job_unknown_stopped = _awaited(Queue.mark_job_unknown_stopped)
    mark_jobs_unknown_stopped = _awaited(Queue.mark_jobs_unknown_stopped)
    update_job_status = _awaited(Queue.update_job_status)
    release_jobs = _awaited(Queue.release_jobs)

    cancel_jobs = _awaited(Queue.cancel_jobs)
    acknowledge_cancellation = _awaited(Queue.acknowledge_cancellation)
    acknowledge_cancellations = _awaited(Queue.acknowledge_cancellations)
    mark_worker_unresponsive = _awaited(Queue.mark_worker_unresponsive)
    reset_running_jobs = _awaited(Queue.reset_running_jobs)
    heartbeat = _awaited(Queue.heartbeat)
    restart_job = _awaited(Queue.restart_job)

    save_progress = _awaited(Queue.save_progress)
    save_checkpoint = _awaited(Queue.save_checkpoint)
    save_output = _awaited(Queue.save_output)
    get_output = _awaited(Queue.get_output)
    update_job = _awaited(Queue.update_job)
    redrive_jobs = _awaited(Queue.redrive_jobs)

    get_job_stats = _awaited(Queue.get_job_stats)
    overview = _awaited(Queue.overview)
    list_jobs = _awaited(Queue.list_jobs)
    count_jobs = _awaited(Queue.count_jobs)
    select_jobs = _awaited(Queue.select_jobs)
    find_ids = _awaited(Queue.find_ids)
    read_journal = _awaited(Queue.read_journal)
    job_history = _awaited(Queue.job_history)
    maintain = _awaited(Queue.maintain)
    cleanup_expired_jobs = _awaited(Queue.cleanup_expired_jobs)
    delete_jobs = _awaited(Queue.delete_jobs)

    unblock = _awaited(Queue.unblock)
    set_blocked = _awaited(Queue.set_blocked)
    is_blocked = _awaited(Queue.is_blocked)
    is_drained = _awaited(Queue.is_drained)


class AsyncJobStream:
    """A `JobStream` to iterate with `async for`; see there."""

    def __init__(self, threads: Threads, open_stream: Callable[[], JobStream]) -> None:
        self._threads = threads
        self._open = open_stream
        self._opening = asyncio.Lock()
        self._stream: JobStream | None = None
        self._closed = False

    def __repr__(self) -> str:
        return "<AsyncJobStream not open yet>" if self._stream is None else f"<Async{repr(self._stream)[1:]}"

    @property
    def stream(self) -> JobStream | None:
        """The stream beneath, once it is open."""
        return self._stream

    @property
    def free(self) -> int:
        """See `JobStream.free`; 0 while it is not open yet."""
        return 0 if self._stream is None else self._stream.free

    @property
    def is_open(self) -> bool:
        """Whether jobs may still come."""
        return self._stream is not None and self._stream.is_open

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Job]:
        stream = await self._opened()
        if stream is None:
            raise StopAsyncIteration
        return await anext(stream)

    async def close(self) -> None:
        """End the stream; jobs not yet returned are released when this returns. Idempotent."""
        self._closed = True
        async with self._opening:
            stream = self._stream
        if stream is not None:
            await self._threads.run(stream.close)

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _opened(self) -> JobStream | None:
        """Return the stream, which the first caller opens; None if it was closed before that."""
        if self._stream is None and not self._closed:
            async with self._opening:
                if self._stream is None and not self._closed:
                    # If this call is cancelled, the undo closes the stream that no caller would have.
                    self._stream = await self._threads.run(self._open, lambda stream: stream.close())
        return self._stream


class AsyncEvents:
    """Subscriptions whose subscribers run in the loop that subscribed, plain functions and coroutine functions alike."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def subscribe(self, kind: EventKind, subscriber: Subscriber) -> Callable[[], None]:
        """See `EventBus.subscribe`. The verb that caused an event returns after its subscribers have."""
        if not callable(subscriber):
            return self._bus.subscribe(kind, subscriber)  # which refuses it
        loop = _here()

        def emit(event: Event) -> None:
            _call_in(loop, subscriber, event)

        return self._bus.subscribe(kind, emit)

    @property
    def _bus(self) -> EventBus:
        return self._queue.events


def _here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call a function in a loop from another thread, to its end, with this thread's context."""

    async def run() -> None:
        outcome = call(*args)
        if inspect.isawaitable(outcome):
            await outcome

    if loop.is_closed():
        return  # the subscriber's loop has ended
    called = asyncio.run_coroutine_threadsafe(run(), loop)
    if _is_running_here(loop):
        return  # to wait for the loop here would stop it
    while not wait([called], LOOP_POLL_SECONDS).done:
        if not loop.is_running():
            return
    called.result()


def wait_for(loop: asyncio.AbstractEventLoop, awaitable: Awaitable[T]) -> T:
    """Wait on a thread for a future of the loop."""

    async def run() -> T:
        return await awaitable

    outcome = asyncio.run_coroutine_threadsafe(run(), loop)
    while not wait([outcome], LOOP_POLL_SECONDS).done:
        if not loop.is_running():
            raise QueueClosedError("the event loop has ended, so its connection answers no more")
    return outcome.result()


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class _Connection:
    """A queue being opened: await it, or enter it."""

    def __init__(self, open_queue: Callable[[], Queue]) -> None:
        self._open = open_queue
        self._opened: AsyncQueue | None = None

    async def _connect(self) -> AsyncQueue:
        opening = Threads()
        try:
            return AsyncQueue(await opening.run(self._open, lambda queue: queue.close()))
        finally:
            opening.stop()

    def __await__(self) -> Generator[Any, None, AsyncQueue]:
        return self._connect().__await__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the queue is not open yet, so it has no {name!r}: use `async with penstock.aio.connect(…) as queue`"
            " or `queue = await penstock.aio.connect(…)`"
        )

    async def __aenter__(self) -> AsyncQueue:
        self._opened = await self._connect()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


def connect(url: str | None = None, *, clock: Clock | None = None, **options: Any) -> _Connection:
    """Open a queue for asyncio, by `await` or `async with`; the arguments are those of `penstock.connect`."""
    return _Connection(functools.partial(connect_now, url, clock=clock, **options))
