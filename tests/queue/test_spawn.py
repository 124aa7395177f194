"""Spawning from a running job (G24, G26, C33)."""

import inspect
from typing import Any

import pytest

from penstock import (
    InvalidArgumentError,
    Job,
    JobStatus,
    Key,
    Queue,
    QueueBlockedError,
    StaleAttemptError,
    cancel_scope,
)
from penstock.policy import DEFAULT_RETRY
from penstock.queue import SpawnOptions

SOON = 10.0


def running(queue: Queue, **fields: Any) -> Job:
    queue.enqueue_job(Job(id="parent", type="split", **fields))
    (job,) = queue.claim_jobs("worker")
    return job


def test_a_map_and_reduce_through_a_stream(queue: Queue) -> None:
    """G24, C33: the reducing job is enqueued before anybody knows how many parts there will be."""
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


def test_a_spawned_job_has_the_models_defaults_and_its_parent(queue: Queue) -> None:
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


def test_the_delivered_job_is_the_fence(queue: Queue) -> None:
    late = running(queue)
    queue.mark_worker_unresponsive("worker")
    with pytest.raises(StaleAttemptError):
        queue.spawn(late, "part")
    (again,) = queue.claim_jobs("other")
    with pytest.raises(StaleAttemptError):
        queue.spawn(late, "part")
    assert queue.get_job_stats().total_jobs == 1
    queue.spawn(again, "part")


def test_a_running_job_may_spawn_while_the_queue_is_blocked(queue: Queue) -> None:
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
def test_wrong_arguments_are_refused(queue: Queue, arguments: dict[str, Any]) -> None:
    parent = running(queue)
    with pytest.raises(InvalidArgumentError):
        queue.spawn(**{"parent": parent, "type": "part", **arguments})
    assert queue.get_job_stats().total_jobs == 1


def test_spawning_takes_what_submission_takes() -> None:
    submission = inspect.signature(Queue.submit).parameters
    named = {name for name, each in submission.items() if each.kind is each.KEYWORD_ONLY}
    assert set(SpawnOptions.__annotations__) == named - {"parent_id"}
