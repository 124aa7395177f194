"""Thousands of streams in one process: few threads, and only those that may find something ask the store (Q26, Q34)."""

import threading
from pathlib import Path

import pytest

import penstock
from penstock import Job, Queue, cancel_scope
from penstock.backends import ClaimRequest

SOON = 10.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def test_thousands_of_streams_own_no_thread(url: str) -> None:
    before = set(threading.enumerate())
    with penstock.connect(url) as queue:
        streams = [queue.stream_jobs(f"worker-{number}", [f"tag-{number}"]) for number in range(3_000)]
        names = sorted(each.name for each in threading.enumerate() if each not in before)
        assert names == ["penstock-beat", "penstock-dispatch", "penstock-listen", "penstock-upkeep"]
        queue.enqueue_job(Job(id="one", type="work", tags=("tag-1234",)))
        with cancel_scope(timeout=SOON):
            assert [job.id for job in next(streams[1234])] == ["one"]


def test_what_another_process_stores_wakes_only_whom_it_concerns(url: str) -> None:
    """A foreign commit among 500 waiting streams leads to a few claims, not to 500."""
    with penstock.connect(url) as queue, penstock.open_backend(url) as elsewhere:
        streams = [queue.stream_jobs(f"worker-{number}", [f"tag-{number}"]) for number in range(500)]
        with cancel_scope(timeout=SOON):
            elsewhere.enqueue_job(Job(id="first", type="work", tags=("tag-499",)))
            assert [job.id for job in next(streams[499])] == ["first"]  # the last to look, so all have by now
        asked = _count_claims(queue)
        with cancel_scope(timeout=SOON):
            elsewhere.enqueue_job(Job(id="second", type="work", tags=("tag-123", "other")))
            assert [job.id for job in next(streams[123])] == ["second"]
        assert 1 <= len(asked) <= 20
        assert set(asked) == {("tag-123",)}


def test_a_delayed_job_reaches_its_stream_among_many(url: str) -> None:
    """G13: any claim moves due jobs into the ready set; the stream they are for must be told."""
    with penstock.connect(url) as queue:
        streams = [queue.stream_jobs(f"worker-{number}", [f"tag-{number}"]) for number in range(50)]
        late = queue.submit("work", tags=["tag-49"], delay=0.3)
        with cancel_scope(timeout=SOON):
            assert [job.id for job in next(streams[49])] == [late.id]


def _count_claims(queue: Queue) -> list[tuple[str, ...]]:
    asked: list[tuple[str, ...]] = []
    claim = queue.backend.dequeue_jobs_for

    def counted(requests: list[ClaimRequest]) -> list[list[Job]]:
        asked.extend(tuple(each.tags) for each in requests)
        return claim(requests)

    queue.backend.dequeue_jobs_for = counted  # type: ignore[method-assign]
    return asked
