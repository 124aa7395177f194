"""Actions on all jobs that a selection selects, and iterating over them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import penstock.aio
from penstock import FailureCategory, InvalidArgumentError, Job, JobStatus, QueueBlockedError
from penstock.backends import Failure
from penstock.backends.contract.selection import JobSelection
from penstock.queue.bulk import PORTION, plan_bulk


def dead(queue, *names, **fields):
    """Store jobs and let them fail for good."""
    queue.enqueue_jobs([Job(id=name, type="t", **fields) for name in names])
    queue.backend.dequeue_jobs("w", job_ids=names, limit=len(names))
    queue.fail_jobs({name: Failure(message="boom", category=FailureCategory.PERMANENT) for name in names})


def test_a_bulk_action_is_done_to_exactly_what_was_counted(queue):
    number = PORTION + 20
    dead(queue, *(f"dead-{n:04}" for n in range(number)))
    queue.enqueue_job(Job(id="waits", type="t"))
    plan = plan_bulk(queue, "redrive", JobSelection(types=["t"]))
    assert plan.matched == number
    dead(queue, "later")
    made = []
    report = plan.run(made.extend)
    assert (report.matched, report.done, report.skipped) == (number, number, 0)
    origins = [job.redrive_of for job in queue.iter_jobs(status="pending") if job.redrive_of]
    assert origins == [f"dead-{n:04}" for n in range(number)]
    assert len(made) == number
    again = plan_bulk(queue, "delete", JobSelection(statuses=["failed"]))
    assert again.matched == number + 1
    assert again.run().done == number + 1
    assert queue.get_job_stats().total_jobs == number + 1


def test_what_changed_since_it_was_counted_is_skipped_and_reported(queue):
    dead(queue, "a", "b", "c")
    queue.enqueue_jobs([Job(id="x", type="t"), Job(id="y", type="t")])
    redrive = plan_bulk(queue, "redrive", JobSelection())
    cancel = plan_bulk(queue, "cancel", JobSelection())
    queue.delete_jobs(job_ids=["b"])
    queue.cancel_jobs(job_ids=["x"])
    done = redrive.run()
    assert (done.matched, done.done, done.skipped) == (3, 2, 1)
    assert cancel.run() == (2, 1)


def test_cancelling_counts_jobs_that_wait_for_others_too(queue):
    queue.enqueue_jobs([Job(id="first", type="t"), Job(id="second", type="t", after=["first"])])
    plan = plan_bulk(queue, "cancel", JobSelection(types=["t"]))
    assert plan.run() == (2, 2)


def test_jobs_that_died_with_another_are_not_redriven(queue):
    queue.enqueue_jobs([Job(id="first", type="t"), Job(id="second", type="t", after=["first"])])
    queue.backend.dequeue_jobs("w", job_ids=["first"])
    queue.fail_job("first", "boom", category=FailureCategory.PERMANENT)
    assert queue.get_job("second").status is JobStatus.FAILED
    assert plan_bulk(queue, "redrive", JobSelection()).matched == 1


@pytest.mark.parametrize(
    ("action", "status"),
    [("cancel", "completed"), ("redrive", "pending"), ("delete", "running"), ("eat", "failed")],
)
def test_an_action_that_is_not_possible_is_refused(queue, action, status):
    with pytest.raises(InvalidArgumentError):
        plan_bulk(queue, action, JobSelection(statuses=[status]))


def test_a_blocked_queue_stops_redriving(queue):
    dead(queue, "a")
    queue.set_blocked(True)
    with pytest.raises(QueueBlockedError):
        plan_bulk(queue, "redrive", JobSelection()).run()


def test_iterating_brings_every_job_once_however_many_there_are(queue):
    names = [f"{n:04}" for n in range(450)]
    queue.enqueue_jobs([Job(id=name, type="ab"[int(name) % 2], tags=("x",), payload=b"p") for name in names])
    queue.cancel_jobs(job_ids=names[:5])
    assert [job.id for job in queue.iter_jobs()] == names
    assert [job.id for job in queue.iter_jobs(newest=True)] == names[::-1]
    assert [job.id for job in queue.iter_jobs(type="b", tags=["x"])] == names[1::2]
    assert [job.id for job in queue.iter_jobs(status="cancelled")] == names[:5]
    assert [job.id for job in queue.iter_jobs(status=["cancelled", "failed"], type=["a", "b"])] == names[:5]
    assert next(queue.iter_jobs()).payload == b"p"
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert len(list(queue.iter_jobs(until=tomorrow))) == 450
    assert list(queue.iter_jobs(since=tomorrow)) == []
    with pytest.raises(InvalidArgumentError):
        queue.iter_jobs(status="nonsense")


def test_iterating_is_there_for_asyncio():
    async def names():
        async with await penstock.aio.connect("memory:") as queue:
            await queue.enqueue_jobs([Job(id=str(n), type="t") for n in range(3)])
            return [job.id async for job in await queue.iter_jobs(type="t")]

    assert asyncio.run(names()) == ["0", "1", "2"]
