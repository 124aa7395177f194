"""From a url to a store: one `Driver` per kind of store.

This is the only module that knows which schemes exist and the only one that imports concrete stores. Other parts ask a
driver, or choose their own code by its `name`.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

from penstock._extras import how_to_install
from penstock.backends.config import configured_url
from penstock.backends.contract.backend import Backend
from penstock.backends.contract.overview import MigrationStep
from penstock.backends.options import read_options
from penstock.backends.urls import (
    DEFAULT_SCHEMA,
    displayed_location,
    postgres_location,
    scheme_of,
    sqlite_location,
)
from penstock.clock import Clock
from penstock.errors import BackendError, InvalidArgumentError, shown

__all__ = [
    "SCHEMES",
    "Driver",
    "check_connection",
    "default_url",
    "driver_for",
    "example_urls",
    "list_migrations",
    "migrate_store",
    "migration_script",
    "open_backend",
    "shared_driver_for",
]

logger = logging.getLogger("penstock")

#: How long the functions about migrations try to reach a server.
_CONNECT_SECONDS: Final = 5.0


class Driver(ABC):
    """How the stores of one kind are named, opened and migrated.

    Attributes:
        name: of the kind of store; other parts choose their code for it by this name.
        schemes: schemes of urls that name such a store, in lower case.
        prefix: how a url should begin.
        example: a url to show in messages.
        extra: the extra of this package that brings the client library; None if it is always installed.
        is_shared: whether processes other than the one that opened a store can open it, too.
        is_server: whether the store is a server, so that connecting and bulk statements have time limits of their own.
        option_names: options of `open_backend` that not every kind of store has.
        task_options: options to open a store with in one of many tasks of a cluster.
    """

    name: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]
    example: ClassVar[str]
    extra: ClassVar[str | None] = None
    option_names: ClassVar[tuple[str, ...]]
    is_shared: ClassVar[bool] = True
    is_server: ClassVar[bool] = False
    task_options: ClassVar[Mapping[str, Any]] = {}

    def __repr__(self) -> str:
        return f"<Driver {self.name}>"

    def absolute_url(self, url: str) -> str:
        """Return a url that names the same store from every working folder."""
        return url

    @abstractmethod
    def options_in(self, url: str) -> dict[str, Any]:
        """Return the options of `open_backend` that stand in a url."""

    @abstractmethod
    def location(self, url: str) -> str:
        """Return where the store is, for people: a url without its password. It is what `Backend.location` returns."""

    @abstractmethod
    def open(self, url: str, clock: Clock | None, options: Mapping[str, Any]) -> Backend:
        """Open a store; the options in the url are added to those given."""

    @abstractmethod
    def list_migrations(self, url: str, options: Mapping[str, Any]) -> list[MigrationStep]:
        """Return every step of a store's schema; see the function of this name."""

    @abstractmethod
    def migrate(self, url: str, options: Mapping[str, Any]) -> list[int]:
        """Apply the steps that a store lacks; see `migrate_store`."""

    @abstractmethod
    def migration_script(self, url: str, options: Mapping[str, Any], after: int) -> str:
        """Return the SQL of all steps above `after`."""

    @abstractmethod
    def scratch(self, url: str) -> AbstractContextManager[tuple[str, dict[str, Any]]]:
        """Give url and options of a new store beside the named one; it is removed at the end."""


class SqliteDriver(Driver):
    """Stores in a SQLite file."""

    name = "sqlite"
    schemes = ("sqlite",)
    prefix = "sqlite:///"
    example = "sqlite:///jobs.db"
    option_names = ("create", "durability", "timeout")

    def absolute_url(self, url: str) -> str:
        path, _ = sqlite_location(url)
        _, mark, query = url.partition("?")
        return f"{self.prefix}{quote(os.path.abspath(path))}{mark}{query}"  # noqa: PTH100  # needs no existing folder

    def options_in(self, url: str) -> dict[str, Any]:
        return dict(sqlite_location(url)[1])

    def location(self, url: str) -> str:
        return f"{self.prefix}{os.path.abspath(self._path(url))}"  # noqa: PTH100

    def open(self, url: str, clock: Clock | None, options: Mapping[str, Any]) -> Backend:
        from penstock.backends.sqlite import open_sqlite

        path, in_url = sqlite_location(url)
        return open_sqlite(path, clock=clock, options=_merged(in_url, options))

    def list_migrations(self, url: str, options: Mapping[str, Any]) -> list[MigrationStep]:
        from penstock.backends.sqlite import list_steps

        return list_steps(self._path(url))

    def migrate(self, url: str, options: Mapping[str, Any]) -> list[int]:
        from penstock.backends.sqlite import migrate_file

        return migrate_file(self._path(url))

    def migration_script(self, url: str, options: Mapping[str, Any], after: int) -> str:
        from penstock.backends.sqlite import migration_sql

        return migration_sql(after)

    @contextmanager
    def scratch(self, url: str) -> Iterator[tuple[str, dict[str, Any]]]:
        parent = Path(self._path(url)).absolute().parent
        if not parent.is_dir():
            raise InvalidArgumentError(f"there is no folder {parent}", field="url", value=url)
        # Beside the store: the system's folder for temporary files may be in memory.
        folder = tempfile.mkdtemp(prefix=".penstock-scratch-", dir=parent)
        try:
            yield f"{self.prefix}{quote(folder)}/jobs.db", self.options_in(url)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _path(self, url: str) -> str:
        return sqlite_location(url)[0]


