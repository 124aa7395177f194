"""Streams: capacity, filters, pushing, ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.errors import BackendError, InvalidArgumentError, OperationCancelledError, QueueClosedError
from penstock.job import Job, JobStatus
from penstock.queue import Queue
from penstock.scope import cancel_scope
from penstock.testing.conformance._support import MakeBackend
from penstock.testing.conformance.queue_support import SOON, QueueSuite, nothing_comes, put, take, until


class StreamDelivery(QueueSuite):
    """Deliveries of a stream."""

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
    def test_wrong_arguments_are_refused_at_the_call(self, queue: Queue, arguments: dict[str, Any]) -> None:
        """Q19, Q55."""
        with pytest.raises(InvalidArgumentError):
            queue.stream_jobs(**{"assignee_id": "w"} | arguments)

    def test_jobs_that_wait_already_come_at_once_in_the_largest_batch(self, queue: Queue) -> None:
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

    def test_a_job_enqueued_later_is_pushed(self, queue: Queue) -> None:
        """Q13, Q29, Q34."""
        stream = queue.stream_jobs("worker", max_assigned_jobs=2)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(take, stream, 1)
            put(queue, "a")
            assert waiting.result(SOON)[0].id == "a"

    def test_a_failed_job_comes_again(self, queue: Queue) -> None:
        """Q34, Q36."""
        put(queue, "a")
        stream = queue.stream_jobs("worker")
        (job,) = take(stream, 1)
        queue.fail_job("a", "oops", attempt=job.attempt)
        (again,) = take(stream, 1)
        assert (again.id, again.attempt) == ("a", 2)

    def test_only_jobs_with_all_tags_and_a_wanted_type_come(self, queue: Queue) -> None:
        """Q9, Q22."""
        put(queue, "red", tags=("red",))
        put(queue, "both", tags=("red", "blue"))
        put(queue, "none")
        queue.enqueue_job(Job(id="other", type="other", tags=("red", "blue")))
        stream = queue.stream_jobs("worker", ["red", "blue"], 10, types=["work"])
        assert take(stream, 1)[0].id == "both"
        nothing_comes(stream)

    def test_a_delayed_job_comes_when_it_is_due(self, queue: Queue) -> None:
        """G4."""
        stream = queue.stream_jobs("worker")
        job = queue.submit("work", delay=0.2)
        assert take(stream, 1)[0].id == job.id

    def test_a_stream_can_be_iterated_asynchronously(self, queue: Queue) -> None:
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

    def test_an_asynchronous_wait_that_is_cancelled_loses_no_job(self, queue: Queue) -> None:
        stream = queue.stream_jobs("worker")

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.05)

        asyncio.run(give_up())
        put(queue, "a")
        assert take(stream, 1)[0].id == "a"

    def test_none_as_a_filter_takes_everything(self, queue: Queue) -> None:
        """Q9, Q22."""
        nothing: Any = None
        with queue.stream_jobs("worker", nothing, 2) as stream:
            put(queue, "tagged", tags=["red"])
            put(queue, "plain")
            assert {each.id for each in take(stream, 2)} == {"tagged", "plain"}


class StreamWakeUps(QueueSuite):
    """No wake-up is lost, and none is wasted."""

    def test_jobs_that_were_reset_before_anybody_connected_are_found(self, queue: Queue) -> None:
        """Q27, Q49."""
        put(queue, *"abcde")
        queue.backend.dequeue_jobs("before", limit=5)
        queue.reset_running_jobs()
        stream = queue.stream_jobs("worker", max_assigned_jobs=2)
        seen: set[str] = set()
        with cancel_scope(timeout=SOON):
            while len(seen) < 5:
                for each in next(stream):
                    seen.add(each.id)
                    queue.complete_job(each.id)

    def test_what_happens_during_a_claim_leads_to_another_look(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Q34, Q53: a job that is enqueued after the claim's query and before its result."""
        # By the notification, not by the poll.
        monkeypatch.setattr("penstock.queue._dispatcher.FULL_POLL_SECONDS", 10 * SOON)
        claim = queue.backend.dequeue_jobs_for
        late = iter(["late"])

        def claim_then_enqueue(requests: Any) -> Any:
            found = claim(requests)
            for name in late:
                put(queue, name)
            return found

        queue.backend.dequeue_jobs_for = claim_then_enqueue  # type: ignore[method-assign]
        stream = queue.stream_jobs("worker")
        assert [each.id for each in take(stream, 1)] == ["late"]

    def test_a_slot_that_is_freed_during_a_claim_is_used(self, queue: Queue) -> None:
        """Q28, Q29, Q53."""
        put(queue, "first", "second")
        claim = queue.backend.dequeue_jobs_for

        def claim_then_complete(requests: Any) -> Any:
            found = claim(requests)
            for jobs in found:
                for each in jobs:
                    if each.id == "first":
                        queue.backend.complete_job("first")
            return found

        queue.backend.dequeue_jobs_for = claim_then_complete  # type: ignore[method-assign]
        stream = queue.stream_jobs("worker")
        assert [each.id for each in take(stream, 2)] == ["first", "second"]
        assert stream.free == 0

    def test_every_stream_that_could_take_a_job_is_considered(self, queue: Queue) -> None:
        """Q17, Q53: so at least one takes it, and those without room or with other tags do not."""
        put(queue, "busy", tags=("red",))
        full = queue.stream_jobs("full", ["red"])
        take(full, 1)
        blue = queue.stream_jobs("blue", ["blue"])
        reds = [queue.stream_jobs(f"red{number}", ["red"], 2) for number in range(3)]
        put(queue, *(f"job{number}" for number in range(6)), tags=("red", "large"))
        until(lambda: sum(stream.free for stream in reds) == 0)
        assert (full.free, blue.free) == (0, 1)

    def test_a_batch_does_not_wake_a_stream_for_each_job(self, queue: Queue) -> None:
        """Q17, Q18, Q25."""
        stream = queue.stream_jobs("worker", ["red", "large"], max_assigned_jobs=200)
        nothing_comes(stream)
        claims: list[int] = []
        claim = queue.backend.dequeue_jobs_for

        def count(requests: Any) -> Any:
            found = claim(requests)
            claims.append(sum(len(jobs) for jobs in found))
            return found

        queue.backend.dequeue_jobs_for = count  # type: ignore[method-assign]
        queue.enqueue_jobs(
            [
                Job(id=f"job{n}", type="t", tags=("red", "large") if n % 2 else ("large", "red"))
                for n in range(200)
            ]
        )
        assert len(take(stream, 200)) == 200
        assert [count for count in claims if count] == [200]
        assert len(claims) <= 8  # a poll may come between

    def test_a_full_stream_is_left_alone(self, queue: Queue) -> None:
        """Q24, Q30: a consumer that does not read does not keep the store busy."""
        put(queue, *"abc")
        stream = queue.stream_jobs("deaf")
        until(lambda: stream.free == 0)
        claimed = threading.Event()
        claim = queue.backend.dequeue_jobs_for

        def note(requests: Any) -> Any:
            claimed.set()
            return claim(requests)

        queue.backend.dequeue_jobs_for = note  # type: ignore[method-assign]
        assert not claimed.wait(0.3)

    def test_tags_that_stand_twice_count_once(self, queue: Queue) -> None:
        """Q9, Q22: in a job and in a filter."""
        put(queue, "a", tags=("red", "red", "blue"))
        stream = queue.stream_jobs("worker", ["red", "blue", "red"])
        (taken,) = take(stream, 1)
        assert taken.tags == ("red", "blue")

    def test_the_oldest_come_first_and_retried_ones_stand_behind(self, queue: Queue) -> None:
        """Q23."""
        put(queue, *"abc")
        stream = queue.stream_jobs("worker")
        order = []
        for turn in range(4):
            (taken,) = take(stream, 1)
            order.append(taken.id)
            if turn == 0:
                queue.fail_job(taken.id, "again")
            else:
                queue.complete_job(taken.id)
        assert order == ["a", "b", "c", "a"]


