"""A process that was frozen for longer than the liveness of its store (F6): real processes, SIGSTOP and SIGCONT."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import freeze, throughout, until

import penstock
from penstock import Backend
from penstock.job import JobStatus

pytestmark = [pytest.mark.process, pytest.mark.slow]

LIVENESS = 2.0  # a busy machine may keep a process waiting for half of that
CHILD = """
import json, sys
from datetime import UTC, datetime
import penstock
from penstock.processes import BackendRegistry, JobRecord, JobStatus

url, liveness = json.loads(sys.argv[1])
registry = BackendRegistry(penstock.open_backend(url, liveness=liveness))
for line in sys.stdin:
    job_id, status = line.split()
    now = datetime.now(UTC)
    try:
        registry.append(JobRecord(job_id, JobStatus[status], 0, None, None, now, now))
        print("done", flush=True)
    except penstock.PenstockError as error:
        print(type(error).__name__, flush=True)
"""


class Child:
    """Another process with a registry on the same store, which follows commands."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, json.dumps([url, LIVENESS])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def append(self, job_id: str, status: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{job_id} {status}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def freeze(self, url: str) -> None:
        """Freeze it while it is not writing: SQLite would let no other process write until it goes on."""
        for _ in range(20):
            freeze(self.process.pid)
            try:
                with penstock.open_backend(url, timeout=2) as store:
                    store.set_blocked(False)
            except penstock.BackendError:
                self.thaw()
            else:
                return
        pytest.fail("the process was writing every time")

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(url: str) -> Iterator[Backend]:
    with penstock.open_backend(url, liveness=LIVENESS) as backend:
        yield backend


@pytest.fixture
def child(url: str, store: Backend) -> Iterator[Child]:
    child = Child(url)
    yield child
    child.thaw()
    child.process.kill()
    child.process.communicate()


def is_reclaimed(store: Backend, job_id: str) -> bool:
    store.maintain()
    return store.get_job(job_id).status is JobStatus.DEAD_LETTER


def test_a_process_that_was_frozen_registers_again_and_keeps_the_jobs_it_starts_later(
    url: str, store: Backend, child: Child
) -> None:
    """C63: while another process does the upkeep and judges all the time."""
    before, after = str(uuid.uuid4()), str(uuid.uuid4())
    assert child.append(before, "RUNNING") == "done"
    child.freeze(url)
    until(lambda: is_reclaimed(store, before))
    assert store.reading.overview().owners == ()
    child.thaw()
    assert (
        child.append(before, "COMPLETED") == "done"
    )  # its result is true, and no other process can have run it
    assert store.get_job(before).status is JobStatus.COMPLETED
    assert child.append(after, "RUNNING") == "done"

    def is_kept() -> None:
        store.maintain()
        assert store.get_job(after).status is JobStatus.RUNNING

    throughout(1.5 * LIVENESS, is_kept)
    assert child.append(after, "COMPLETED") == "done"
    assert store.get_job(after).status is JobStatus.COMPLETED
