"""The queue for asyncio (Q52, Q54, C62b)."""

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.waiting import until

import penstock.aio
from penstock import (
    Event,
    EventKind,
    InvalidArgumentError,
    Job,
    JobNotFoundError,
    JobStatus,
    OperationCancelledError,
    Queue,
    QueueClosedError,
    cancel_scope,
)
from penstock.aio import AsyncQueue

SOON = 20.0
#: A stream is opened by using it, and events need no waiting.
NOT_AWAITED = {"stream_jobs", "events"}


@pytest.fixture
def run(url: str) -> Callable[..., Any]:
    """Run a coroutine function with a fresh queue, within bounds."""

    def run_one(scenario: Callable[[AsyncQueue], Awaitable[Any]], **options: object) -> Any:
        async def inside() -> Any:
            async with penstock.aio.connect(url, **options) as queue:
                return await asyncio.wait_for(scenario(queue), SOON)

        return asyncio.run(inside())

    return run_one


class Gate:
    """Stands in for a verb of the store: holds calls up until it is opened."""

    def __init__(self, verb: Callable[..., Any]) -> None:
        self._verb = verb
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self.entered.release()
        assert self.open.wait(SOON)
        return self._verb(*args, **kwargs)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_verb_of_the_queue_is_there_with_its_signature():
    assert public(Queue) <= public(AsyncQueue) | {"joined"}
    for name in public(Queue) - NOT_AWAITED - {"joined"}:
        here, there = getattr(AsyncQueue, name), getattr(Queue, name)
        assert inspect.iscoroutinefunction(here), name
        assert list(inspect.signature(here).parameters.values())[1:] == [
            *list(inspect.signature(there).parameters.values())[1:]
        ], name
        assert here.__doc__, name


def test_a_job_goes_from_submission_to_completion(run):
    async def scenario(queue: AsyncQueue) -> None:
        job = await queue.submit("work", {"n": 1})
        async with queue.stream_jobs("worker") as stream:
            async for batch in stream:
                assert [each.id for each in batch] == [job.id]
                assert stream.free == 0
                await queue.complete_job(job.id, b"done", attempt=batch[0].attempt)
                break
        assert not stream.is_open
        assert (await queue.get_job(job.id)).result == b"done"

    run(scenario)


def test_a_queue_can_be_awaited_closed_twice_and_not_used_then(url):
    async def scenario() -> None:
        queue = await penstock.aio.connect(url)
        assert repr(queue).startswith("<AsyncQueue")
        await queue.close()
        await queue.close()
        with pytest.raises(QueueClosedError):
            await queue.is_blocked()
        with pytest.raises(QueueClosedError):
            await anext(queue.stream_jobs("w"))

    asyncio.run(scenario())


def test_a_wrong_url_is_refused_where_it_is_awaited():
    async def scenario() -> None:
        with pytest.raises(InvalidArgumentError):
            await penstock.aio.connect("nonsense:")

    asyncio.run(scenario())


def test_errors_come_through_and_wrong_arguments_raise_at_the_call(run):
    """Q19, Q55."""

    async def scenario(queue: AsyncQueue) -> None:
        with pytest.raises(JobNotFoundError):
            await queue.get_job("nobody")
        with pytest.raises(InvalidArgumentError):
            queue.stream_jobs("")
        with pytest.raises(InvalidArgumentError):
            queue.stream_jobs("w", max_assigned_jobs=0)
        with pytest.raises(InvalidArgumentError):
            queue.events.subscribe(EventKind.JOB_STARTED, "no function")

    run(scenario)


def test_the_loop_goes_on_while_the_store_is_slow(run):
    async def scenario(queue: AsyncQueue) -> None:
        gate = queue.queue.backend.get_job_stats = Gate(queue.queue.backend.get_job_stats)
        slow = asyncio.create_task(queue.get_job_stats())
        assert await asyncio.to_thread(gate.entered.acquire, timeout=SOON)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not slow.done()
        gate.open.set()
        assert (await slow).total_jobs == 0

    run(scenario)


def test_many_calls_wait_for_the_store_together(run):
    """They share commits: with one call at a time there would be nothing to share."""

    async def scenario(queue: AsyncQueue) -> None:
        gate = queue.queue.backend.enqueue_job = Gate(queue.queue.backend.enqueue_job)
        calls = [asyncio.create_task(queue.enqueue_job(Job(id=f"job{n}", type="work"))) for n in range(100)]
        for _ in range(penstock.aio.THREADS):
            assert await asyncio.to_thread(gate.entered.acquire, timeout=SOON)
        assert gate.calls == penstock.aio.THREADS
        gate.open.set()
        assert len(set(await asyncio.gather(*calls))) == 100
        assert (await queue.get_job_stats()).total_jobs == 100

    run(scenario)


