"""What needs processes of its own: several writers on one store, and a million jobs with an eye on memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Target

WRITERS: Final = 4
SECONDS: Final = 3.0
MEBIBYTE: Final = 1 << 20


def writers(target: Target, settings: Settings) -> Iterator[Result]:
    """Four processes that enqueue one job a call into one store: the worst wait, and the rate beside that of one."""
    number = settings.rounds_of_bulk
    progress = settings.progress("writers", 2 * number)
    rates, waits = [], []
    for _ in range(number):
        alone = _run_writers(target, 1)
        progress()
        together = _run_writers(target, WRITERS)
        progress()
        rates.append((sum(each["rate"] for each in together), alone[0]["rate"]))
        waits.append((max(each["worst"] for each in together) * 1000, alone[0]["worst"] * 1000))
    is_sqlite = target.name != "postgres"
    goals = (Goal(1.0), Goal(1000, at_most=True, of_ratio=False)) if is_sqlite else (None, None)
    yield Result("4 writers, total rate", target.name, rates, against="1 writer", goal=goals[0])
    yield Result(
        "4 writers, worst wait", target.name, waits, unit="ms", against="1 writer", goal=goals[1],
        note=f"worst of all rounds {max(wait for wait, _ in waits):,.0f} ms",
    )  # fmt: skip


def million(target: Target, settings: Settings) -> Iterator[Result]:
    """`enqueue_jobs` of an iterator: one transaction; rate and memory beside those of a quarter as many."""
    number = 100_000 if settings.quick else 1_000_000
    progress = settings.progress("million", 2)
    found = []
    for jobs in (number // 4, number):
        location = target.create("million")
        found.append(start_child("million", target.url(location), str(jobs)).communicate_json())
        target.drop(location)
        progress()
    quarter, whole = found
    yield Result(
        f"enqueue_jobs, iterator of {number:,}", target.name, [(whole["rate"], quarter["rate"])],
        against="a quarter as many",
    )  # fmt: skip
    yield Result(
        "peak memory beyond the ids", target.name,
        [((whole["growth"] - whole["ids"]) / MEBIBYTE, (quarter["growth"] - quarter["ids"]) / MEBIBYTE)],
        unit="MiB", against="a quarter as many",
        note=f"resident memory grew by {whole['growth'] / MEBIBYTE:,.0f} MiB, the returned ids are "
        f"{whole['ids'] / MEBIBYTE:,.0f} MiB of it",
    )  # fmt: skip


def _run_writers(target: Target, number: int) -> list[dict[str, float]]:
    location = target.create("writers")
    children = [start_child("write", target.url(location), str(SECONDS)) for _ in range(number)]
    for child in children:
        child.wait_ready()
    for child in children:
        child.start()
    found = [child.communicate_json() for child in children]
    target.drop(location)
    return found


class Child:
    """A process of the benchmark, talked to by lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def communicate_json(self) -> dict[str, Any]:
        out, _ = self._process.communicate("go\n" if self._process.stdin else None)
        if self._process.returncode:
            raise RuntimeError(f"a process of the benchmark failed with {self._process.returncode}")
        return dict(json.loads(out.strip().splitlines()[-1]))


def start_child(*arguments: str) -> Child:
    """Start `benchmarks.child` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.child", *arguments]
    return Child(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
