"""Claims by hand through a queue, and which assignees streams serve."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import InvalidArgumentError, OperationCancelledError, StaleAttemptError
from penstock.job import Job, JobStatus
from penstock.queue import Queue
from penstock.queue.stream import JobStream
from penstock.scope import cancel_scope
from penstock.testing.conformance.queue_support import QueueSuite, job, nothing_comes, put, take, until

_LONE_SURROGATE = "\ud800"
_BAD_CLAIMS: list[dict[str, Any]] = [
    {"types": [5]},
    {"types": 5},
    {"types": "work"},
    {"types": ["\0"]},
    {"types": [_LONE_SURROGATE]},
    {"types": ["x" * 257]},
    {"types": [""]},
    {"tags": [5]},
    {"tags": 5},
    {"tags": ["\0"]},
    {"tags": [_LONE_SURROGATE]},
    {"assignee_id": ""},
    {"assignee_id": 5},
    {"assignee_id": _LONE_SURROGATE},
    {"assignee_id": "x" * 513},
    {"limit": 0},
    {"limit": "1"},
    {"key": 5},
    {"key": _LONE_SURROGATE},
    {"job_ids": [5]},
    {"job_ids": "a"},
]


class ClaimsByHand(QueueSuite):
    """`Queue.claim_jobs`: what is refused is refused before anything is recorded."""

    def test_a_refused_claim_records_nothing(self, queue: Queue) -> None:
        put(queue, "a")
        for bad in _BAD_CLAIMS:
            with pytest.raises(InvalidArgumentError):
                queue.claim_jobs(**{"assignee_id": "w", **bad})
            assert queue.overview().owners == (), bad
        assert queue.get_job("a").status is JobStatus.INITIAL_PENDING

    def test_a_process_beats_on_whatever_it_was_asked_for_in_vain(self, queue: Queue) -> None:
        """C28: its heartbeats publish the types of accepted claims only."""
        put(queue, "a")
        assert queue.claim_jobs("w", types=["work"])
        for bad in _BAD_CLAIMS:
            with pytest.raises(InvalidArgumentError):
                queue.claim_jobs(**{"assignee_id": "w", **bad})
            with pytest.raises(InvalidArgumentError):
                queue.stream_jobs(**{"assignee_id": "w", **_stream_arguments(bad)})
        before = queue.overview().owners[0].beat_at
        queue._dispatcher.owner.beat()  # noqa: SLF001 - the beat that is due in a while, now
        (owner,) = queue.overview().owners
        assert owner.beat_at > before
        assert {name for intake in owner.intakes for name in intake.types or ()} == {"work"}

    def test_a_stream_keeps_its_capacity_when_another_is_refused(self, queue: Queue) -> None:
        stream = queue.stream_jobs("w", max_assigned_jobs=2)
        bad: list[Any] = [-1, 1.5, "2", None, True, 2**40]
        for capacity in bad:
            with pytest.raises(InvalidArgumentError):
                stream.resize(capacity)
            assert stream.max_assigned_jobs == 2
        queue._dispatcher.owner.beat()  # noqa: SLF001 - the beat that is due in a while, now
        stream.resize(0)
        queue.enqueue_job(job("a"))
        stream.resize(1)
        until(lambda: stream.free == 0)


class UnresponsiveAssignees(QueueSuite):
    """An assignee that was declared unresponsive gets nothing from streams until a sign of life."""

    @pytest.mark.parametrize("capacity", [1, 3])
    def test_a_healthy_stream_gets_the_job_and_the_unresponsive_one_nothing(
        self, queue: Queue, capacity: int
    ) -> None:
        """Q45: though the stream of the unresponsive one is older, and has room."""
        put(queue, "a")
        silent = queue.stream_jobs("silent", max_assigned_jobs=capacity)
        take(silent, 1)
        healthy = queue.stream_jobs("healthy", max_assigned_jobs=2)
        queue.mark_worker_unresponsive("silent")
        (again,) = take(healthy, 1)
        assert (again.id, again.attempt) == ("a", 2)
        put(queue, "b")
        assert [each.id for each in take(healthy, 1)] == ["b"]
        put(queue, "c")
        nothing_comes(silent)
        assert (silent.free, silent.is_withheld) == (capacity, True)

    def test_it_gets_nothing_though_nobody_else_is_there(self, queue: Queue) -> None:
        put(queue, "a")
        silent = queue.stream_jobs("silent", max_assigned_jobs=2)
        take(silent, 1)
        queue.mark_worker_unresponsive("silent")
        nothing_comes(silent)
        assert queue.get_job("a").status is JobStatus.UNKNOWN_RETRY

    def test_it_gets_nothing_though_it_held_nothing(self, queue: Queue) -> None:
        silent = queue.stream_jobs("silent")
        until(lambda: not silent.is_new)
        queue.mark_worker_unresponsive("silent")
        put(queue, "a")
        nothing_comes(silent)
        assert [each.id for each in take(queue.stream_jobs("healthy"), 1)] == ["a"]

    @pytest.mark.parametrize(
        "sign", ["heartbeat", "report", "late report", "failure", "stream", "claim by hand"]
    )
    def test_a_sign_of_life_ends_it(self, queue: Queue, sign: str) -> None:
        """Q45."""
        put(queue, "a")
        silent = queue.stream_jobs("silent", max_assigned_jobs=2)
        (job,) = take(silent, 1)
        if sign == "late report":
            other = queue.stream_jobs("other")
            queue.mark_worker_unresponsive("silent")
            take(other, 1)
            with pytest.raises(StaleAttemptError):
                queue.complete_job("a", attempt=job.attempt)
        else:
            queue.mark_worker_unresponsive("silent")
            nothing_comes(silent)
        if sign == "heartbeat":
            assert queue.heartbeat("silent") == 0
        elif sign == "report":
            queue.complete_job("a", attempt=job.attempt)
        elif sign == "failure":
            queue.fail_job("a", "boom", attempt=job.attempt)
        elif sign == "stream":
            queue.stream_jobs("silent", types=["another"])
        elif sign == "claim by hand":
            queue.claim_jobs("silent", types=["another"])
        put(queue, "b", priority=0)
        until(lambda: "b" in {each.id for each in _at_once(silent)})

    def test_the_report_of_somebody_else_is_no_sign_of_life(self, queue: Queue) -> None:
        put(queue, "a", "b")
        silent = queue.stream_jobs("silent", max_assigned_jobs=2)
        take(silent, 2)
        healthy = queue.stream_jobs("healthy", max_assigned_jobs=2)
        queue.mark_worker_unresponsive("silent")
        for job_ in take(healthy, 2):
            queue.complete_job(job_.id, attempt=job_.attempt)
        put(queue, "c")
        assert [each.id for each in take(healthy, 1)] == ["c"]
        put(queue, "d", "e")
        take(healthy, 1)
        nothing_comes(silent)

    def test_another_queue_on_the_store_does_not_serve_it_either(self, connect: Callable[..., Queue]) -> None:
        """Two queues stand for two processes: a declaration holds in both, and a sign of life in one ends it in both."""
        here, there = connect(), connect()
        put(here, "a")
        if "a" not in there.get_jobs(["a"]):
            pytest.skip("the store lives in its object")
        silent = here.stream_jobs("silent", max_assigned_jobs=2)
        take(silent, 1)
        there.mark_worker_unresponsive("silent")
        nothing_comes(silent)
        healthy = here.stream_jobs("healthy")
        assert [(each.id, each.attempt) for each in take(healthy, 1)] == [("a", 2)]
        there.heartbeat("silent")
        put(here, "b")
        assert [each.id for each in take(silent, 1)] == ["b"]

    def test_claims_by_hand_are_made_as_before(self, queue: Queue) -> None:
        """Q45: a claim is a sign of life."""
        put(queue, "a")
        queue.claim_jobs("w")
        queue.mark_worker_unresponsive("w")
        assert [each.attempt for each in queue.claim_jobs("w")] == [2]
        queue.mark_worker_unresponsive("w")
        assert [each.attempt for each in queue.backend.dequeue_jobs("w")] == [3]


def _at_once(stream: JobStream) -> list[Job]:
    """Return what a stream has for its consumer, if anything comes within moments."""
    with cancel_scope(timeout=0.05), contextlib.suppress(OperationCancelledError):
        return next(stream)
    return []


def _stream_arguments(bad: dict[str, Any]) -> dict[str, Any]:
    """Return the same mistake for `stream_jobs`, or another one where it has no such argument."""
    names = {"limit": "max_assigned_jobs", "key": "tags", "job_ids": "tags"}
    return {names.get(name, name): 5 if name == "key" else value for name, value in bad.items()}