def test_a_scope_around_a_call_reaches_it(run):
    """Q54."""

    async def scenario(queue: AsyncQueue) -> None:
        with cancel_scope(timeout=0), pytest.raises(OperationCancelledError):
            await queue.enqueue_job(Job(id="late", type="work"))
        with cancel_scope() as scope:
            scope.cancel()
            with pytest.raises(OperationCancelledError):
                await queue.get_job("late")
        with pytest.raises(JobNotFoundError):
            await queue.get_job("late")
        stream = queue.stream_jobs("worker")
        assert await queue.is_drained()
        with cancel_scope(timeout=0.05), pytest.raises(OperationCancelledError):
            await anext(stream)
        with cancel_scope() as scope:
            asyncio.get_running_loop().call_later(0.05, scope.cancel)
            with pytest.raises(OperationCancelledError):
                await anext(stream)
        await queue.submit("work")
        assert len(await anext(stream)) == 1
        await stream.close()

    run(scenario)


def test_context_variables_reach_the_store(run):
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nothing")

    async def scenario(queue: AsyncQueue) -> None:
        answer = queue.queue.backend.is_blocked
        seen: list[str] = []

        def look() -> bool:
            seen.append(mark.get())
            return answer()

        queue.queue.backend.is_blocked = look  # type: ignore[method-assign]
        mark.set("mine")
        await queue.is_blocked()
        assert seen == ["mine"]

    run(scenario)


