"""The other end of `benchmarks.processes`: `python -m benchmarks.child write|million <url> <amount>`."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.items import endless_items, job_of, make_items
from benchmarks.stores import open_url
from penstock import Backend


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
    before = _resident()
    start = time.perf_counter()
    ids = backend.enqueue_jobs(source)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    own = sys.getsizeof(ids) + sum(map(sys.getsizeof, ids))
    return {"rate": number / seconds, "growth": peak - before, "ids": own}


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # no /proc: the highest so far is the best there is
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    verb, url, amount = sys.argv[1:]
    with open_url(url) as backend:
        print(json.dumps({"write": write, "million": million}[verb](backend, amount)), flush=True)


if __name__ == "__main__":
    main()
