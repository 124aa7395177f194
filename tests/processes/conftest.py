import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.stores import postgres_database, postgres_databases, postgres_store, postgres_url

import penstock
from penstock.processes import BackendRegistry, JobQueue, JsonlRegistry, Registry

__all__ = ["postgres_database", "postgres_databases", "postgres_store", "postgres_url"]

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=["jsonl", "sqlite", POSTGRES])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    """A registry of each kind."""
    if request.param == "jsonl":
        yield JsonlRegistry(tmp_path / "runtime" / "registry.jsonl")
        return
    url = (
        f"sqlite:///{tmp_path}/jobs.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_store")
    )
    with penstock.open_backend(url) as backend:
        yield BackendRegistry(backend)


@pytest.fixture
def queue(registry: Registry) -> Iterator[JobQueue]:
    with JobQueue(registry) as queue:
        yield queue


@pytest.fixture
def jsonl_queue(tmp_path: Path) -> Iterator[JobQueue]:
    """A queue for what does not depend on the registry."""
    with JobQueue(JsonlRegistry(tmp_path / "registry.jsonl")) as queue:
        yield queue


@pytest.fixture
def new_id() -> Callable[[], str]:
    return lambda: str(uuid.uuid4())
