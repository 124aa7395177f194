from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.stores import postgres_database, postgres_databases, postgres_store, postgres_url

import penstock
from penstock import Queue

__all__ = ["postgres_database", "postgres_databases", "postgres_store", "postgres_url"]

pytest.register_assert_rewrite("penstock.testing.conformance")


POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.deep), "sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture(params=["sqlite", POSTGRES])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that several processes may open."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"sqlite:///{tmp_path}/jobs.db"


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
