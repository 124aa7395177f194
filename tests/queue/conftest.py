from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Queue

pytest.register_assert_rewrite("penstock.testing.conformance")


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., Queue]]:
    """Open queues that are closed at the end of the test."""
    opened: list[Queue] = []

    def open_queue(**options: object) -> Queue:
        opened.append(penstock.connect(url, **options))
        return opened[-1]

    yield open_queue
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(connect: Callable[..., Queue]) -> Queue:
    return connect()
