import contextlib
import os
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.isolation import Ending, JobProcess, Message, Result, Setup, Supervisor

SPARES = 2  # as workers do; supervisors that tests make for themselves have none


class Listener:
    """A watcher that keeps what it hears."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.endings: queue.SimpleQueue[Ending] = queue.SimpleQueue()

    def received(self, process: JobProcess, message: Message) -> None:
        self.messages.put(message)

    def ended(self, process: JobProcess, ending: Ending) -> None:
        self.endings.put(ending)

    def result(self) -> bytes | None:
        """Wait for the next result."""
        while True:
            message = self.messages.get(timeout=30)
            if isinstance(message, Result):
                return message.data

    def ending(self) -> Ending:
        return self.endings.get(timeout=30)


class Jobs:
    """Starts entries of `tests.process.entries`, each function in a supervisor of its own."""

    def __init__(self) -> None:
        self._supervisors: dict[str, Supervisor] = {}

    def supervisor(self, entry: str) -> Supervisor:
        if entry not in self._supervisors:
            setup = Setup(entry=f"tests.process.entries:{entry}", target="tests.process.entries:TARGET")
            self._supervisors[entry] = Supervisor(setup, spares=SPARES)
        return self._supervisors[entry]

    def start(self, entry: str, payload: bytes = b"", **options: object) -> tuple[JobProcess, Listener]:
        listener = Listener()
        return self.supervisor(entry).launch(payload, listener, **options), listener

    def close(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.close()


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.close()


def is_alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not, and is an error where there should be none."""
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state != b"Z"
    return False


def children() -> set[int]:
    """Return the pids of this process's children, zombies included."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.add(int(name))
    return found