class MemoryDriver(SqliteDriver):
    """Stores in the memory of the process that opens them."""

    name = "memory"
    schemes = ("memory",)
    prefix = "memory:"
    example = "memory:"
    is_shared = False

    def absolute_url(self, url: str) -> str:
        return url

    def location(self, url: str) -> str:
        return self.prefix

    @contextmanager
    def scratch(self, url: str) -> Iterator[tuple[str, dict[str, Any]]]:
        yield url, {}

    def _path(self, url: str) -> str:
        sqlite_location(url)  # names what is wrong with the url first
        raise InvalidArgumentError(
            f"{self.prefix} has no schema that outlives its object; name {example_urls()}",
            field="url",
            value=url,
        )


class PostgresDriver(Driver):
    """Stores in a schema of a PostgreSQL database."""

    name = "postgresql"
    schemes = ("postgresql", "postgres")
    prefix = "postgresql://"
    example = "postgresql://…"
    extra: ClassVar[str] = "postgres"
    option_names = (
        "connect_timeout",
        "create",
        "listen",
        "migrate",
        "pgbouncer",
        "pool_size",
        "schema",
        "timeout",
    )
    is_server = True
    # Many tasks share a server. One connection is enough for each, since claims and reports are batched.
    task_options: ClassVar[Mapping[str, Any]] = {"pool_size": 1, "listen": False}

    def _check_installed(self) -> None:
        try:
            import penstock.backends.postgres  # noqa: F401
        except ImportError as error:
            raise InvalidArgumentError(
                f"PostgreSQL needs an extra: {how_to_install(self.extra)}", field="url", value=self.name
            ) from error

    def options_in(self, url: str) -> dict[str, Any]:
        return postgres_location(url)[1]

    def location(self, url: str) -> str:
        address, in_url = postgres_location(url)
        return displayed_location(address, in_url.get("schema", DEFAULT_SCHEMA))

    def open(self, url: str, clock: Clock | None, options: Mapping[str, Any]) -> Backend:
        self._check_installed()
        from penstock.backends.postgres import open_postgres

        address, in_url = postgres_location(url)
        return open_postgres(address, clock=clock, options=_merged(in_url, options))

    def list_migrations(self, url: str, options: Mapping[str, Any]) -> list[MigrationStep]:
        self._check_installed()
        from penstock.backends.postgres import list_steps

        return list_steps(*self._schema_of(url, options))

    def migrate(self, url: str, options: Mapping[str, Any]) -> list[int]:
        self._check_installed()
        from penstock.backends.postgres import migrate

        return migrate(*self._schema_of(url, options))

    def migration_script(self, url: str, options: Mapping[str, Any], after: int) -> str:
        self._check_installed()
        from penstock.backends.postgres import migration_sql

        return migration_sql(self._schema_of(url, options)[1], after=after)

    @contextmanager
    def scratch(self, url: str) -> Iterator[tuple[str, dict[str, Any]]]:
        self._check_installed()
        from penstock.backends.postgres import drop_schema

        address, in_url = postgres_location(url)
        schema = f"penstock_scratch_{uuid.uuid4().hex[:12]}"
        try:
            yield address, {**in_url, "schema": schema}
        finally:
            try:
                drop_schema(address, schema, _CONNECT_SECONDS)
            except BackendError as error:
                logger.warning("the schema %s could not be dropped: %s", schema, error)

    def _schema_of(self, url: str, options: Mapping[str, Any]) -> tuple[str, str, float]:
        """Return the address of the server, the schema, and how long to try to connect."""
        address, in_url = postgres_location(url)
        in_url.pop("pgbouncer", None)
        found = _merged(in_url, options)
        return (
            address,
            found.get("schema", DEFAULT_SCHEMA),
            found.get("connect_timeout", _CONNECT_SECONDS),
        )


_DRIVERS: Final[tuple[Driver, ...]] = (MemoryDriver(), SqliteDriver(), PostgresDriver())
_BY_SCHEME: Final = {scheme: driver for driver in _DRIVERS for scheme in driver.schemes}
#: Every scheme with which the url of a store may begin.
SCHEMES: Final = tuple(_BY_SCHEME)


def driver_for(url: str) -> Driver:
    """Return the driver of the store that a url names.

    Raises:
        InvalidArgumentError: not a url, or its scheme is unknown.
    """
    return _known(url, _DRIVERS)


