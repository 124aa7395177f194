"""Streams on PostgreSQL: what other processes do, and a server that drops its sessions."""

import pytest
from tests.waiting import pass_time

import penstock
from penstock import Job, JobStatus, OperationCancelledError, Queue, cancel_scope


@pytest.fixture
def queue(backend):
    with Queue(backend) as queue:
        yield queue


def take(stream):
    with cancel_scope(timeout=20):
        return next(stream)


def test_streams_survive_the_loss_of_every_session(queue, admin, schema):
    """Q20, C20: the store is there again before the retries are over."""
    with queue.stream_jobs("w", max_assigned_jobs=2) as stream:
        for number in range(3):
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'penstock' AND pid <> pg_backend_pid()"
            )
            queue.enqueue_job(Job(id=f"job{number}", type="t"))
            (job,) = take(stream)
            assert job.id == f"job{number}"
            queue.complete_job(job.id, attempt=job.attempt)


def test_what_another_process_does_is_noticed(queue, open_store):
    """Q13, Q28, Q34: another object on the store is another process to this one."""
    other = open_store()
    with queue.stream_jobs("w") as stream:
        other.enqueue_jobs([Job(id="a", type="t"), Job(id="b", type="t")])
        assert [job.id for job in take(stream)] == ["a"]
        with cancel_scope(timeout=0.3), pytest.raises(OperationCancelledError):
            next(stream)
        other.complete_job("a")
        assert [job.id for job in take(stream)] == ["b"]
    assert queue.get_job("b").status is JobStatus.RUNNING


@pytest.mark.deep
def test_streams_survive_a_restart_of_the_server(server):
    """Q20, C20: nobody else notices either, but for the time it takes."""
    with (
        penstock.connect(server.url, schema="restart", timeout=1) as queue,
        queue.stream_jobs("w", max_assigned_jobs=2) as stream,
    ):
        for stop, number in (("fast", 0), ("immediate", 1)):
            server.control("stop", "-m", stop)
            pass_time(7)  # longer than a few tries of the store itself take
            server.start()
            queue.enqueue_job(Job(id=f"job{number}", type="t"))
            (job,) = take(stream)
            assert job.id == f"job{number}"
            queue.complete_job(job.id, attempt=job.attempt)
