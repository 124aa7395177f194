"""Spawning through the queue."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidArgumentError, QueueBlockedError, StaleAttemptError
from penstock.job import Job, JobStatus, Key
from penstock.policy import DEFAULT_RETRY
from penstock.queue import Queue
from penstock.scope import cancel_scope
from penstock.testing.conformance.queue_support import SOON, QueueSuite


def running(queue: Queue, **fields: Any) -> Job:
    """Enqueue a job and claim it."""
    queue.enqueue_job(Job(id="parent", type="split", **fields))
    (taken,) = queue.claim_jobs("worker")
    return taken


class QueueSpawning(QueueSuite):
    """`spawn`, from a job that a consumer has."""

    def test_a_map_and_reduce_through_a_stream(self, queue: Queue) -> None:
        """G24, C33: the reducing job is enqueued before the number of parts is known."""
        split = queue.submit("split", ["a", "b", "c"])
        merge = queue.submit("merge", after=[split.id])
        order: list[str] = []
        with cancel_scope(timeout=SOON), queue.stream_jobs("worker", max_assigned_jobs=2) as stream:
            for batch in stream:
                for job in batch:
                    order.append(job.type)
                    if job.type == "split":
                        for part in ("a", "b", "c"):
                            queue.spawn(job, "part", part)
                    queue.complete_job(job.id, attempt=job.attempt)
                if merge.id in {job.id for job in batch}:
                    break
        assert order == ["split", "part", "part", "part", "merge"]

    def test_a_spawned_job_has_the_models_defaults_and_its_parent(self, queue: Queue) -> None:
        parent = running(queue)
        child = queue.spawn(parent, "part", {"n": 1}, tags={"size": "small"}, key="k", priority=1)
        assert (child.parent_id, child.type, child.payload) == ("parent", "part", b'{"n":1}')
        assert (child.tags, child.key, child.priority, child.retry) == (
            ("size=small",),
            Key("k"),
            1,
            DEFAULT_RETRY,
        )
        assert queue.spawn_jobs("parent", [Job(id="given", type="part")], attempt=1) == ["given"]

    def test_the_delivered_job_is_the_fence(self, queue: Queue) -> None:
        late = running(queue)
        queue.mark_worker_unresponsive("worker")
        with pytest.raises(StaleAttemptError):
            queue.spawn(late, "part")
        (again,) = queue.claim_jobs("other")
        with pytest.raises(StaleAttemptError):
            queue.spawn(late, "part")
        assert queue.get_job_stats().total_jobs == 1
        queue.spawn(again, "part")

    def test_a_running_job_may_spawn_while_the_queue_is_blocked(self, queue: Queue) -> None:
        """C51."""
        parent = running(queue)
        queue.block()
        with pytest.raises(QueueBlockedError):
            queue.submit("part")
        assert queue.spawn(parent, "part").status is JobStatus.INITIAL_PENDING
        assert not queue.is_drained()

    @pytest.mark.parametrize(
        "arguments",
        [
            {"parent": "parent"},
            {"parent": None},
            {"type": ""},
            {"payload": object()},
            {"nonsense": 1},
            {"delay": 1, "run_at": 1},
        ],
    )
    def test_wrong_arguments_are_refused(self, queue: Queue, arguments: dict[str, Any]) -> None:
        parent = running(queue)
        with pytest.raises(InvalidArgumentError):
            queue.spawn(**{"parent": parent, "type": "part", **arguments})
        assert queue.get_job_stats().total_jobs == 1
