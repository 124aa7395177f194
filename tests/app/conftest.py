from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stores import postgres_database, postgres_databases, postgres_store, postgres_url

from penstock import App

__all__ = ["postgres_database", "postgres_databases", "postgres_store", "postgres_url"]

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, on each kind of store that workers use."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def make_app() -> Iterator[Callable[..., App]]:
    """Make apps that are closed at the end of the test."""
    made: list[App] = []

    def make(url: str = "memory:", **settings: Any) -> App:
        made.append(App(url, **settings))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., App]) -> App:
    """An app on a store in memory."""
    return make_app()


@pytest.fixture
def stored_app(make_app: Callable[..., App], url: str) -> App:
    """An app on each kind of store that workers use."""
    return make_app(url)