class StreamCapacity(QueueSuite):
    """The capacity of a stream, and the reports that free its slots."""

    def test_a_report_makes_room_for_the_next_job(self, queue: Queue) -> None:
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

    def test_a_freed_stream_is_served_whatever_the_tags_of_the_job_that_ended(self, queue: Queue) -> None:
        """C19: and a job that comes back reaches another stream that matches it."""
        put(queue, "red", tags=("red",))
        first = queue.stream_jobs("first")
        take(first, 1)
        put(queue, "blue", tags=("blue",))
        nothing_comes(first)
        queue.complete_job("red")
        assert [each.id for each in take(first, 1)] == ["blue"]
        put(queue, "waits", tags=("green",))
        other = queue.stream_jobs("other", ["blue"])
        queue.fail_job("blue", "boom")
        served = {take(first, 1)[0].id, take(other, 1)[0].id}
        assert served == {"waits", "blue"}

    def test_two_streams_of_one_assignee_have_a_capacity_each(self, queue: Queue) -> None:
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

    def test_a_slow_consumer_gets_its_jobs_late_and_nobody_else_does(self, queue: Queue) -> None:
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

    def test_a_lost_slot_stays_taken_until_the_worker_is_given_up(self, queue: Queue) -> None:
        """Q44, Q45, C9, C10."""
        put(queue, "a", "b")
        stream = queue.stream_jobs("worker")
        take(stream, 1)
        queue.cancel_jobs(job_ids=["a"])
        queue.acknowledge_cancellation("a", was_executing=False)
        nothing_comes(stream)
        assert (stream.free, len(stream.lost)) == (0, 1)
        queue.mark_worker_unresponsive("worker")
        assert (stream.free, len(stream.lost)) == (1, 0)
        queue.heartbeat("worker")
        assert take(stream, 1)[0].id == "b"

    def test_an_acknowledged_cancellation_frees_the_slot(self, queue: Queue) -> None:
        """Q44."""
        put(queue, "a", "b")
        stream = queue.stream_jobs("worker")
        take(stream, 1)
        queue.cancel_jobs(job_ids=["a"])
        nothing_comes(stream)
        queue.acknowledge_cancellation("a", was_executing=True)
        assert take(stream, 1)[0].id == "b"

    @pytest.mark.parametrize("give_up", ["mark_worker_unresponsive", "reset_running_jobs"])
    def test_giving_up_on_workers_frees_their_slots(self, queue: Queue, give_up: str) -> None:
        """Q45, Q49, C10."""
        put(queue, "a")
        stream = queue.stream_jobs("worker")
        take(stream, 1)
        getattr(queue, give_up)(*(["worker"] if give_up == "mark_worker_unresponsive" else []))
        if give_up == "mark_worker_unresponsive":
            assert stream.free == 1
            queue.heartbeat("worker")
        (again,) = take(stream, 1)
        assert (again.id, again.attempt) == ("a", 2)

    def test_many_consumers_get_each_job_once_and_never_too_many(self, queue: Queue) -> None:
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


