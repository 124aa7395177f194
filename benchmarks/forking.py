"""W3p: one process a job, two at a time, beside bare forks of the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.isolated import FILE, RECORD
from benchmarks.items import make_items
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Target
from benchmarks.timing import alternate
from penstock import Job
from penstock.isolation import Ending, JobProcess, Message, Setup, Supervisor

JOBS: Final = 2_000
AT_ONCE: Final = 2

# What a process costs by itself depends on what it has in memory: the same imports as the template of the worker, or none.
_BARE: Final = """
import os, sys, time
exec(sys.argv[2])
number, live = int(sys.argv[1]), 0
start = time.perf_counter()
for _ in range(number):
    if live == 2:
        os.wait()
        live -= 1
    if os.fork() == 0:
        os._exit(0)
    live += 1
while live:
    os.wait()
    live -= 1
print(number / (time.perf_counter() - start))
"""
_SAME: Final = "import benchmarks.isolated, penstock.worker._child, penstock.isolation.template"
_WORKER: Final = (
    "from benchmarks.isolated import app; from penstock import Worker;"
    " Worker(app, concurrency=2, prefetch=20).run(until_idle=True)"
)


def isolated(target: Target, settings: Settings) -> Iterator[Result]:
    """No-op jobs in a process each: through the worker and its store, through the process machinery alone, and bare."""
    number = JOBS // 8 if settings.quick else JOBS
    rounds = alternate(
        settings.rounds_of_bulk,
        [
            lambda: worker_rate(target, number),
            lambda: _alone(number),
            lambda: _bare(number, _SAME),
            lambda: _bare(number, "pass"),
        ],
        settings.progress("W3p", settings.rounds_of_bulk),
    )
    same = "bare fork, same imports"
    yield Result("W3p, worker", target.name, [(w, b) for w, _, b, _ in rounds], against=same, goal=Goal(0.7))
    yield Result("W3p, processes alone", target.name, [(a, b) for _, a, b, _ in rounds], against=same)
    yield Result(
        "W3p, worker", target.name, [(w, s) for w, *_, s in rounds], against="bare fork, empty process"
    )


def _bare(number: int, imports: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _BARE, str(number), imports], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def worker_rate(target: Target, number: int) -> float:
    """Return jobs per second, from the first handler's start until the store has nothing left to do."""
    location = target.create("isolated")
    with tempfile.NamedTemporaryFile() as file:
        with target.open(location) as backend:
            items = make_items(number)
            backend.enqueue_jobs(Job(id=each, type="bench", payload=data) for each, data in items)
            environment = os.environ | {FILE: file.name, "PENSTOCK_URL": target.url(location)}
            worker = subprocess.Popen([sys.executable, "-c", _WORKER], env=environment)
            ended = 0.0
            while worker.poll() is None:
                completed = backend.get_job_stats().completed_jobs
                if completed == number:
                    ended = ended or time.monotonic()
                # To look is work too, on the same processors.
                time.sleep(0.1 if completed < 0.9 * number else 0.01)
        begun = _starts(Path(file.name))
    target.drop(location)
    if len(begun) != number or not ended:
        raise RuntimeError(f"{len(begun)} of {number} jobs ran")
    return number / (ended - min(begun))


def _starts(file: Path) -> list[float]:
    data = file.read_bytes()
    found = {number: moment for moment, number in RECORD.iter_unpack(data)}
    if len(found) != len(data) // RECORD.size:
        raise RuntimeError("a job ran twice")
    return list(found.values())


class _Relay:
    """Starts the next process when one has ended, on the thread that hears of it."""

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        self._supervisor = supervisor
        self._left = iter(range(number))
        self._ended = 0
        self._number = number
        self.done = threading.Event()

    def launch(self) -> None:
        each = next(self._left, None)
        if each is not None:
            self._supervisor.launch(b"%d" % each, self)

    def received(self, process: JobProcess, message: Message) -> None:
        """Nothing: that it has ended is enough."""

    def ended(self, _process: JobProcess, _ending: Ending) -> None:
        self._ended += 1
        self.launch()
        if self._ended == self._number:
            self.done.set()


def _alone(number: int) -> float:
    with tempfile.NamedTemporaryFile() as file:
        os.environ[FILE] = file.name
        supervisor = Supervisor(Setup(entry="benchmarks.isolated:entry"), spares=AT_ONCE)
        try:
            supervisor.start()
            relay = _Relay(supervisor, number)
            start = time.perf_counter()
            for _ in range(AT_ONCE):
                relay.launch()
            relay.done.wait(120)
            seconds = time.perf_counter() - start
        finally:
            supervisor.close()
            del os.environ[FILE]
        if len(_starts(Path(file.name))) != number:
            raise RuntimeError("not every job ran")
    return number / seconds