def test_a_cancelled_task_withdraws_a_call_that_has_not_begun(run):
    """C36b."""

    async def scenario(queue: AsyncQueue) -> None:
        gate = queue.queue.backend.get_job_stats = Gate(queue.queue.backend.get_job_stats)
        busy = [asyncio.create_task(queue.get_job_stats()) for _ in range(penstock.aio.THREADS)]
        for _ in busy:
            assert await asyncio.to_thread(gate.entered.acquire, timeout=SOON)
        waiting = asyncio.create_task(queue.enqueue_job(Job(id="withdrawn", type="work")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.open.set()
        await asyncio.gather(*busy)
        with pytest.raises(JobNotFoundError):
            await queue.get_job("withdrawn")

    run(scenario)


def test_a_cancelled_task_ends_after_a_call_that_has_begun(run):
    """C36b: nothing goes on behind its back."""

    async def scenario(queue: AsyncQueue) -> None:
        backend = queue.queue.backend
        began, go = threading.Event(), threading.Event()
        store = backend.enqueue_job

        def begun(job: Job) -> str:
            done = store(job)
            began.set()
            assert go.wait(SOON)
            return done

        backend.enqueue_job = begun  # type: ignore[method-assign]
        call = asyncio.create_task(queue.enqueue_job(Job(id="a", type="work")))
        await asyncio.to_thread(began.wait, SOON)
        call.cancel()
        await asyncio.sleep(0.05)
        call.cancel()  # impatience does not help
        await asyncio.sleep(0.05)
        assert not call.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await queue.get_job("a")).status is JobStatus.INITIAL_PENDING

    run(scenario)


def test_jobs_of_a_cancelled_claim_are_handed_back(run):
    async def scenario(queue: AsyncQueue) -> None:
        await queue.submit("work")
        backend = queue.queue.backend
        claimed, go = threading.Event(), threading.Event()
        claim = backend.dequeue_jobs

        def slow(*args: Any, **kwargs: Any) -> list[Job]:
            jobs = claim(*args, **kwargs)
            claimed.set()
            assert go.wait(SOON)
            return jobs

        backend.dequeue_jobs = slow  # type: ignore[method-assign]
        call = asyncio.create_task(queue.claim_jobs("worker"))
        await asyncio.to_thread(claimed.wait, SOON)
        call.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        (job,) = await queue.list_jobs()
        assert (job.status, job.failures) == (JobStatus.FAILED_RETRY, 0)

    run(scenario)


def test_a_stream_whose_opening_is_cancelled_does_not_stay_open(run):
    async def scenario(queue: AsyncQueue) -> None:
        opened: list[Any] = []
        began, go = threading.Event(), threading.Event()
        open_stream = queue.queue.stream_jobs

        def slow(*args: Any, **kwargs: Any) -> Any:
            opened.append(open_stream(*args, **kwargs))
            began.set()
            assert go.wait(SOON)
            return opened[0]

        queue.queue.stream_jobs = slow  # type: ignore[method-assign]
        stream = queue.stream_jobs("worker")
        opening = asyncio.create_task(anext(stream))
        await asyncio.to_thread(began.wait, SOON)
        opening.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not opened[0].is_open

    run(scenario)


def test_a_cancelled_consumer_loses_no_job(run):
    """Q30, Q32."""

    async def scenario(queue: AsyncQueue) -> None:
        async with queue.stream_jobs("worker", max_assigned_jobs=10) as stream:
            for n in range(30):
                waiting = asyncio.create_task(anext(stream))
                await asyncio.sleep(0)
                put = asyncio.create_task(queue.submit("work", n))
                if n % 2:
                    await put
                waiting.cancel()
                job = await put
                try:
                    (taken,) = await waiting
                except asyncio.CancelledError:
                    (taken,) = await anext(stream)
                assert taken.id == job.id
                await queue.complete_job(taken.id)

    run(scenario)


def test_closing_a_stream_gives_back_what_was_not_taken(run):
    """Q32."""

    async def scenario(queue: AsyncQueue) -> None:
        never_opened = queue.stream_jobs("worker")
        await never_opened.close()
        assert [batch async for batch in never_opened] == []
        async with queue.stream_jobs("worker", max_assigned_jobs=3) as stream:
            await queue.submit("work")
            await asyncio.to_thread(until, lambda: stream.free == 2)
        (job,) = await queue.list_jobs()
        assert job.status is JobStatus.FAILED_RETRY

    run(scenario)


def test_subscribers_run_in_the_loop_and_may_use_the_queue(run):
    """R4: in order, and a subscriber that awaits a verb does not stop the one that told it."""

    async def scenario(queue: AsyncQueue) -> None:
        seen: list[str] = []
        here = threading.get_ident()
        woken = asyncio.Event()

        async def on_completed(event: Event) -> None:
            assert threading.get_ident() == here
            seen.append(f"completed {event.job_id}")
            await queue.enqueue_job(Job(id="next", type="work"))
            seen.append("enqueued")

        def on_available(event: Event) -> None:
            assert threading.get_ident() == here
            seen.append(f"available {event.job_id}")
            woken.set()

        stop = queue.events.subscribe(EventKind.JOB_COMPLETED, on_completed)
        await queue.enqueue_job(Job(id="first", type="work"))
        queue.events.subscribe(EventKind.JOB_AVAILABLE, on_available)
        await queue.claim_jobs("worker")
        await queue.complete_job("first")
        await asyncio.wait_for(woken.wait(), SOON)
        stop()
        assert seen == ["completed first", "enqueued", "available next"]

    run(scenario)


def test_a_subscriber_gets_a_thread_when_all_wait_for_it(run):
    """Q52: as many verbs as there are threads wait for their turn to tell; the subscriber's own calls pass."""

    async def scenario(queue: AsyncQueue) -> None:
        seen: list[str] = []

        async def look(event: Event) -> None:
            seen.append((await queue.get_job(event.job_id or "")).id)

        queue.events.subscribe(EventKind.JOB_AVAILABLE, look)
        count = 4 * penstock.aio.THREADS
        jobs = await asyncio.gather(*(queue.submit("work", n) for n in range(count)))
        assert sorted(seen) == sorted(job.id for job in jobs)

    run(scenario)


def test_the_callback_of_a_block_runs_in_the_loop(run):
    """R16."""

    async def scenario(queue: AsyncQueue) -> None:
        drained = asyncio.Event()

        async def on_drained() -> None:
            drained.set()

        await queue.submit("work")
        await queue.block(on_drained)
        assert await queue.is_blocked()
        (job,) = await queue.claim_jobs("worker")
        assert not drained.is_set()
        await queue.complete_job(job.id)
        await asyncio.wait_for(drained.wait(), SOON)
        await queue.unblock()

    run(scenario)


def test_a_loop_that_has_ended_stops_nobody(url):
    """Its subscribers are not called any more, and verbs do not wait for them."""
    calls: list[Event] = []

    async def open_and_leave() -> AsyncQueue:
        queue = await penstock.aio.connect(url)
        queue.events.subscribe(EventKind.JOB_AVAILABLE, calls.append)
        return queue

    queue = asyncio.run(open_and_leave())
    began = time.monotonic()
    queue.queue.submit("work")
    asyncio.run(queue.close())
    assert time.monotonic() - began < SOON / 2
    assert calls == []


def test_no_thread_stays_after_closing(url):
    before = threading.active_count()

    async def scenario() -> None:
        for _ in range(5):
            async with penstock.aio.connect(url) as queue:
                await asyncio.gather(*(queue.submit("work") for _ in range(50)))
                async with queue.stream_jobs("worker"):
                    pass

    asyncio.run(scenario())
    until(lambda: threading.active_count() <= before)
    assert threading.active_count() <= before


def test_a_close_that_is_cancelled_leaves_no_threads(url: str) -> None:
    before = set(threading.enumerate())

    async def scenario() -> AsyncQueue:
        queue = await penstock.aio.connect(url)
        gate = Gate(queue.queue.backend.close)
        queue.queue.backend.close = gate  # type: ignore[method-assign]
        closing = asyncio.create_task(queue.close())
        assert await asyncio.to_thread(gate.entered.acquire, timeout=SOON)
        closing.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return queue

    queue = asyncio.run(scenario())
    until(lambda: not [each for each in threading.enumerate() if each not in before])
    with pytest.raises(QueueClosedError):
        queue.queue.get_job_stats()


def test_a_queue_that_was_not_awaited_says_so() -> None:
    with pytest.raises(AttributeError, match="has no 'submit': use `async with"):
        penstock.aio.connect("memory:").submit("a")
