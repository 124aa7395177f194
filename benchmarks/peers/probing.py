"""What a raw probe answers: the rate of the raw store for a workload. Imports nothing but the standard library."""

from __future__ import annotations

import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final

from benchmarks.peers.measuring import BULK_JOBS, SLICES, Size

SECONDS: Final = 0.4
LOOP_JOBS: Final = 30_000
LOOP_BATCH: Final = 100
FORKS: Final = 2_000
FORKS_AT_ONCE: Final = 2


class RawProbe(ABC):
    """The raw store; `place` is as for a product.

    Attributes:
        environment: which of the environments has its driver.
    """

    environment: ClassVar[str]

    def __init__(self, store: str, place: str) -> None:
        self.store = store
        self.place = place

    def probe(self, workload: str, size: Size) -> dict[str, float]:
        """Return the rate of the probe that belongs to a workload."""
        match workload:
            case "w1":
                value = statistics.median(self.single_rate(SECONDS) for _ in range(SLICES))
            case "w1c":
                value = statistics.median(self.shared_rate(SECONDS) for _ in range(SLICES))
            case "w2":
                value = self.bulk_rate(size.jobs(BULK_JOBS))
            case "w3" | "w5":
                value = self.loop_rate(size.jobs(LOOP_JOBS))
            case "w3p":
                value = fork_rate(size.jobs(FORKS))
            case _:
                raise ValueError(workload)
        return {"value": value}

    @abstractmethod
    def single_rate(self, seconds: float) -> float:
        """Return single committed inserts per second of one client."""

    @abstractmethod
    def shared_rate(self, seconds: float) -> float:
        """Return the same of eight clients together."""

    @abstractmethod
    def bulk_rate(self, number: int) -> float:
        """Return jobs per second of the fastest bulk insert."""

    @abstractmethod
    def loop_rate(self, number: int) -> float:
        """Return jobs per second of claiming and completing 100 at a time."""


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def fork_rate(number: int) -> float:
    """Return bare forks per second of this small process: fork, exit, wait, two at once."""
    running, start = 0, time.perf_counter()
    for _ in range(number):
        if running == FORKS_AT_ONCE:
            os.wait()
            running -= 1
        if os.fork() == 0:
            os._exit(0)
        running += 1
    while running:
        os.wait()
        running -= 1
    return number / (time.perf_counter() - start)
