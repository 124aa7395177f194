"""Workers of several processes over an outage of the store that is longer than its liveness (F3)."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.waiting import freeze, pass_time, throughout, until

import penstock
from penstock import Job, JobStatus, Queue, RetryPolicy

pytestmark = [pytest.mark.process, pytest.mark.deep]

SOON = 60.0
LIVENESS = 2.0  # a busy machine may keep a worker waiting for half of that
WORKERS, SLOTS = 3, 4
OUTAGE_SECONDS = 2 * LIVENESS
WORKER = """
import sys, time
from pathlib import Path
from penstock import App, Worker

url, folder, liveness = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
app = App(url, liveness=liveness, timeout=liveness / 2)

@app.job
def long(number: int) -> int:
    with (folder / "runs").open("a") as runs:
        runs.write(f"{number}\\n")
    while not (folder / f"go-{number}").exists():
        time.sleep(0.02)
    return number

Worker(app, 4, isolation="thread").run()
"""


class Outage:
    """Keeps everybody from writing: as an outage of the store, but over when it should be."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        self._stack = contextlib.ExitStack()
        if self._url.startswith("sqlite"):
            connection = apsw.Connection(self._url.removeprefix("sqlite:///"))
            connection.set_busy_timeout(int(SOON * 1000))
            self._stack.callback(connection.close)
            connection.execute("BEGIN IMMEDIATE")
            return
        import psycopg

        server = self._stack.enter_context(psycopg.connect(self._url))
        server.execute("LOCK TABLE penstock.job, penstock.owner, penstock.upkeep IN ACCESS EXCLUSIVE MODE")

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def queue(shared_url: str) -> Iterator[Queue]:
    with penstock.connect(shared_url, liveness=LIVENESS) as queue:
        yield queue


class Workers(list[subprocess.Popen[bytes]]):
    """Workers in processes of their own, which note in a file what they run."""

    def signal(self, number: signal.Signals) -> None:
        for process in self:
            process.send_signal(number)


@pytest.fixture
def workers(shared_url: str, queue: Queue, tmp_path: Path) -> Iterator[Workers]:
    processes = Workers()
    for number in range(WORKERS):
        with (tmp_path / f"log-{number}").open("w") as log:
            arguments = [sys.executable, "-c", WORKER, shared_url, str(tmp_path), str(LIVENESS)]
            processes.append(subprocess.Popen(arguments, stderr=log))
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def runs(folder: Path) -> list[int]:
    noted = folder / "runs"
    return [int(line) for line in noted.read_text().split()] if noted.exists() else []


def completed(queue: Queue) -> list[int]:
    found = queue.list_jobs(status=JobStatus.COMPLETED)
    return sorted(int(job.result or b"-1") for job in found)


def test_an_outage_takes_no_job_from_a_living_worker(
    queue: Queue, shared_url: str, workers: Workers, tmp_path: Path
) -> None:
    """C28: none is repeated, none is dead, and what ended during the outage is reported after it."""
    numbers = list(range(WORKERS * SLOTS))

    def finds_none_lost() -> None:
        assert queue.maintain().lost == 0

    queue.enqueue_jobs(
        [
            Job(
                id=f"job-{number}",
                type="long",
                payload=b'{"number":%d}' % number,
                retry=RetryPolicy(max_attempts=1 + number % 3),
            )
            for number in numbers
        ]
    )
    until(lambda: sorted(runs(tmp_path)) == numbers)
    early, late = numbers[::2], numbers[1::2]
    with Outage(shared_url):
        for number in early:
            (tmp_path / f"go-{number}").touch()
        pass_time(OUTAGE_SECONDS)
        if shared_url.startswith(
            "sqlite"
        ):  # so that upkeep surely comes first; a frozen session would hold locks
            for worker in workers:
                freeze(worker.pid)
    finds_none_lost()
    workers.signal(signal.SIGCONT)
    # This process judges all the time, also after the wait of one liveness period.
    throughout(1.5 * LIVENESS, finds_none_lost)
    until(lambda: completed(queue) == early)
    for number in late:
        (tmp_path / f"go-{number}").touch()
    until(lambda: completed(queue) == numbers)
    assert sorted(runs(tmp_path)) == numbers
    assert {job.attempt for job in queue.list_jobs()} == {1}
