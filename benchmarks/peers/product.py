"""What a product must be able to do to be measured: submit, submit many, work, and count what is left.

A product is one module in `benchmarks/peers/products` with a class named `PRODUCT`. The command reads its class attributes
without importing the product itself, so a module imports its product inside methods. What is measured runs in a process of
the product's own environment, which does not have Penstock.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from benchmarks.peers.handler import FILLER

T = TypeVar("T")

#: The environment that runs the command; it has Penstock.
OURS: Final = "ours"
CLIENTS: Final = 8
#: More than a client submits within the time of a measurement.
ENDLESS: Final = 10**9


def arguments(number: int) -> dict[str, Any]:
    """Return the arguments of a job, about 100 bytes as JSON."""
    return {"i": number, "s": FILLER}


def encoded(number: int) -> str:
    """Return the same as JSON, for products whose payload is text or bytes."""
    return json.dumps(arguments(number))


class Product(ABC):
    """A product on a store of its own.

    Attributes:
        name: as in the table.
        stores: the kinds of store that it is measured on: sqlite, postgres, redis.
        environment: which of the environments has it; see `environments.py`.
        package: its distribution, whose version is shown; empty: none.
        guarantees: what holds at the figures; a few words.
        settings: the settings that differ from its defaults; a few words.
        has_bulk: whether `submit_many` is one call of the product; otherwise fewer jobs are submitted.
        drain_jobs: how many jobs W3 and W5 drain; slow products get fewer, so that a run takes about 15 seconds.
        isolated_jobs: the same for W3p; 0: it has no worker with a process per job.
        has_latency: whether W4 is measured.
        has_past: whether W5 is measured: `load_past` is there.
    """

    name: ClassVar[str]
    stores: ClassVar[tuple[str, ...]]
    environment: ClassVar[str] = "peers"
    package: ClassVar[str] = ""
    guarantees: ClassVar[str]
    settings: ClassVar[str] = ""
    has_bulk: ClassVar[bool] = True
    drain_jobs: ClassVar[int] = 30_000
    isolated_jobs: ClassVar[int] = 0
    has_latency: ClassVar[bool] = True
    has_past: ClassVar[bool] = False

    def __init__(self, store: str, place: str) -> None:
        self.store = store
        #: The URL of an empty database, or for SQLite an empty folder.
        self.place = place

    @property
    def folder(self) -> Path:
        return Path(self.place)

    @abstractmethod
    def open(self) -> None:
        """Connect, and create tables that do not exist yet."""

    def close(self) -> None:  # noqa: B027  # most need nothing
        """Disconnect."""

    @abstractmethod
    def submit(self, number: int) -> object:
        """Store a job; it is committed when this returns."""

    def submit_many(self, numbers: Sequence[int]) -> object:
        """Store jobs by the product's bulk call; one by one if it has none."""
        for number in numbers:
            self.submit(number)
        return None

    def fill(self, numbers: Sequence[int]) -> None:
        """Store jobs for a worker; untimed, so it need not be durable."""
        self.submit_many(numbers)

    @abstractmethod
    def count_left(self) -> int:
        """Return how many jobs are waiting or running, as the store says; delayed ones may count."""

    @abstractmethod
    def work(self, workload: str) -> None:
        """Run jobs until SIGTERM. Called in a process of its own, instead of `open`."""

    def worker_processes(self, workload: str) -> int:  # noqa: ARG002  # for those that need several
        """Return how many processes that call `work` are started."""
        return 1

    def load_past(self, finished: int, delayed: int) -> None:
        """Store finished jobs as the product leaves them, and jobs that are due tomorrow."""
        raise NotImplementedError

    def rate(self, clients: int, seconds: float) -> float:
        """Return submissions per second of one thread, or of several together."""
        if clients == 1:
            return rate(self.submit, seconds)
        return shared_rate([self.submit] * clients, seconds)

    def submit_spaced(self, first: int, number: int, gap: float) -> dict[int, float]:
        """Submit one job after each pause; return when each submission returned."""
        returned = {}
        for each in range(first, first + number):
            self.submit(each)
            returned[each] = time.monotonic()
            time.sleep(gap)
        return returned


class AsyncProduct(Product):
    """A product for asyncio: coroutines are its clients."""

    def __init__(self, store: str, place: str) -> None:
        super().__init__(store, place)
        self._loop: asyncio.AbstractEventLoop | None = None

    @abstractmethod
    async def open_async(self) -> None: ...

    async def close_async(self) -> None: ...

    @abstractmethod
    async def submit_async(self, number: int) -> object: ...

    @abstractmethod
    async def submit_many_async(self, numbers: Sequence[int]) -> object: ...

    @abstractmethod
    async def count_left_async(self) -> int: ...

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of this product."""
        if self._loop is None:
            self._loop = self.new_loop()
        return self._loop.run_until_complete(coroutine)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def open(self) -> None:
        self.call(self.open_async())

    def close(self) -> None:
        self.call(self.close_async())

    def submit(self, number: int) -> object:
        return self.call(self.submit_async(number))

    def submit_many(self, numbers: Sequence[int]) -> object:
        return self.call(self.submit_many_async(numbers))

    def count_left(self) -> int:
        return self.call(self.count_left_async())

    def rate(self, clients: int, seconds: float) -> float:
        return self.call(self._rate(clients, seconds))

    def submit_spaced(self, first: int, number: int, gap: float) -> dict[int, float]:
        return self.call(self._submit_spaced(first, number, gap))

    async def _rate(self, clients: int, seconds: float) -> float:
        start = time.perf_counter()
        done = await asyncio.gather(
            *(self._submit_until(client * ENDLESS, start + seconds) for client in range(clients))
        )
        return sum(done) / (time.perf_counter() - start)

    async def _submit_until(self, first: int, end: float) -> int:
        done = 0
        while time.perf_counter() < end:
            await self.submit_async(first + done)
            done += 1
        return done

    async def _submit_spaced(self, first: int, number: int, gap: float) -> dict[int, float]:
        returned = {}
        for each in range(first, first + number):
            await self.submit_async(each)
            returned[each] = time.monotonic()
            await asyncio.sleep(gap)
        return returned


def rate(call: Callable[[int], object], seconds: float, first: int = 0) -> float:
    clock = time.perf_counter
    done = 0
    start = clock()
    end = start + seconds
    while clock() < end:
        call(first + done)
        done += 1
    return done / (clock() - start)


def shared_rate(calls: Sequence[Callable[[int], object]], seconds: float) -> float:
    done = [0] * len(calls)
    start_line = threading.Barrier(len(calls) + 1)
    errors: list[BaseException] = []

    def run(index: int, call: Callable[[int], object]) -> None:
        clock = time.perf_counter
        call(index * ENDLESS)  # opens what the product has per thread
        start_line.wait()
        end = clock() + seconds
        count = 0
        try:
            while clock() < end:
                count += 1
                call(index * ENDLESS + count)
        except BaseException as error:  # raised below, by the calling thread
            errors.append(error)
        done[index] = count

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    start_line.wait(30)
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    if errors:
        raise errors[0]
    return sum(done) / elapsed
