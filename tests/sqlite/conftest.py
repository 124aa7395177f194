"""A file of its own for each test, and children that never outlive it."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite.faulty_disk import FaultyDisk, faulty_disk
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


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    """A disk whose faults the test arms, under every store that is opened after it."""
    with faulty_disk() as disk:
        yield disk
