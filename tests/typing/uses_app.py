"""What a user of `penstock.App` writes; mypy must see through it (`test_user_code.py`)."""

from collections.abc import Callable
from typing import assert_type

from penstock import App, Job, JobContext, JobHandle, JobStatus, Priority, RetryPolicy, Worker

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
    Worker(app, concurrency=8, isolation="thread").run(until_idle=True)


def mistakes() -> None:
    double.submit("three")  # type: ignore[arg-type]
    double.submit()  # type: ignore[call-arg]
    charge.submit(cents=3)  # type: ignore[call-arg]
    Worker(app, isolation="rope")  # type: ignore[arg-type]
