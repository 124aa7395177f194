"""Streams: capacity, filters, pushing, ending (Q13, Q17, Q19-Q34, Q51-Q55)."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import (
    BackendError,
    InvalidArgumentError,
    Job,
    JobStatus,
    JobStream,
    OperationCancelledError,
    Queue,
    QueueClosedError,
    cancel_scope,
)

SOON = 10.0


def put(queue: Queue, *ids: str, **fields: object) -> None:
    queue.enqueue_jobs([Job(id=job_id, type="work", **fields) for job_id in ids])


def take(stream: JobStream, count: int) -> list[Job]:
    """Take exactly so many jobs, within bounds."""
    jobs: list[Job] = []
    with cancel_scope(timeout=SOON):
        while len(jobs) < count:
            jobs += next(stream)
    assert len(jobs) == count
    return jobs


def nothing_comes(stream: JobStream) -> None:
    with cancel_scope(timeout=0.2), pytest.raises(OperationCancelledError):
        next(stream)


@pytest.mark.parametrize(
    "arguments",
    [
        {"assignee_id": ""},
        {"assignee_id": None},
        {"max_assigned_jobs": 0},
        {"max_assigned_jobs": -1},
        {"max_assigned_jobs": True},
        {"max_assigned_jobs": 1.0},
        {"tags": "red"},
        {"tags": [b"red"]},
        {"tags": [""]},
        {"types": "work"},
    ],
)
def test_wrong_arguments_are_refused_at_the_call(queue: Queue, arguments: dict[str, object]) -> None:
    """Q19, Q55."""
    with pytest.raises(InvalidArgumentError):
        queue.stream_jobs(**{"assignee_id": "w"} | arguments)


def test_jobs_that_wait_already_come_at_once_in_the_largest_batch(queue: Queue) -> None:
    """Q21, Q25, Q26."""
    put(queue, "a", "b", "c", "d")
    stream = queue.stream_jobs("worker", max_assigned_jobs=3)
    with cancel_scope(timeout=SOON):
        batch = next(stream)
    assert [job.id for job in batch] == ["a", "b", "c"]
    assert {job.status for job in batch} == {JobStatus.RUNNING}
    assert {job.assignee_id for job in batch} == {"worker"}
    assert all(job.assigned_at is not None for job in batch)
    assert stream.free == 0


def test_a_job_enqueued_later_is_pushed(queue: Queue) -> None:
    """Q13, Q29, Q34."""
    stream = queue.stream_jobs("worker", max_assigned_jobs=2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(take, stream, 1)
        put(queue, "a")
        assert waiting.result(SOON)[0].id == "a"


def test_a_report_makes_room_for_the_next_job(queue: Queue) -> None:
    """Q24, Q28, Q29."""
    put(queue, "a", "b", "c")
    stream = queue.stream_jobs("worker", max_assigned_jobs=1)
    assert take(stream, 1)[0].id == "a"
    nothing_comes(stream)
    queue.complete_job("a", attempt=1)
    assert take(stream, 1)[0].id == "b"
    queue.stop_job("b", attempt=1)
    assert take(stream, 1)[0].id == "c"
    assert stream.free == 0


def test_a_failed_job_comes_again(queue: Queue) -> None:
    """Q34, Q36."""
    put(queue, "a")
    stream = queue.stream_jobs("worker")
    (job,) = take(stream, 1)
    queue.fail_job("a", "oops", attempt=job.attempt)
    (again,) = take(stream, 1)
    assert (again.id, again.attempt) == ("a", 2)


def test_only_jobs_with_all_tags_and_a_wanted_type_come(queue: Queue) -> None:
    """Q9, Q22."""
    put(queue, "red", tags=("red",))
    put(queue, "both", tags=("red", "blue"))
    put(queue, "none")
    queue.enqueue_job(Job(id="other", type="other", tags=("red", "blue")))
    stream = queue.stream_jobs("worker", ["red", "blue"], 10, types=["work"])
    assert take(stream, 1)[0].id == "both"
    nothing_comes(stream)


def test_two_streams_of_one_assignee_have_a_capacity_each(queue: Queue) -> None:
    """Q24, C11: a report frees the slot of the stream that held the job, and of no other."""
    put(queue, *"abcdef")
    first = queue.stream_jobs("worker", max_assigned_jobs=2)
    held = take(first, 2)
    second = queue.stream_jobs("worker", max_assigned_jobs=2)
    take(second, 2)
    queue.complete_job(held[0].id)
    assert take(first, 1)[0].id == "e"
    nothing_comes(second)
    assert (first.free, second.free) == (0, 0)


def test_a_slow_consumer_gets_its_jobs_late_and_nobody_else_does(queue: Queue) -> None:
    """Q28, Q30, Q33."""
    slow = queue.stream_jobs("slow", max_assigned_jobs=3)
    put(queue, "a", "b", "c")
    with cancel_scope(timeout=SOON):
        while slow.free:
            pass
    quick = queue.stream_jobs("quick", max_assigned_jobs=3)
    nothing_comes(quick)
    assert {queue.get_job(job_id).assignee_id for job_id in "abc"} == {"slow"}
    assert [job.id for job in take(slow, 3)] == ["a", "b", "c"]


def test_what_was_not_taken_is_back_before_close_returns(queue: Queue) -> None:
    """Q32, C12."""
    put(queue, "taken")
    stream = queue.stream_jobs("worker", max_assigned_jobs=3)
    take(stream, 1)
    put(queue, "untaken", "also")
    with cancel_scope(timeout=SOON):
        while stream.free:
            pass
    stream.close()
    assert queue.get_job("taken").status is JobStatus.RUNNING
    for job_id in ("untaken", "also"):
        job = queue.get_job(job_id)
        assert job.status is JobStatus.FAILED_RETRY
        assert "cancelled" in job.error_message
        assert (job.retry_count, job.failures) == (1, 0)
    assert list(stream) == []


def test_closing_twice_and_from_several_threads_is_safe(queue: Queue) -> None:
    """Q31, Q52."""
    put(queue, *(f"job{number}" for number in range(20)))
    stream = queue.stream_jobs("worker", max_assigned_jobs=20)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(stream.close) for _ in range(8)]:
            done.result(SOON)
    assert not stream.is_open
    assert queue.get_job_stats().running_jobs == 0


def test_closing_the_queue_ends_streams_without_an_error(connect: Callable[..., Queue]) -> None:
    """Q20, Q51, C18."""
    queue = connect()
    stream = queue.stream_jobs("worker")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, stream)
        queue.close()
        assert waiting.result(SOON) == []
    queue.close()
    with pytest.raises(QueueClosedError):
        queue.stream_jobs("worker")
    with pytest.raises(QueueClosedError):
        queue.get_job("a")


def test_an_expired_scope_ends_the_wait_and_not_the_stream(queue: Queue) -> None:
    """Q20, Q54."""
    stream = queue.stream_jobs("worker")
    with cancel_scope() as scope, ThreadPoolExecutor(1) as pool:
        pool.submit(scope.cancel)
        with pytest.raises(OperationCancelledError):
            next(stream)
    put(queue, "a")
    assert take(stream, 1)[0].id == "a"


def test_a_lost_slot_stays_taken_until_the_worker_is_given_up(queue: Queue) -> None:
    """Q44, Q45, C9, C10."""
    put(queue, "a", "b")
    stream = queue.stream_jobs("worker")
    take(stream, 1)
    queue.cancel_jobs(job_ids=["a"])
    queue.acknowledge_cancellation("a", was_executing=False)
    nothing_comes(stream)
    assert (stream.free, len(stream.lost)) == (0, 1)
    queue.mark_worker_unresponsive("worker")
    assert take(stream, 1)[0].id == "b"


def test_an_acknowledged_cancellation_frees_the_slot(queue: Queue) -> None:
    """Q44."""
    put(queue, "a", "b")
    stream = queue.stream_jobs("worker")
    take(stream, 1)
    queue.cancel_jobs(job_ids=["a"])
    nothing_comes(stream)
    queue.acknowledge_cancellation("a", was_executing=True)
    assert take(stream, 1)[0].id == "b"


@pytest.mark.parametrize("give_up", ["mark_worker_unresponsive", "reset_running_jobs"])
def test_giving_up_on_workers_frees_their_slots(queue: Queue, give_up: str) -> None:
    """Q45, Q49, C10."""
    put(queue, "a")
    stream = queue.stream_jobs("worker")
    take(stream, 1)
    getattr(queue, give_up)(*(["worker"] if give_up == "mark_worker_unresponsive" else []))
    (again,) = take(stream, 1)
    assert (again.id, again.attempt) == ("a", 2)


def test_a_delayed_job_comes_when_it_is_due(queue: Queue) -> None:
    """G4."""
    stream = queue.stream_jobs("worker")
    job = queue.submit("work", delay=0.2)
    assert take(stream, 1)[0].id == job.id


def test_a_stream_can_be_iterated_asynchronously(queue: Queue) -> None:
    put(queue, "a")
    stream = queue.stream_jobs("worker", max_assigned_jobs=5)

    async def consume() -> list[str]:
        seen: list[str] = []
        async for batch in stream:
            seen += [job.id for job in batch]
            if seen == ["a"]:
                await asyncio.to_thread(put, queue, "b")
            else:
                await asyncio.to_thread(stream.close)
        return seen

    assert asyncio.run(asyncio.wait_for(consume(), SOON)) == ["a", "b"]


def test_an_asynchronous_wait_that_is_cancelled_loses_no_job(queue: Queue) -> None:
    stream = queue.stream_jobs("worker")

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)

    asyncio.run(give_up())
    put(queue, "a")
    assert take(stream, 1)[0].id == "a"


def test_many_consumers_get_each_job_once_and_never_too_many(queue: Queue) -> None:
    """Q24, Q33, Q52."""
    total, capacity = 400, 7
    put(queue, *(f"job{number}" for number in range(total)))
    seen: list[str] = []
    overfull: list[int] = []
    lock = threading.Lock()
    done = threading.Event()

    def consume(name: str) -> None:
        with queue.stream_jobs(name, max_assigned_jobs=capacity) as stream:
            for batch in stream:
                if len(stream.held) > capacity:
                    overfull.append(len(stream.held))
                queue.complete_jobs(
                    {job.id: b"" for job in batch}, attempts={job.id: job.attempt for job in batch}
                )
                with lock:
                    seen.extend(job.id for job in batch)
                    if len(seen) >= total:
                        done.set()

    threads = [threading.Thread(target=consume, args=(f"worker{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    assert done.wait(SOON * 3)
    queue.close()
    for thread in threads:
        thread.join(SOON)
    assert sorted(seen) == sorted(f"job{number}" for number in range(total))
    assert overfull == []


def test_a_store_that_fails_for_good_ends_the_stream_with_its_error(queue: Queue) -> None:
    """Q20, Q55, C20."""
    stream = queue.stream_jobs("worker")

    def refuse(_requests: object) -> object:
        raise BackendError("the disk is gone")

    queue.backend.dequeue_jobs_for = refuse  # type: ignore[method-assign]
    put(queue, "a")
    with cancel_scope(timeout=SOON), pytest.raises(BackendError, match="disk is gone"):
        next(stream)
    assert not stream.is_open


def test_a_store_that_recovers_is_asked_again(queue: Queue) -> None:
    """C20."""
    stream = queue.stream_jobs("worker")
    answer = queue.backend.dequeue_jobs_for
    failures = iter([True, True])

    def stumble(requests: object) -> object:
        if next(failures, False):
            raise BackendError("locked", retryable=True)
        return answer(requests)

    queue.backend.dequeue_jobs_for = stumble  # type: ignore[method-assign]
    put(queue, "a")
    assert take(stream, 1)[0].id == "a"


def test_starting_and_stopping_leaks_no_thread_and_no_job(connect: Callable[..., Queue]) -> None:
    """Q31, Q32."""
    queue = connect()
    put(queue, *(f"job{number}" for number in range(50)))
    before = threading.active_count()
    queue.stream_jobs("first").close()
    for number in range(100):
        queue.stream_jobs(f"worker{number}", max_assigned_jobs=3).close()
    assert threading.active_count() <= before + 4  # dispatch, upkeep, hints heard and hints sent
    assert queue.get_job_stats().running_jobs == 0
    queue.close()
    assert threading.active_count() <= before
