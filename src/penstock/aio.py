"""The queue for asyncio: the same verbs, awaited, and never a blocked loop.

    async with penstock.aio.connect("sqlite:///jobs.db") as queue:
        await queue.submit("resize", {"image": "cat.png"})
        async with queue.stream_jobs("worker-1", max_assigned_jobs=10) as stream:
            async for batch in stream:
                ...

There is one implementation, `penstock.Queue`. Each verb here runs that of the same name on a thread of the queue's own
pool; `_awaited` makes the one out of the other with its signature, so that editors and type checkers see the arguments.
A pool, not the loop's default one: calls wait for commits, and calls that wait together share one.

Cancelling a task that awaits a verb withdraws the call if its transaction has not begun; if it has, the task waits for the
commit and is cancelled then. So nothing goes on behind the back of a cancelled task. Jobs that a cancelled `claim_jobs`
had already claimed are handed back.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from penstock._emitter import is_telling
from penstock.backends.base import Awaited
from penstock.clock import Clock
from penstock.connection import connect as connect_now
from penstock.errors import QueueClosedError
from penstock.events import Event, EventBus, EventKind, Subscriber
from penstock.job import Job
from penstock.queue import Queue
from penstock.scope import CancelScope
from penstock.stream import JobStream, check_stream

__all__ = ["AsyncEvents", "AsyncJobStream", "AsyncQueue", "connect"]

P = ParamSpec("P")
T = TypeVar("T")

#: Enough calls at a time to fill a group commit; more would only wait in the store instead of here.
THREADS: Final = 32
LOOP_LOOK_SECONDS: Final = 1.0  # a loop that has ended answers no more


class Threads:
    """Runs calls on a few threads, each with its caller's context and a way to withdraw it.

    Calls of subscribers have threads of their own: those of the others may all be waiting for these subscribers.
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
            return (self._subscribers if is_telling() else self._executor).submit(call, *args)
        except RuntimeError:
            raise QueueClosedError("the queue is closed; open a new one") from None

    def stop(self) -> None:
        # Not waited for here: whoever awaits a call gets its outcome, and this may be one of the threads.
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
    verb: Callable[Concatenate[Queue, P], T], *, undo: Callable[[Queue, T], object] | None = None
) -> Callable[Concatenate[AsyncQueue, P], Coroutine[Any, Any, T]]:
    """Make a verb of `AsyncQueue` out of that of `Queue`."""

    @functools.wraps(verb)
    async def awaited(self: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
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


class AsyncQueue:
    """`penstock.Queue` with verbs to await. Made by `penstock.aio.connect`; usable from any task of one loop."""

    def __init__(self, queue: Queue, threads: Threads | None = None) -> None:
        #: The queue beneath, for threads and for what needs no waiting.
        self.queue = queue
        self._owns_threads = threads is None
        self._threads = threads or Threads()
        self._events = AsyncEvents(queue)

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.queue.backend!r}>"

    @property
    def events(self) -> AsyncEvents:
        """What happens to the jobs that go through this queue; see `Queue.events`."""
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

    def joined(self, connection: object) -> AsyncQueue:
        """Return a queue whose submissions join a transaction of the caller's own; see `Queue.joined`. PostgreSQL only.

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
        return AsyncQueue(self.queue.joined(awaited), self._threads)

    async def block(self, on_drained: Callable[[], object] | None = None) -> None:
        """See `Queue.block`. The callback is called in this loop and may be a coroutine function."""
        if not callable(on_drained):  # None, or what the queue refuses
            return await self._threads.run(lambda: self.queue.block(on_drained))
        callback = functools.partial(_call_in, _here(), on_drained)
        return await self._threads.run(lambda: self.queue.block(callback))

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
            if has_begun and self._owns_threads:  # whoever is cancelled later than that has closed it
                self._threads.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    claim_jobs = _awaited(Queue.claim_jobs, undo=_hand_back)

    submit = _awaited(Queue.submit)
    submit_many = _awaited(Queue.submit_many)
    new_job = _awaited(Queue.new_job)
    enqueue_job = _awaited(Queue.enqueue_job)
    enqueue_jobs = _awaited(Queue.enqueue_jobs)
    enqueue_flow = _awaited(Queue.enqueue_flow)
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

    get_job = _awaited(Queue.get_job)
    get_jobs = _awaited(Queue.get_jobs)
    get_job_stats = _awaited(Queue.get_job_stats)
    overview = _awaited(Queue.overview)
    list_jobs = _awaited(Queue.list_jobs)
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
        """End the stream; jobs not taken are back in the store when this returns. Once or often."""
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
                    # A stream that nobody will close must not stay open: hence the undo.
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

        def tell(event: Event) -> None:
            _call_in(loop, subscriber, event)

        return self._bus.subscribe(kind, tell)

    @property
    def _bus(self) -> EventBus:
        return self._queue.events


def _here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call a function of the loop's from another thread, to its end, with this thread's context."""

    async def run() -> None:
        outcome = call(*args)
        if inspect.isawaitable(outcome):
            await outcome

    if loop.is_closed():
        return  # whoever subscribed is gone
    told = asyncio.run_coroutine_threadsafe(run(), loop)
    if _is_running_here(loop):
        return  # to wait for the loop here would stop it
    while not wait([told], LOOP_LOOK_SECONDS).done:
        if not loop.is_running():
            return
    told.result()


def wait_for(loop: asyncio.AbstractEventLoop, awaitable: Awaitable[T]) -> T:
    """Wait, on a thread, for something of the loop's."""

    async def run() -> T:
        return await awaitable

    outcome = asyncio.run_coroutine_threadsafe(run(), loop)
    while not wait([outcome], LOOP_LOOK_SECONDS).done:
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
