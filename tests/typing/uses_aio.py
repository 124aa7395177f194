"""What a user of `penstock.aio` writes; mypy must see through it (`test_user_code.py`)."""

from typing import assert_type

import penstock.aio
from penstock import Event, EventKind, Job
from penstock.aio import AsyncQueue


async def main() -> None:
    async with penstock.aio.connect("memory:") as queue:
        assert_type(queue, AsyncQueue)
        job = await queue.submit("resize", {"width": 200}, delay=1.0, tags=["images"])
        assert_type(job, Job)
        assert_type(await queue.cancel_jobs(job_ids=[job.id]), tuple[list[str], list[str]])
        assert_type(await queue.complete_job(job.id, b"", attempt=job.attempt), None)
        async with queue.stream_jobs("worker", max_assigned_jobs=2) as stream:
            async for batch in stream:
                assert_type(batch, list[Job])

        async def subscriber(event: Event) -> None:
            await queue.get_job(event.job_id or "")

        queue.events.subscribe(EventKind.JOB_STARTED, subscriber)
    other = await penstock.aio.connect()
    assert_type(other, AsyncQueue)


async def mistakes(queue: AsyncQueue) -> None:
    await queue.submit("resize", no_such_argument=1)  # type: ignore[call-arg]
    await queue.complete_job(7)  # type: ignore[arg-type]
    await queue.get_jobs()  # type: ignore[call-arg]
    await queue.no_such_verb()  # type: ignore[attr-defined]
