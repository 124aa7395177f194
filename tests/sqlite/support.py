"""What the tests of the SQLite store share: children to kill and freeze, waiting without sleeping, looking inside."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
from tests.waiting import until

import penstock
from penstock.backends import Backend
from penstock.job import Job
from penstock.testing import ManualClock, check_invariants

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0


def open_store(path: object, **options: Any) -> Any:
    return penstock.open_backend(f"sqlite:///{path}", **options)


def jobs(count: int, name: str = "job", **fields: Any) -> list[Job]:
    return [Job(id=f"{name}-{number}", type="t", **fields) for number in range(count)]


def journal(backend: Backend) -> list[Any]:
    rows: list[Any] = []
    while page := backend.read_journal(rows[-1].seq if rows else 0, 10_000):
        rows += page
    return rows


def all_jobs(backend: Backend) -> list[Job]:
    found: list[Job] = []
    while page := backend.list_jobs(after=found[-1].id if found else None, limit=1000):
        found += page
    return found


def assert_sound(backend: Backend, path: object = None, **known: Any) -> None:
    """The journal breaks no invariant, its fold is the jobs table, and SQLite finds its file whole."""
    assert check_invariants(journal(backend), jobs=all_jobs(backend), **known) == []
    if path is not None:
        assert query(path, "PRAGMA integrity_check") == [("ok",)]


def query(path: object, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Ask the file itself, through a connection of its own."""
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(10_000)
        return connection.execute(sql, parameters).fetchall()


def writer_of(backend: Any) -> Any:
    """The object that leads group commits."""
    return backend._store._current_writer()


def waiting_in(backend: Any) -> int:
    return len(writer_of(backend)._waiting)


class Thread(threading.Thread):
    """A thread that keeps what its action returned or raised."""

    def __init__(self, action: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._action()
        except BaseException as error:
            self.error = error

    def outcome(self) -> Any:
        """Wait for the end; return the result, or the error as a value."""
        self.join(DEADLINE)
        assert not self.is_alive(), "a call did not return"
        return self.result if self.error is None else self.error


class GateClock(ManualClock):
    """Holds whoever asks for the time: the first one is inside a transaction then, with others queued behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._hit: Callable[[], None] | None = None

    def shut(self) -> None:
        self.entered.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def now(self) -> Any:
        self.entered.set()
        assert self._open.wait(DEADLINE)
        return super().now()


@contextlib.contextmanager
def group(backend: Any, clock: GateClock, *actions: Callable[[], Any]) -> Iterator[list[Thread]]:
    """Start the actions so that the first leads and the others wait, in this order, to share its transaction."""
    clock.shut()
    threads = [Thread(actions[0])]
    try:
        assert clock.entered.wait(DEADLINE)
        for number, action in enumerate(actions[1:], start=1):
            threads.append(Thread(action))
            until(lambda number=number: waiting_in(backend) >= number)
        yield threads
    finally:
        clock.open()
    for thread in threads:
        thread.outcome()


class Child:
    """A Python process that runs a piece of code with `path`, `say` and `hear` at hand, and is killed at the end."""

    def __init__(self, code: str, path: object, *arguments: object) -> None:
        head = (
            "import os, sys, threading, time, signal\n"
            # A background job of a shell is started with Ctrl-C ignored, and its children inherit that.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "import penstock\n"
            "from penstock.job import Job, Key\n"
            "from penstock.errors import *\n"
            "path, *arguments = sys.argv[1:]\n"
            "def say(word): os.write(1, (str(word) + '\\n').encode())\n"
            "def hear(): return sys.stdin.readline().strip()\n"
            "def store(**options): return penstock.open_backend('sqlite:///' + path, **options)\n"
        )
        places = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", head + code, str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.environ.get("PENSTOCK_UNDER_TEST", places)},
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """Return the next line it says; empty when it has ended."""
        return self.process.stdout.readline().strip()

    def hear_all(self) -> list[str]:
        return self.process.stdout.read().split("\n")[:-1]

    def say(self, word: str = "") -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(DEADLINE)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        self.process.stdin.close()
        self.process.stdout.close()
