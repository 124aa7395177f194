"""A file of its own for each test, and children that never outlive it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite.support import Child, GateClock, open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the test's file, any number of times, and closes every object at the end."""
    stores: list[Any] = []

    def open_it(**options: Any) -> Any:
        stores.append(open_store(path, **options))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


@pytest.fixture
def clock() -> GateClock:
    return GateClock()


@pytest.fixture
def backend(opened: Callable[..., Any]) -> Any:
    return opened()


@pytest.fixture
def child(path: Path) -> Iterator[Callable[..., Child]]:
    """Starts children on the test's file."""
    started: list[Child] = []

    def start(code: str, *arguments: object) -> Child:
        started.append(Child(code, path, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.end()
