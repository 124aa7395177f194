"""Jobs that wait for other jobs, importable by the processes of a worker."""

import asyncio
import os
import threading

import penstock
import penstock.aio

app = penstock.App(os.environ.get("PENSTOCK_LENDING_URL", "memory:"))
PATIENCE = 60


@app.job
def double(number: int) -> int:
    return 2 * number


@app.job
def parent(number: int) -> int:
    return double.submit(number=number).result(PATIENCE) + 1


@app.job
async def async_parent(number: int) -> int:
    return await double.submit(number=number) + 1


@app.job
async def family(number: int) -> int:
    return sum(await asyncio.gather(*(double.submit(number=each) for each in range(number))))


@app.job
def gathering(number: int) -> int:
    return sum(penstock.gather([double.submit(number=each) for each in range(number)], timeout=PATIENCE))


@app.job
async def gathering_async(number: int) -> int:
    handles = [double.submit(number=each) for each in range(number)]
    return sum(await penstock.aio.gather(handles, timeout=PATIENCE))


@app.job
def chain(depth: int) -> int:
    return 0 if depth == 0 else 1 + chain.submit(depth=depth - 1).result(PATIENCE)


@app.job
def flow(number: int) -> int:
    """Waits for a job that may only run after two others."""
    first, second = double.submit(number=number), double.submit(number=number)
    return double.options(after=[first.id, second.id]).submit(number=number).result(PATIENCE)


@app.job
def keyed(number: int) -> int:
    """Waits for the last of three jobs of one key."""
    last = [double.options(key="one line").submit(number=each) for each in range(number)][-1]
    return last.result(PATIENCE)


@app.job
def impatient(number: int) -> int:
    """Waits twice, too short for what takes until it is told to end."""
    slow = endless.submit()
    for _ in range(2):
        try:
            slow.result(0.3)
        except TimeoutError:
            continue
    slow.cancel()
    return number


@app.job
def endless(context: penstock.JobContext) -> None:
    while not context.is_cancelled:
        threading.Event().wait(0.01)


@app.job
def waits_for(job_id: str) -> str:
    return str(app.handle(job_id).wait(PATIENCE).status)
