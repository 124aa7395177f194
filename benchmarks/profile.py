"""Where our time goes: `python -m benchmarks.profile w2 loop`. cProfile makes small calls look dearer than they are."""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.items import job_of, make_items
from benchmarks.stores import SqliteTarget
from penstock import Backend

CHUNK: Final = 5_000
LINES: Final = 28


def single(backend: Backend) -> Callable[[], None]:
    items = make_items(3_000)

    def run() -> None:
        for item in items:
            backend.enqueue_job(job_of(item))

    return run


def bulk(backend: Backend) -> Callable[[], None]:
    items = make_items(50_000)

    def run() -> None:
        for start in range(0, len(items), CHUNK):
            backend.enqueue_jobs([job_of(item) for item in items[start : start + CHUNK]])

    return run


def loop(backend: Backend) -> Callable[[], None]:
    bulk(backend)()

    def run() -> None:
        for _ in range(200):
            jobs = backend.dequeue_jobs("bench", limit=100)
            backend.complete_jobs(
                dict.fromkeys(job.id for job in jobs), attempts={j.id: j.attempt for j in jobs}
            )

    return run


CASES: Final = {"w1": single, "w2": bulk, "loop": loop}


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-profile-") as folder:
        for name in names or CASES:
            target = SqliteTarget(Path(folder))
            with target.pair() as pair:
                run = CASES[name](pair.backend)
                pair.checkpoint()
                profile = cProfile.Profile()
                profile.runcall(run)
            print(f"== {name}")
            pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main(sys.argv[1:])
