"""The document queue (R1-R17, C48-C52)."""

import multiprocessing
import os

import pytest

import penstock
from penstock import Flow, Job, JobStatus, Key, Queue, QueueBlockedError
from penstock.documents import DocumentQueue, QueueDriver

HERE = ("doc", "global", "main")


@pytest.fixture
def documents(queue: Queue) -> DocumentQueue:
    return DocumentQueue(queue)


def test_a_document_is_worked_on_in_order_and_one_at_a_time(documents: DocumentQueue) -> None:
    """R2, R3, R11, C50."""
    first = documents.enqueue(*HERE, {"n": 1})
    second = documents.enqueue(*HERE, {"n": 2}, id="given")
    assert second.id == "given"
    assert first.type == "document"
    assert documents.dequeue(*HERE).id == first.id
    assert documents.dequeue(*HERE) is None
    assert documents.dequeue_next() is None
    documents.complete(first.id, {"ok": True})
    assert documents.dequeue_next().id == "given"
    assert documents.queue.get_job(first.id).result == b'{"ok":true}'


def test_other_documents_scopes_and_branches_go_on(documents: DocumentQueue) -> None:
    """R2, C49."""
    keys = [HERE, ("doc", "global", "dev"), ("doc", "local", "main"), ("other", "global", "main")]
    for key in keys:
        documents.enqueue(*key, b"")
        documents.enqueue(*key, b"")
    taken = [documents.dequeue_next() for _ in range(5)]
    assert [job.key for job in taken if job is not None] == [Key(*key) for key in keys]
    assert taken[4] is None


@pytest.mark.parametrize("text", ["a b", "ü", '"', "\\", "\n", "[", "0" * 100, "'; DROP TABLE job"])
def test_a_key_may_hold_any_text(documents: DocumentQueue, text: str) -> None:
    job = documents.enqueue(text, text, "", b"x")
    assert documents.size(text, text, "") == 1
    assert documents.dequeue(text, text, "").id == job.id


def test_a_retry_goes_back_to_the_head(documents: DocumentQueue) -> None:
    """R6."""
    first = documents.enqueue(*HERE, 1)
    documents.enqueue(*HERE, 2)
    documents.dequeue(*HERE)
    documents.retry(first.id, "conflict")
    assert documents.dequeue(*HERE).id == first.id


def test_failing_is_for_good_and_lets_the_next_one_pass(documents: DocumentQueue) -> None:
    """C47, C52."""
    first = documents.enqueue(*HERE, 1)
    second = documents.enqueue(*HERE, 2)
    documents.dequeue(*HERE)
    documents.fail(first.id, "bad signature")
    assert documents.queue.get_job(first.id).status is JobStatus.FAILED
    assert documents.dequeue(*HERE).id == second.id


def test_sizes_count_what_waits(documents: DocumentQueue) -> None:
    documents.enqueue(*HERE, 1)
    documents.enqueue(*HERE, 2)
    documents.enqueue("other", "s", "b", 3)
    assert (documents.size(*HERE), documents.total_size()) == (2, 3)
    documents.dequeue(*HERE)
    assert (documents.size(*HERE), documents.total_size()) == (1, 2)


def test_waiting_jobs_can_be_removed_and_running_ones_cannot(documents: DocumentQueue) -> None:
    first = documents.enqueue(*HERE, 1)
    second = documents.enqueue(*HERE, 2)
    third = documents.enqueue("other", "s", "b", 3)
    documents.dequeue(*HERE)
    assert not documents.remove(first.id)
    assert not documents.remove("unknown")
    assert documents.remove(second.id)
    assert not documents.remove(second.id)
    documents.clear("other", "s", "b")
    assert documents.queue.get_job(third.id).status is JobStatus.UNSCHEDULED
    documents.enqueue(*HERE, 4)
    documents.clear_all()
    assert documents.total_size() == 0
    assert documents.queue.get_job(first.id).status is JobStatus.RUNNING


def test_a_flow_in_one_document_cannot_deadlock(documents: DocumentQueue) -> None:
    """R7, R8, C48."""

    def part(name: str) -> Job:
        return Job(id=name, type="document", key=Key(*HERE))

    documents.add_flow(Flow(part("parent"), [part("child"), Flow(part("other"), [part("grandchild")])]))
    order = []
    while (job := documents.dequeue_next()) is not None:
        order.append(job.id)
        documents.complete(job.id)
    assert order == ["child", "grandchild", "other", "parent"]


def test_a_blocked_queue_refuses_and_drains(documents: DocumentQueue) -> None:
    """R16, R17."""
    calls: list[int] = []
    documents.block(lambda: calls.append(1))
    assert calls == [1]
    with pytest.raises(QueueBlockedError, match="Queue is blocked"):
        documents.enqueue(*HERE, 1)
    assert documents.is_drained()
    documents.unblock()
    documents.enqueue(*HERE, 1)


def _take_and_die(url: str) -> None:
    documents = DocumentQueue(penstock.connect(url))
    documents.dequeue(*HERE)
    os._exit(1)


@pytest.mark.process
def test_what_a_dead_process_left_open_is_put_back_once_and_in_order(shared_url: str) -> None:
    """R10, R14, R15, C63."""
    with penstock.connect(shared_url) as queue:
        documents = DocumentQueue(queue)
        first = documents.enqueue(*HERE, 1)
        second = documents.enqueue(*HERE, 2)
        child = multiprocessing.get_context("spawn").Process(target=_take_and_die, args=(shared_url,))
        child.start()
        child.join()
        assert queue.get_job(first.id).status is JobStatus.RUNNING
        alive = documents.enqueue("alive", "s", "b", 3)
        documents.dequeue("alive", "s", "b")
        driver = QueueDriver(documents)
        assert driver.start() == 1
        assert driver.start() == 0
        assert queue.get_job(alive.id).status is JobStatus.RUNNING
        again = documents.dequeue(*HERE)
        assert (again.id, again.attempt) == (first.id, 2)
        documents.complete(first.id)
        assert documents.dequeue(*HERE).id == second.id
