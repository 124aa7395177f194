"""The other end of `benchmarks.processes`: `python -m benchmarks.child <verb> <url> <amount>`."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.items import endless_items, job_of, make_items
from benchmarks.stores import open_url
from penstock import Backend, Queue


def write(backend: Backend, amount: str) -> dict[str, float]:
    """Enqueue one job a call for so many seconds, once told to begin."""
    items = make_items(30_000)
    backend.enqueue_job(job_of(items.pop()))
    print("ready", flush=True)
    sys.stdin.readline()
    clock = time.perf_counter
    start = clock()
    end = start + float(amount)
    before, worst, done = start, 0.0, 0
    for item in items:
        backend.enqueue_job(job_of(item))
        done += 1
        now = clock()
        worst = max(worst, now - before)
        if now >= end:
            break
        before = now
    return {"rate": done / (clock() - start), "worst": worst}


def million(backend: Backend, amount: str) -> dict[str, float]:
    """Enqueue so many jobs from an iterator in one call."""
    number = int(amount)
    backend.enqueue_jobs([job_of(item) for item in make_items(5_000)])
    source = (job_of(item) for item, _ in zip(endless_items(), range(number), strict=False))
    before = memory("VmRSS")
    start = time.perf_counter()
    ids = backend.enqueue_jobs(source)
    seconds = time.perf_counter() - start
    peak = memory("VmHWM")
    own = sys.getsizeof(ids) + sum(map(sys.getsizeof, ids))
    return {"rate": number / seconds, "growth": peak - before, "ids": own}


def receive(backend: Backend, amount: str) -> dict[str, float]:
    """Take so many jobs from a stream; return when each arrived, by a clock that all processes share."""
    received: dict[str, float] = {}
    with Queue(backend) as queue, queue.stream_jobs("bench", max_assigned_jobs=10) as stream:
        print("ready", flush=True)
        for batch in stream:
            now = time.monotonic()
            for job in batch:
                received[job.id] = now
                queue.complete_job(job.id, attempt=job.attempt)
            if len(received) >= int(amount):
                break
    return received


def memory(field: str) -> int:
    """Return the resident memory (VmRSS) or its highest so far (VmHWM), in bytes.

    Not ru_maxrss: on Linux that begins with what the parent had.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # no /proc
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    verb, url, amount = sys.argv[1:]
    if verb == "serve":
        from benchmarks.working import serve  # noqa: PLC0415  # the others need no app

        found = serve(url, int(amount))
    else:
        with open_url(url) as backend:
            found = {"write": write, "million": million, "receive": receive}[verb](backend, amount)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