class StreamEnds(QueueSuite):
    """The end of streams, and of the jobs that they hold."""

    def test_closing_the_queue_gives_back_what_was_not_taken(
        self, connect: Callable[..., Queue], make_backend: MakeBackend
    ) -> None:
        """Q32, Q51, C12: before the store is closed under it."""
        if not make_backend.shares_store:
            pytest.skip("the store lives in its object")
        queue, later = connect(), connect()
        put(queue, "taken")
        stream = queue.stream_jobs("worker", max_assigned_jobs=3)
        take(stream, 1)
        put(queue, "untaken")
        until(lambda: stream.free == 1)
        queue.close()
        assert later.get_job("untaken").status is JobStatus.FAILED_RETRY
        assert later.get_job("taken").status is JobStatus.RUNNING

    def test_what_was_not_taken_is_back_before_close_returns(self, queue: Queue) -> None:
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

    def test_closing_twice_and_from_several_threads_is_safe(self, queue: Queue) -> None:
        """Q31, Q52."""
        put(queue, *(f"job{number}" for number in range(20)))
        stream = queue.stream_jobs("worker", max_assigned_jobs=20)
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(stream.close) for _ in range(8)]:
                done.result(SOON)
        assert not stream.is_open
        assert queue.get_job_stats().running_jobs == 0

    def test_closing_the_queue_ends_streams_without_an_error(self, connect: Callable[..., Queue]) -> None:
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

    def test_an_expired_scope_ends_the_wait_and_not_the_stream(self, queue: Queue) -> None:
        """Q20, Q54."""
        stream = queue.stream_jobs("worker")
        with cancel_scope() as scope, ThreadPoolExecutor(1) as pool:
            pool.submit(scope.cancel)
            with pytest.raises(OperationCancelledError):
                next(stream)
        put(queue, "a")
        assert take(stream, 1)[0].id == "a"

    def test_a_store_that_fails_for_good_ends_the_stream_with_its_error(self, queue: Queue) -> None:
        """Q20, Q55, C20."""
        stream = queue.stream_jobs("worker")

        def refuse(_requests: Any) -> Any:
            raise BackendError("the disk is gone")

        queue.backend.dequeue_jobs_for = refuse  # type: ignore[method-assign, assignment]
        put(queue, "a")
        with cancel_scope(timeout=SOON), pytest.raises(BackendError, match="disk is gone"):
            next(stream)
        assert not stream.is_open

    def test_a_store_that_recovers_is_asked_again(self, queue: Queue) -> None:
        """C20."""
        stream = queue.stream_jobs("worker")
        answer = queue.backend.dequeue_jobs_for
        failures = iter([True, True])

        def stumble(requests: Any) -> Any:
            if next(failures, False):
                raise BackendError("locked", retryable=True)
            return answer(requests)

        queue.backend.dequeue_jobs_for = stumble  # type: ignore[method-assign]
        put(queue, "a")
        assert take(stream, 1)[0].id == "a"
