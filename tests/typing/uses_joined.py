"""What a user of `Queue.joined` writes; mypy must see through it (`test_user_code.py`)."""

from datetime import timedelta
from typing import assert_type

import penstock
from penstock import Flow, Job, Queue, Submitter
from penstock.aio import AsyncQueue, AsyncSubmitter


def order(queue: Queue, connection: object) -> None:
    with queue.joined(connection) as joined:
        assert_type(joined, Submitter)
        job = joined.submit("invoice", {"order": 7}, tags=["shop"])
        assert_type(job, Job)
        assert_type(joined.submit_many([{"type": "invoice"}]), list[Job])
        assert_type(joined.enqueue_job(Job.new("invoice")), str)
        assert_type(joined.enqueue_jobs([Job.new("invoice")]), list[str])
        assert_type(joined.enqueue_flow(Flow(Job.new("invoice"))), list[str])
        assert_type(joined.get_job(job.id), Job)
        assert_type(joined.get_jobs([job.id]), dict[str, Job])
        assert_type(joined.backend.enqueue_job(Job.new("invoice")), str)
    submits_to(joined)
    submits_to(queue)


def submits_to(target: Submitter) -> None:
    target.submit("invoice")


async def order_soon(queue: AsyncQueue, connection: object) -> None:
    joined = queue.joined(connection)
    assert_type(joined, AsyncSubmitter)
    assert_type(await joined.submit("invoice"), Job)
    assert_type(await joined.get_job("id"), Job)


def mistakes(queue: Queue, connection: object) -> None:
    joined = queue.joined(connection)
    joined.stream_jobs("worker")  # type: ignore[attr-defined]
    joined.claim_jobs("worker")  # type: ignore[attr-defined]
    joined.complete_job("id")  # type: ignore[attr-defined]
    joined.cancel_jobs(job_ids=["id"])  # type: ignore[attr-defined]
    joined.get_output("id")  # type: ignore[attr-defined]
    joined.save_output("id", "text")  # type: ignore[attr-defined]
    joined.spawn_jobs("id", [])  # type: ignore[attr-defined]
    joined.maintain()  # type: ignore[attr-defined]
    repr(joined.events)  # type: ignore[attr-defined]
    joined.block()  # type: ignore[attr-defined]
    joined.joined(connection)  # type: ignore[attr-defined]
    joined.backend.runtime.take_upkeep(timedelta(1))  # type: ignore[attr-defined]
    joined.backend.runtime.statuses(["id"])  # type: ignore[attr-defined]
    joined.backend.reading.get_output("id")  # type: ignore[attr-defined]
    joined.backend.reading.examine()  # type: ignore[attr-defined]
    joined.backend.runtime.serve(object())  # type: ignore[attr-defined]
    joined.backend.runtime.next_due()  # type: ignore[attr-defined]
    joined.backend.runtime.watch(print)  # type: ignore[attr-defined]
    joined.backend.runtime.ready_filters()  # type: ignore[attr-defined]
    joined.backend.runtime.released({})  # type: ignore[attr-defined]
    joined.backend.runtime.has_foreign_changes()  # type: ignore[attr-defined]
    takes_a_queue(joined)  # type: ignore[arg-type]
    penstock.Queue(joined.backend)  # type: ignore[arg-type]


async def mistakes_soon(queue: AsyncQueue, connection: object) -> None:
    await queue.joined(connection).complete_job("id")  # type: ignore[attr-defined]
    queue.joined(connection).stream_jobs("worker")  # type: ignore[attr-defined]


def takes_a_queue(queue: Queue) -> None:
    queue.maintain()
