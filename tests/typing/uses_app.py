"""What a user of `penstock.App` writes; mypy must see through it (`test_user_code.py`)."""

from collections.abc import Callable
from typing import assert_type

import penstock
from penstock import App, Job, JobContext, JobHandle, JobStatus, Priority, RetryPolicy, Timeouts, Worker

app = App("sqlite:///jobs.db", max_execution=600)


@app.job
def double(number: int) -> int:
    return 2 * number


@app.job(retry=RetryPolicy(max_attempts=5), timeout=60, key="customer-{customer}", memory=100_000_000)
def charge(context: JobContext, customer: str, cents: int = 0) -> dict[str, int]:
    context.progress(50, "half")
    context.spawn(double, number=3).wait(timeout=10)
    context.save_checkpoint(b"1")
    return {customer: cents}


@app.middleware
def timed(context: JobContext, call: Callable[[], object]) -> object:
    context.log("begins")
    return call()


async def main() -> None:
    assert_type(double(3), int)
    handle = double.submit(3)
    assert_type(handle, JobHandle[int])
    assert_type(handle.result(timeout=30), int)
    assert_type(await handle, int)
    assert_type(await double.submit_async(3), JobHandle[int])
    assert_type(await (await charge.submit_async("ada", cents=5)), dict[str, int])
    assert_type(await double.submit_many_async([{"number": 1}]), list[JobHandle[int]])
    assert_type(double.joined(object()).submit(4), JobHandle[int])
    assert_type(await app.aio.get_job("id"), Job)
    assert_type(handle.status, JobStatus)
    assert_type(handle.wait(1), Job)
    assert_type(charge.submit("ada", cents=5).result(), dict[str, int])
    assert_type(double.submit_many([{"number": 1}]), list[JobHandle[int]])
    assert_type(double.options(priority=Priority.HIGH, delay=2).submit(4), JobHandle[int])
    assert_type(app.handle("id").cancel(), bool)
    assert_type(handle.is_duplicate, bool)
    assert_type(penstock.gather([handle], timeout="5m"), list[int])
    assert_type(await penstock.aio.gather([handle], timeout=5), list[int])
    assert_type(next(penstock.as_completed([handle])), JobHandle[int])
    assert_type([each.result() async for each in penstock.aio.as_completed([handle])], list[int])
    Worker(app, concurrency=8, isolation="thread", grace="1m").run(until_idle=True)


@app.every("5m")
@app.job(timeout="1h30m", retry=RetryPolicy(initial_delay="5s", max_delay=60), unique="while_unfinished")
def tidy() -> None: ...


def durations() -> None:
    tidy.options(timeouts=Timeouts(execution="5m", lifetime=60), idempotency_key="only").submit()
    penstock.register_backoff("same", lambda failures, first, most: first)
    with penstock.cancel_scope(timeout="30s"):
        app.queue.submit("other", delay="1m", idempotency_key="x", unique="while_unfinished")


def mistakes() -> None:
    double.submit("three")  # type: ignore[arg-type]
    double.submit()  # type: ignore[call-arg]
    charge.submit(cents=3)  # type: ignore[call-arg]
    Worker(app, isolation="rope")  # type: ignore[arg-type]