def shared_driver_for(url: str) -> Driver:
    """Return the driver of a store that several processes are to open.

    Raises:
        InvalidArgumentError: not a url, its scheme is unknown, or its store belongs to one process.
    """
    driver = _known(url, [each for each in _DRIVERS if each.is_shared])
    if not driver.is_shared:
        raise InvalidArgumentError(
            f"a store in {driver.prefix} belongs to one process; use {example_urls()}", field="url", value=url
        )
    return driver


def example_urls() -> str:
    """Return example urls of stores that several processes can open, for messages."""
    return " or ".join(each.example for each in _DRIVERS if each.is_shared)


def default_url() -> str:
    """Return the store for callers that name none: `$PENSTOCK_URL`, else `url` in penstock.toml, else penstock.db here.

    Raises:
        InvalidArgumentError: penstock.toml cannot be read, is not valid TOML, or its `url` is not a text.
    """
    return os.environ.get("PENSTOCK_URL") or configured_url() or "sqlite:///penstock.db"


def check_connection(url: str | None, clock: Clock | None, options: dict[str, Any]) -> None:
    """Refuse arguments of `connect` that are wrong for every kind of store; opens nothing.

    Raises:
        InvalidArgumentError: as for `connect`, except for values of options that not every kind of store has.
    """
    if url is not None:
        driver_for(url)
    own = {name: None for driver in _DRIVERS for name in driver.option_names}
    read_options(options, own, clock=clock)


def open_backend(url: str | None = None, *, clock: Clock | None = None, **options: Any) -> Backend:
    """Open a store.

    Args:
        url: "memory:", "sqlite:///file.db" (four slashes for an absolute path), or "postgresql://…". None is
            `$PENSTOCK_URL`, else `url` in penstock.toml, else sqlite:///penstock.db. Options that say where and how a
            store is kept may stand in the query: "sqlite:///file.db?durability=normal",
            "postgresql://…?schema=shop&pgbouncer=true".
        clock: replaces the store's clock; anything with `now()`.
        **options: `max_payload`, `idempotency_window`, `max_pending`, `max_depth`, `retention`, `liveness`, and the store's
            own: `durability` and `timeout` for SQLite; `schema`, `pool_size`, `timeout`, `connect_timeout`, `migrate`,
            `pgbouncer` and `listen` for PostgreSQL; `create=False` for both, which refuses a place without a store instead of making
            one.

    Raises:
        InvalidArgumentError: an unknown kind of url, or options that are wrong; all of them are named at once.
        BackendError: the store cannot be opened.
    """
    url = default_url() if url is None else url
    return driver_for(url).open(url, clock, options)


def list_migrations(
    url: str | None = None, *, schema: str | None = None, connect_timeout: float | None = None
) -> list[MigrationStep]:
    """Return every step of a store's schema, applied or not; changes nothing, also if there is no store.

    Args:
        url: as for `open_backend`.
        schema: of a PostgreSQL store.
        connect_timeout: seconds to try to reach a PostgreSQL server; 5 unless given here or in the url.

    Raises:
        InvalidArgumentError: the url or the schema is wrong, or names a file that does not exist.
        BackendError: the store cannot be reached.
    """
    url = default_url() if url is None else url
    return driver_for(url).list_migrations(url, _given(schema=schema, connect_timeout=connect_timeout))


def migrate_store(
    url: str | None = None, *, schema: str | None = None, connect_timeout: float | None = None
) -> list[int]:
    """Bring a store to the version this code needs, making it if there is none; return the steps applied.

    On PostgreSQL all steps are one transaction, on SQLite each step is one. Several processes may try at once: one does
    it, the others wait.

    Raises:
        InvalidArgumentError: the url or the schema is wrong.
        BackendError: the store cannot be reached, or is so new that this code may not touch it.
    """
    url = default_url() if url is None else url
    return driver_for(url).migrate(url, _given(schema=schema, connect_timeout=connect_timeout))


def migration_script(url: str | None = None, *, schema: str | None = None, after: int = 0) -> str:
    """Return the SQL of all steps above `after` for a store of that kind; opens no store."""
    url = default_url() if url is None else url
    return driver_for(url).migration_script(url, _given(schema=schema), after)


def _known(url: str, accepted: Iterable[Driver]) -> Driver:
    scheme = scheme_of(url)
    if scheme in _BY_SCHEME:
        return _BY_SCHEME[scheme]
    prefixes = [each.prefix for each in accepted]
    listed = f"{', '.join(prefixes[:-1])} or {prefixes[-1]}"
    has_scheme = scheme and url[len(scheme) :].startswith("://")  # else it may be a user name
    got = f", got {shown(scheme)}" if has_scheme else "; this one has no such beginning"
    raise InvalidArgumentError(f"url must begin with {listed}{got}", field="url")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _merged(in_url: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    twice = sorted(in_url.keys() & options.keys())
    if twice:
        raise InvalidArgumentError(
            f"{', '.join(twice)} is given in the url and as an option", field="options", value=twice
        )
    return {**in_url, **options}
