"""The places that products are measured in: folders for SQLite, databases of a PostgreSQL server, a Redis server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.postgres import PostgresTarget

START_SECONDS: Final = 10.0
DURABLE: Final = ("fsync on", "synchronous_commit on")


class MissingError(Exception):
    """A server that is not on this machine."""


class Places:
    """Gives empty places of every kind of store; starts a server when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._postgres: PostgresTarget | None = None
        self._redis: str | None = None

    def prepare(self, store: str) -> dict[str, str]:
        """Start what a store needs; return versions and settings.

        Raises:
            MissingError: there is no such server here.
        """
        if store == "postgres":
            return self._start_postgres()
        if store == "redis":
            return self._start_redis()
        return {}

    @contextmanager
    def empty(self, store: str) -> Iterator[str]:
        """Give a place that nothing was stored in, and remove it afterwards; a Redis product empties its own."""
        if store == "sqlite":
            with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as folder:
                yield folder
        elif store == "postgres":
            assert self._postgres is not None
            with self._postgres.scratch() as (_, url):
                self._postgres.checkpoint("")
                yield url
        else:
            assert self._redis is not None
            yield self._redis

    def close(self) -> None:
        """Stop the servers."""
        self._stack.close()

    def _start_postgres(self) -> dict[str, str]:
        if self._postgres is None:
            try:
                self._postgres = PostgresTarget(self._folder, None)
            except ImportError as error:
                raise MissingError(f"PostgreSQL: {error}") from None
            self._stack.callback(self._postgres.close)
        facts = self._postgres.facts()
        if not all(setting in facts["postgres"] for setting in DURABLE):
            raise MissingError(f"PostgreSQL is not durable: {facts['postgres']}")
        return {"PostgreSQL": facts["postgres"]}

    def _start_redis(self) -> dict[str, str]:
        program = shutil.which("redis-server")
        if program is None:
            raise MissingError("redis-server is not on the PATH")
        if self._redis is None:
            port = _free_port()
            folder = self._stack.enter_context(
                tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True)
            )
            command = [
                program, "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", "",
                "--appendonly", "yes", "--appendfsync", "everysec", "--daemonize", "no",
            ]  # fmt: skip
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._stack.callback(_end, server)
            _await_port(server, port)
            self._redis = f"redis://127.0.0.1:{port}/0"
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        version = next((word for word in shown.split() if word.startswith("v=")), "v=?")
        return {"Redis": f"server {version[2:]}, appendonly yes, appendfsync everysec"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(server: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > give_up_at:
                raise MissingError("redis-server does not start") from None
            time.sleep(0.05)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(START_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
