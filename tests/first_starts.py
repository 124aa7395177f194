"""Processes that open the same new store at the same moment."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROGRAM = """
import json, sys
import penstock
from penstock.job import Job

for line in sys.stdin:
    url, options = json.loads(line)
    try:
        with penstock.open_backend(url, **options) as backend:
            backend.enqueue_job(Job.new("t"))
        print("", flush=True)
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""


class Starters:
    """Processes that have imported everything and wait for the store to open."""

    def __init__(self, processes: list["subprocess.Popen[str]"]) -> None:
        self._processes = processes

    def start(self, url: str, **options: object) -> list[str]:
        """Have all of them open a store and submit one job; return what went wrong."""
        order = json.dumps([url, options]) + "\n"
        for each in self._processes:
            assert each.stdin is not None
            each.stdin.write(order)
            each.stdin.flush()
        answers = [each.stdout.readline() for each in self._processes if each.stdout is not None]
        return [json.loads(answer) for answer in answers if answer.strip()]


@contextmanager
def starters(count: int = 4) -> Iterator[Starters]:
    """Run so many processes; they end with the block."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    try:
        yield Starters(processes)
    finally:
        for each in processes:
            each.communicate(timeout=60)
