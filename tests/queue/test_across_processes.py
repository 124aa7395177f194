"""Streams and other processes on the same store (Q13, Q33, Q34, C63)."""

import multiprocessing
import os
from pathlib import Path

import pytest
from tests.waiting import until

import penstock
from penstock import Job, JobStatus, JobStream, cancel_scope

pytestmark = [pytest.mark.process]
SOON = 30.0
spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def url(shared_url: str) -> str:
    return shared_url


def take(stream: JobStream) -> Job:
    with cancel_scope(timeout=SOON):
        (job,) = next(stream)
    return job


def run(target: object, *args: object) -> None:
    child = spawn.Process(target=target, args=args)
    child.start()
    child.join(SOON)
    assert child.exitcode is not None


def _enqueue(url: str, job_id: str) -> None:
    with penstock.open_backend(url) as backend:
        backend.enqueue_job(Job(id=job_id, type="work"))


def _complete(url: str, job_id: str) -> None:
    with penstock.open_backend(url) as backend:
        backend.complete_job(job_id)


def _take_and_die(url: str) -> None:
    stream = penstock.connect(url).stream_jobs("doomed")
    take(stream)
    os._exit(1)


def test_a_job_of_another_process_reaches_a_waiting_stream(url: str) -> None:
    """Q13, Q34."""
    with penstock.connect(url) as queue:
        stream = queue.stream_jobs("worker")
        run(_enqueue, url, "theirs")
        assert take(stream).id == "theirs"


def test_a_job_finished_by_another_process_frees_the_slot(url: str) -> None:
    """Q28, C11."""
    with penstock.connect(url) as queue:
        queue.enqueue_jobs([Job(id="a", type="work"), Job(id="b", type="work")])
        stream = queue.stream_jobs("worker")
        assert take(stream).id == "a"
        run(_complete, url, "a")
        assert take(stream).id == "b"


@pytest.mark.slow
def test_the_jobs_of_a_dead_process_come_back_by_themselves(url: str) -> None:
    """Q45, C63: nobody has to say so, and the living keep theirs."""
    with penstock.connect(url) as queue:
        queue.enqueue_job(Job(id="mine", type="mine"))
        mine = queue.stream_jobs("me", types=["mine"])
        take(mine)
        queue.enqueue_job(Job(id="a", type="work"))
        run(_take_and_die, url)
        assert queue.get_job("a").assignee_id == "doomed"
        stream = queue.stream_jobs("worker", types=["work"])
        again = take(stream)
        assert (again.id, again.attempt, again.assignee_id) == ("a", 2, "worker")
        assert queue.get_job("mine").status is JobStatus.RUNNING


def test_two_queues_on_one_file_share_the_work(url: str) -> None:
    """Q33."""
    with penstock.connect(url) as first, penstock.connect(url) as second:
        streams = [
            first.stream_jobs("one", max_assigned_jobs=5),
            second.stream_jobs("two", max_assigned_jobs=5),
        ]
        first.enqueue_jobs([Job(id=f"job{number}", type="work") for number in range(10)])
        seen: list[str] = []
        with cancel_scope(timeout=SOON):
            for stream in streams:
                until(lambda stream=stream: stream.held and not stream.free)
                seen += [job.id for job in next(stream)]
        assert sorted(seen) == sorted(f"job{number}" for number in range(10))


def test_a_child_of_a_fork_leaves_its_parents_streams_alone(tmp_path: Path) -> None:
    """F9: closing the queue in the child gives nothing of the parent's back."""
    with penstock.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue_jobs([Job(id=f"job-{number}", type="t") for number in range(4)])
        taken = queue.stream_jobs("taken", max_assigned_jobs=2)
        with cancel_scope(timeout=SOON):
            jobs = next(taken)
        untaken = queue.stream_jobs("untaken", max_assigned_jobs=2)
        until(lambda: not untaken.free)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                untaken.close()
                try:
                    next(taken)
                except penstock.QueueClosedError:
                    queue.close()
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert queue.get_job_stats().running_jobs == 4
        queue.complete_jobs({job.id: None for job in jobs}, attempts={job.id: job.attempt for job in jobs})
        with cancel_scope(timeout=SOON):
            assert len(next(untaken)) == 2
