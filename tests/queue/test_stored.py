"""Whatever stores a job answers with it, once it is stored (Q54)."""

from typing import Any

import pytest

from penstock import BackendError, CancelScope, EventKind, Flow, Queue, cancel_scope
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


def test_submit_reads_nothing_back(queue, monkeypatch):
    """A plain job is returned as it was stored, without asking the store again."""

    def refuse(*_: object) -> None:
        raise AssertionError("the job was read back")

    monkeypatch.setattr(queue.backend, "get_jobs", refuse)
    one = queue.submit("t", {"a": 1}, tags=["x"], priority=1)
    many = queue.submit_many([{"type": "t", "payload": n} for n in range(3)])
    monkeypatch.undo()
    for job in [one, *many]:
        assert job == queue.get_job(job.id)
