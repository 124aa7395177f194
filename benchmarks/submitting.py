"""W1, W1c and W2: handing jobs in, one a call, from eight threads, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from benchmarks.items import Item, job_of, make_items
from benchmarks.results import Goal, Result
from benchmarks.settings import Settings
from benchmarks.slow_flush import slow_flushes
from benchmarks.stores import Pair, Target
from benchmarks.timing import alternate, rate, shared_rate, timed

THREADS: Final = 8
CHUNK: Final = 5_000
RAW_SECONDS: Final = 0.4
OUR_SECONDS: Final = 0.5


def one_client(target: Target, settings: Settings) -> Iterator[Result]:
    """W1: one client, one job a call, committed at return."""
    with target.pair() as pair:
        rounds = alternate(
            settings.rounds, [ours_single(pair), _raw_single(pair)], settings.progress("W1", settings.rounds)
        )
    yield Result(
        "W1", target.name, rounds, against="raw single", goal=Goal(0.85 if target.name == "postgres" else 0.9)
    )


def eight_threads(target: Target, settings: Settings) -> Iterator[Result]:
    """W1c: the same from eight threads."""
    yield from _eight_threads(target, settings, "W1c", Goal(2.2), nullcontext())


def eight_threads_slow_flush(target: Target, settings: Settings) -> Iterator[Result]:
    """W1c on a disk whose flush takes 1 ms longer. SQLite alone: a server's flush is out of reach."""
    if target.name == "sqlite":
        yield from _eight_threads(target, settings, "W1c, flush + 1 ms", Goal(5), slow_flushes(0.001))


def _eight_threads(
    target: Target, settings: Settings, name: str, goal: Goal, disk: AbstractContextManager[None]
) -> Iterator[Result]:
    with disk, target.pair() as pair:
        found = alternate(
            settings.rounds,
            [ours_shared(pair), _raw_single(pair), _raw_shared(pair)],
            settings.progress(name, settings.rounds),
        )
    to_single = [(ours, single) for ours, single, _ in found]
    to_shared = [(ours, shared) for ours, _, shared in found]
    is_postgres = target.name == "postgres"
    yield Result(name, target.name, to_single, against="raw single", goal=None if is_postgres else goal)
    yield Result(
        name,
        target.name,
        to_shared,
        against="raw 8 threads",
        goal=Goal(0.85) if is_postgres else None,
        note="raw: a connection each" if is_postgres else "raw: one connection behind a lock",
    )


def bulk(target: Target, settings: Settings) -> Iterator[Result]:
    """W2: many jobs through the bulk call, in chunks of 5,000."""
    number = 20_000 if settings.quick else 100_000
    rounds = []
    progress = settings.progress("W2", settings.rounds_of_bulk)
    for turn in range(settings.rounds_of_bulk):
        items = make_items(number)
        chunks = [items[start : start + CHUNK] for start in range(0, number, CHUNK)]
        with target.pair() as pair:
            sides = [ours_bulk(pair, chunks), _raw_bulk(pair, chunks)]
            rounds += alternate(1, sides if turn % 2 else sides[::-1], lambda: None)
        if not turn % 2:
            rounds[-1] = rounds[-1][::-1]
        progress()
    yield Result("W2", target.name, rounds, against="raw bulk with journal", goal=Goal(0.6))


def ours_single(pair: Pair) -> Callable[[], float]:
    enqueue = pair.backend.enqueue_job

    def measure() -> float:
        items = make_items(20_000)
        pair.checkpoint()
        return rate(lambda item: enqueue(job_of(item)), items, OUR_SECONDS)

    return measure


def _raw_single(pair: Pair) -> Callable[[], float]:
    def measure() -> float:
        items = make_items(20_000)
        pair.checkpoint()
        return rate(pair.raw.submit, items, RAW_SECONDS)

    return measure


def ours_shared(pair: Pair) -> Callable[[], float]:
    def submit(item: Item) -> None:
        pair.backend.enqueue_job(job_of(item))

    def measure() -> float:
        items = [make_items(5_000) for _ in range(THREADS)]
        pair.checkpoint()
        return shared_rate([submit] * THREADS, items, OUR_SECONDS)

    return measure


def _raw_shared(pair: Pair) -> Callable[[], float]:
    clients = pair.raw.clients(THREADS)

    def measure() -> float:
        items = [make_items(5_000) for _ in range(THREADS)]
        pair.checkpoint()
        return shared_rate(clients, items, RAW_SECONDS)

    return measure


def ours_bulk(pair: Pair, chunks: Sequence[Sequence[Item]]) -> Callable[[], float]:
    def run() -> None:
        for chunk in chunks:
            pair.backend.enqueue_jobs([job_of(item) for item in chunk])

    return lambda: sum(map(len, chunks)) / timed(run)


def _raw_bulk(pair: Pair, chunks: Sequence[Sequence[Item]]) -> Callable[[], float]:
    def run() -> None:
        for chunk in chunks:
            pair.raw.bulk(chunk)

    return lambda: sum(map(len, chunks)) / timed(run)
