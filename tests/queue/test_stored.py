"""Whatever stores a job answers with it, once it is stored (Q54)."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from penstock import (
    BackendError,
    CancelScope,
    EventKind,
    FailureCategory,
    Flow,
    Job,
    Queue,
    RetryPolicy,
    Timeouts,
    cancel_scope,
)
from penstock.documents import DocumentQueue
from penstock.testing.conformance.queue_support import part


def _fails(_ids: object) -> Any:
    raise BackendError("gone", retryable=True)


def test_what_is_stored_is_returned_also_if_it_cannot_be_read(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q54: who gets an error instead would submit it again."""
    documents = DocumentQueue(queue)
    parent = queue.submit("parent")
    (parent,) = queue.claim_jobs("worker", job_ids=[parent.id])
    with monkeypatch.context() as broken:
        broken.setattr(queue.backend, "get_jobs", _fails)
        broken.setattr(queue.backend, "get_job", _fails)
        made = [
            queue.submit("a", {"n": 1}),
            *queue.submit_many([{"type": "b"}]),
            queue.spawn(parent, "c"),
            documents.enqueue("d", "s", "b", 1),
            *documents.add_flow(Flow(part("root"), [part("leaf")])),
        ]
    found = queue.get_jobs([each.id for each in made])
    assert [found[each.id].type for each in made] == [each.type for each in made]
    assert len(found) == 6


def test_what_is_stored_is_returned_whatever_the_scope_says(queue: Queue) -> None:
    documents = DocumentQueue(queue)
    parent = queue.submit("parent")
    (parent,) = queue.claim_jobs("worker", job_ids=[parent.id])
    scopes: list[CancelScope] = []
    queue.events.subscribe(EventKind.JOB_AVAILABLE, lambda _: scopes[-1].cancel())
    for store in (
        lambda: queue.submit("a"),
        lambda: queue.submit_many([{"type": "b"}]),
        lambda: queue.spawn(parent, "c"),
        lambda: documents.enqueue("d", "s", "b", 1),
        lambda: documents.add_flow(Flow(part("root", ("1", "2", "3")), [part("leaf", ("4", "5", "6"))])),
    ):
        with cancel_scope() as scope:
            scopes.append(scope)
            assert store()


@pytest.fixture
def unread(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A queue that must not read; at the end, what it stored is compared with what it returned."""

    def refuse(*_: object) -> None:
        raise AssertionError("the job was read back")

    returned: list[Job] = []
    submit = queue.backend.submit_jobs

    def submit_jobs(jobs: Sequence[Job]) -> list[Job]:
        returned[:] = submit(jobs)
        return returned

    for name in ("waits", "waits too", "done", "failed", "cancelled"):
        queue.enqueue_job(Job(id=name, type=name, key="taken" if name == "waits" else None, priority=3))
    queue.claim_jobs("w", 2, job_ids=["done", "failed"])
    queue.complete_job("done")
    queue.fail_job("failed", "broken", category=FailureCategory.PERMANENT)
    queue.cancel_jobs(job_ids=["cancelled"])
    monkeypatch.setattr(queue.backend, "submit_jobs", submit_jobs)
    with monkeypatch.context() as reading:
        reading.setattr(queue.backend, "get_jobs", refuse)
        yield queue
    assert returned
    found = queue.get_jobs([job.id for job in returned])
    for job in returned:
        assert job == found[job.id]


@pytest.mark.parametrize(
    "asked",
    [
        {"tags": ["x"], "priority": 1},
        {"delay": 3600},
        {"run_at": datetime(2001, 2, 3, tzinfo=timezone(timedelta(hours=2)))},
        {"key": "free"},
        {"key": "taken"},
        {"key": ("taken", "partly"), "delay": 60, "held": True},
        {"after": ["waits"], "priority": 4},
        {"after": ["done", "waits"], "key": "free"},
        {"after": ["done"]},
        {"after": ["failed", "waits"]},
        {"after": ["cancelled"], "key": "free"},
        {"after": ["waits too"], "after_any": ["done"]},
        {"after_any": ["waits", "waits too"], "delay": 5},
        {"idempotency_key": "once", "unique": "while_unfinished"},
        {
            "held": True,
            "parent_id": "waits",
            "correlation_id": "c",
            "callback_url": "https://example.org/end",
        },
        {"retry": None, "timeouts": Timeouts(execution=1.5), "payload": None},
        {"retry": RetryPolicy(max_attempts=7, jitter=0.5), "payload": bytearray(b"x"), "key": "free"},
    ],
    ids="+".join,
)
def test_submit_reads_nothing_back(unread: Queue, asked: dict[str, Any]) -> None:
    """The job is returned as it was stored, whatever it waits for, without asking the store again."""
    assert unread.submit("t", **{"payload": {"a": 1}, **asked}).created_at is not None


def test_submit_many_reads_nothing_back(unread: Queue) -> None:
    unread.submit_many([{"type": "t", "payload": n} for n in range(3)])


@pytest.mark.parametrize("key", [None, "k"])
def test_a_batch_of_several_chunks_is_returned_as_it_was_stored(unread: Queue, key: str | None) -> None:
    """Each chunk has a time of its own on PostgreSQL."""
    unread.submit_many([{"type": "t", "key": key if n == 2500 else None} for n in range(4100)])


def test_jobs_of_a_batch_that_end_with_another_are_returned_as_they_ended(unread: Queue) -> None:
    """The second waits for the first, which shares the fate of a stored job; the third gets the turn of its key."""
    doomed = unread.new_job("t", after=["failed"], key="free")
    with_it, freed = unread.new_job("t", after=[doomed.id]), unread.new_job("t", key="free")
    stored = unread.backend.submit_jobs([doomed, with_it, freed])
    assert [job.status for job in stored] == ["failed", "failed", "initial_pending"]
    assert stored[2].state == "scheduled"


def test_only_the_job_that_has_the_key_already_is_read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    first = queue.submit("t", 1, idempotency_key="a")
    read: list[Sequence[str]] = []
    get_jobs = queue.backend.get_jobs
    monkeypatch.setattr(queue.backend, "get_jobs", lambda ids: read.append(list(ids)) or get_jobs(ids))
    stored = queue.submit_many(
        [{"type": "t", "payload": 1, "idempotency_key": key} for key in ("b", "a", "c", "a", "b")]
    )
    assert read == [[first.id]]
    assert [job.idempotency_key for job in stored] == ["b", "a", "c", "a", "b"]
    assert stored[1] == stored[3] == first
    assert stored[0] == stored[4] == queue.get_job(stored[0].id)
