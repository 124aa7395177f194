"""Other job queues beside ours, in the same run: those that are installed, at equal durability."""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"
# ruff: noqa: PLC0415  # each product is imported when it is measured, and left out when it is missing
from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from benchmarks.items import Item, make_items
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.stores import Target
from benchmarks.submitting import CHUNK, OUR_SECONDS, THREADS, ours_bulk, ours_shared, ours_single
from benchmarks.timing import alternate, rate, shared_rate, timed


class Peer(ABC):
    """A product, on a new store of its own."""

    name: ClassVar[str]
    store: ClassVar[str]

    @abstractmethod
    def submit(self, item: Item) -> object: ...

    def bulk(self, items: Sequence[Item]) -> object:
        """Submit a chunk by the product's bulk call; one by one if it has none."""
        for item in items:
            self.submit(item)
        return None

    def single_rate(self) -> float:
        return rate(self.submit, make_items(20_000), OUR_SECONDS)

    def shared_rate(self) -> float:
        items = [make_items(5_000) for _ in range(THREADS)]
        return shared_rate([self.submit] * THREADS, items, OUR_SECONDS)

    def close(self) -> None:  # noqa: B027  # most need nothing
        """Let go of the store."""


class Huey(Peer):
    name, store = "huey", "sqlite"

    def __init__(self, folder: Path, _url: str) -> None:
        from huey import SqliteHuey

        self._huey = SqliteHuey(filename=str(folder / "huey.db"), fsync=True)
        self._task = self._huey.task()(_handler)

    def submit(self, item: Item) -> object:
        return self._task(item[1].decode())


class LiteQueue(Peer):
    name, store = "litequeue", "sqlite"

    def __init__(self, folder: Path, _url: str) -> None:
        from litequeue import LiteQueue as Queue

        self._open = lambda: Queue(str(folder / "litequeue.db"))
        self._local = threading.local()
        self._queue().conn.execute("PRAGMA synchronous = FULL")

    def submit(self, item: Item) -> object:
        return self._queue().put(item[1].decode())

    def bulk(self, items: Sequence[Item]) -> object:
        queue = self._queue()
        with queue.transaction():
            for item in items:
                queue.put(item[1].decode())
        return None

    def _queue(self) -> Any:
        # A connection belongs to the thread that opened it.
        if not hasattr(self._local, "queue"):
            self._local.queue = self._open()
            self._local.queue.conn.execute("PRAGMA synchronous = FULL")
            self._local.queue.conn.execute("PRAGMA busy_timeout = 10000")
        return self._local.queue


class PersistQueue(Peer):
    name, store = "persist-queue", "sqlite"

    def __init__(self, folder: Path, _url: str) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue = SQLiteAckQueue(str(folder / "persist"), auto_commit=True, multithreading=True)

    def submit(self, item: Item) -> object:
        return self._queue.put(item[1])


class Procrastinate(Peer):
    name, store = "procrastinate", "postgres"

    def __init__(self, _folder: Path, url: str) -> None:
        from procrastinate import App, SyncPsycopgConnector

        self._app = App(connector=SyncPsycopgConnector(conninfo=url, min_size=THREADS, max_size=THREADS))
        self._app.open()
        self._app.schema_manager.apply_schema()
        self._task = self._app.task(name="bench")(_handler)

    def submit(self, item: Item) -> object:
        return self._task.defer(data=item[1].decode())

    def bulk(self, items: Sequence[Item]) -> object:
        return self._task.batch_defer(*[{"data": data.decode()} for _, data in items])

    def close(self) -> None:
        self._app.close()


class PgQueuer(Peer):
    """Asynchronous: eight coroutines stand for eight threads."""

    name, store = "pgqueuer", "postgres"

    def __init__(self, _folder: Path, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool, self._queries = self._loop.run_until_complete(_open_pgqueuer(url))

    def submit(self, item: Item) -> object:
        return self._loop.run_until_complete(self._queries.enqueue("bench", item[1], 0))

    def bulk(self, items: Sequence[Item]) -> object:
        number = len(items)
        call = self._queries.enqueue(["bench"] * number, [data for _, data in items], [0] * number)
        return self._loop.run_until_complete(call)

    def single_rate(self) -> float:
        return self._loop.run_until_complete(self._rate(1))

    def shared_rate(self) -> float:
        return self._loop.run_until_complete(self._rate(THREADS))

    def close(self) -> None:
        self._loop.run_until_complete(self._pool.close())
        self._loop.close()

    async def _rate(self, clients: int) -> float:
        start = time.perf_counter()
        found = await asyncio.gather(*(self._client(start + OUR_SECONDS) for _ in range(clients)))
        return sum(found) / (time.perf_counter() - start)

    async def _client(self, end: float) -> int:
        data = make_items(1)[0][1]
        done = 0
        while time.perf_counter() < end:
            await self._queries.enqueue("bench", data, 0)
            done += 1
        return done


async def _open_pgqueuer(url: str) -> tuple[Any, Any]:
    import asyncpg
    from pgqueuer import AsyncpgPoolDriver, Queries

    pool = await asyncpg.create_pool(url, min_size=THREADS, max_size=THREADS)
    queries = Queries(AsyncpgPoolDriver(pool))
    await queries.install()
    return pool, queries


PEERS: Final[tuple[type[Any], ...]] = (
    Huey, LiteQueue, PersistQueue, Procrastinate, PgQueuer
)  # fmt: skip


def compare(target: Target, settings: Settings) -> Iterator[Result]:
    """W1, W1c and W2 of each installed peer on this kind of store, with ours measured beside it."""
    for kind in PEERS:
        if kind.store != target.name:
            continue
        with target.scratch() as (folder, url):
            try:
                peer = kind(folder, url)
            except ImportError as error:
                settings.say(f"{kind.name} is left out: {error}")
                continue
            try:
                yield from _compare(peer, target, settings)
            finally:
                peer.close()


def _compare(peer: Peer, target: Target, settings: Settings) -> Iterator[Result]:
    is_postgres = target.name == "postgres"
    items = make_items(4 * CHUNK)
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    progress = settings.progress(f"beside {peer.name}", 3 * settings.rounds_of_bulk)
    with target.pair() as pair:
        for name, ours, theirs, goal in (
            ("W1", ours_single(pair), peer.single_rate, Goal(1.4 if is_postgres else 1.0)),
            ("W1c", ours_shared(pair), peer.shared_rate, Goal(2.0)),
        ):
            rounds = alternate(settings.rounds_of_bulk, [ours, theirs], progress)
            yield Result(name, target.name, rounds, against=peer.name, goal=goal)
    rounds = []
    for _ in range(settings.rounds_of_bulk):
        with target.pair() as pair:
            rounds += alternate(1, [ours_bulk(pair, chunks), lambda: _bulk_rate(peer, chunks)], progress)
    yield Result("W2", target.name, rounds, against=peer.name, goal=Goal(1.5 if is_postgres else 1.0))


def _bulk_rate(peer: Peer, chunks: Sequence[Sequence[Item]]) -> float:
    # One chunk tells the rate of those that have no bulk call; four would take half a minute.
    chosen = chunks if type(peer).bulk is not Peer.bulk else [chunks[0][:1000]]

    def run() -> None:
        for chunk in chosen:
            peer.bulk(chunk)

    return sum(map(len, chosen)) / timed(run)


def _handler(data: str) -> None:
    """Never run: only its submission is measured."""
