"""Consumers that were declared unresponsive, across processes and with a worker (F12)."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.app.working import working
from tests.waiting import until

import penstock
from penstock import App, Job, JobStatus, Queue, cancel_scope

SOON = 30.0
CONSUMER = """
import sys
import penstock

queue = penstock.connect(sys.argv[1])
stream = queue.stream_jobs("silent", max_assigned_jobs=3)
for batch in stream:
    print(*(f"{job.id}/{job.attempt}" for job in batch), flush=True)
"""


@pytest.fixture
def queue(shared_url: str) -> Iterator[Queue]:
    with penstock.connect(shared_url) as queue:
        yield queue


@pytest.fixture
def line(shared_url: str, queue: Queue) -> Iterator[Callable[[], str]]:
    """What another process gets from a stream and never reports, batch by batch."""
    process = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, shared_url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process.stdout.readline
    process.kill()
    process.communicate()


@pytest.mark.process
def test_the_stream_of_another_process_gets_nothing_until_a_sign_of_life(
    queue: Queue, line: Callable[[], str]
) -> None:
    queue.enqueue_job(Job(id="a", type="work"))
    assert line() == "a/1\n"
    queue.mark_worker_unresponsive("silent")
    queue.enqueue_job(Job(id="b", type="work"))
    healthy = queue.stream_jobs("healthy", max_assigned_jobs=2)
    found: dict[str, int] = {}
    with cancel_scope(timeout=SOON):
        while len(found) < 2:
            found |= {job.id: job.attempt for job in next(healthy)}
    assert found == {"a": 2, "b": 1}
    queue.enqueue_job(Job(id="c", type="work"))
    queue.backend.heartbeat("silent")
    assert line() == "c/1\n"


@pytest.mark.parametrize("was_busy", [True, False])
def test_a_worker_that_was_declared_unresponsive_says_that_it_lives(shared_url: str, was_busy: bool) -> None:
    app = App(shared_url)

    @app.job
    def quick() -> str:
        return "done"

    with working(app) as worker:
        if was_busy:
            assert quick.submit().result(SOON) == "done"
        until(lambda: worker._intake.stream is not None and not worker._intake.stream.is_new)
        app.queue.mark_worker_unresponsive(worker.name)
        assert quick.submit().result(SOON) == "done"
        assert app.queue.backend.runtime.unresponsive([worker.name]) == set()
        assert {job.status for job in app.queue.list_jobs()} == {JobStatus.COMPLETED}
    app.close()
