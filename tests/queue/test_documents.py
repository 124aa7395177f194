"""The document queue (R1-R17, C48-C52)."""

import logging
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

import penstock
from penstock import (
    EventKind,
    Flow,
    InvalidArgumentError,
    Job,
    JobStatus,
    Key,
    Queue,
)
from penstock.documents import DocumentQueue, QueueDriver
from penstock.documents import queue as documents_queue
from penstock.testing.conformance.queue_support import drain, part

HERE = ("doc", "global", "main")
SOON = 20.0


@pytest.fixture
def documents(queue: Queue) -> DocumentQueue:
    return DocumentQueue(queue)


def test_a_job_taken_while_its_queue_is_cleared_goes_on(
    documents: DocumentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was seen waiting may run by the time it is cancelled."""
    job = documents.enqueue(*HERE, 1)
    backend = documents.queue.backend
    real = backend.reading.list_keyed

    def seen_then_taken(*args: Any, **filters: Any) -> list[str]:
        found = real(*args, **filters)
        if found:
            assert documents.dequeue(*HERE).id == job.id
        return found

    monkeypatch.setattr(backend.reading, "list_keyed", seen_then_taken)
    documents.clear(*HERE)
    assert documents.queue.get_job(job.id).status is JobStatus.RUNNING


def test_a_callback_that_raises_harms_nobody(
    documents: DocumentQueue, caplog: pytest.LogCaptureFixture
) -> None:
    job = documents.enqueue(*HERE, 1)
    called = threading.Event()

    def broken() -> None:
        called.set()
        raise RuntimeError("mine")

    with caplog.at_level(logging.ERROR, "penstock"):
        documents.block(broken)
        documents.dequeue(*HERE)
        documents.complete(job.id)
        assert called.wait(SOON)
        until(lambda: "callback" in caplog.text)


def _take_and_die(url: str, count: int) -> None:
    documents = DocumentQueue(penstock.connect(url))
    for _ in range(count):
        documents.dequeue_next()
    os._exit(1)


def _take_and_wait(url: str, taken: object, go: object) -> None:
    with penstock.connect(url) as queue:
        documents = DocumentQueue(queue)
        job = documents.dequeue("alive", "s", "b")
        taken.set()  # type: ignore[attr-defined]
        assert go.wait(SOON)  # type: ignore[attr-defined]
        documents.complete(job.id)


def test_a_driver_wants_a_document_queue_or_the_queue_of_one(queue: Queue) -> None:
    with pytest.raises(InvalidArgumentError):
        QueueDriver("queue")  # type: ignore[arg-type]
    assert QueueDriver(queue).start() == 0
    with pytest.raises(InvalidArgumentError):
        DocumentQueue("queue")  # type: ignore[arg-type]
    assert QueueDriver(DocumentQueue(queue)).start() == 0


@pytest.mark.process
def test_what_a_dead_process_left_open_is_put_back_once_and_in_order(tmp_path: Path) -> None:
    """R10, R13, R14, R15, C63: never a living one's, nothing twice, announced again."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    context = multiprocessing.get_context("spawn")
    taken, go = context.Event(), context.Event()
    with penstock.connect(url) as queue:
        documents = DocumentQueue(queue)
        keys = [(f"doc{number}", "s", "b") for number in range(3)]
        ids = [[documents.enqueue(*key, number).id for number in range(3)] for key in keys]
        documents.add_flow(Flow(part("parent"), [part("child")]))
        dead = context.Process(target=_take_and_die, args=(url, 4))
        dead.start()
        dead.join(SOON)
        theirs = documents.enqueue("alive", "s", "b", 1)
        living = context.Process(target=_take_and_wait, args=(url, taken, go))
        living.start()
        assert taken.wait(SOON)
        mine = documents.enqueue("mine", "s", "b", 1)
        documents.dequeue("mine", "s", "b")
        seen: list[str | None] = []
        queue.events.subscribe(EventKind.JOB_AVAILABLE, lambda event: seen.append(event.job_id))
        driver = QueueDriver(documents)
        assert driver.start() == 4
        assert driver.start() == 0
        assert seen == [ids[0][0], ids[1][0], ids[2][0], "child"]
        assert queue.get_job(mine.id).status is JobStatus.RUNNING
        assert queue.get_job(theirs.id).status is JobStatus.RUNNING
        order = drain(documents)
        for line in ids:
            assert [each for each in order if each in line] == line
        assert order.index("child") < order.index("parent")
        assert len(order) == len(set(order)) == 11
        assert {queue.get_job(line[0]).attempt for line in ids} == {2}
        go.set()
        living.join(SOON)
        assert living.exitcode == 0
        assert queue.get_job(theirs.id).attempt == 1


def test_flows_of_other_types_are_refused(documents: DocumentQueue) -> None:
    """No sub-queue would have them: they could be neither taken nor counted."""
    keyed = Key(*HERE)
    for wrong in (Job(id="a", type="other", key=keyed), Job(id="a", type="document")):
        for flow in (Flow(wrong), Flow(part("root"), [part("b"), wrong])):
            with pytest.raises(InvalidArgumentError, match="'document' and a key") as caught:
                documents.add_flow(flow)
            assert caught.value.field == "flow"
    assert documents.queue.list_jobs() == []


def test_jobs_that_end_without_a_report_are_forgotten(
    documents: DocumentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_queue, "_FEW", 8)
    documents._most_attempts = 8
    kept = documents.enqueue("kept", "s", "b", 1)
    assert documents.dequeue("kept", "s", "b") is not None
    for number in range(40):
        job = documents.enqueue(f"doc{number}", "s", "b", 1)
        assert documents.dequeue(f"doc{number}", "s", "b") is not None
        documents.queue.stop_job(job.id)
    assert len(documents._attempts) <= 8
    assert documents._attempts[kept.id] == 1


def test_clearing_ends_however_much_is_put_in_meanwhile(
    documents: DocumentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_queue, "_PAGE", 2)
    jobs = [documents.enqueue(*HERE, number) for number in range(5)]
    cancel = documents.queue.cancel_jobs

    def cancel_then_put(**what: Any) -> tuple[list[str], list[str]]:
        done = cancel(**what)
        documents.enqueue(*HERE, "more")
        return done

    monkeypatch.setattr(documents.queue, "cancel_jobs", cancel_then_put)
    documents.clear(*HERE)
    assert documents.size(*HERE) == 3
    assert {documents.queue.get_job(job.id).status for job in jobs} == {JobStatus.UNSCHEDULED}


def test_a_document_is_looked_at_without_looking_at_others(
    documents: DocumentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B18: no page of jobs is read, with payloads and all, to count them or to cancel them."""
    documents.queue.enqueue_jobs([Job.new("mail", key=Key("other")) for _ in range(20)])
    documents.enqueue(*HERE, 1)
    documents.enqueue("doc", "global", "draft", 2)

    def refuse(**_filters: Any) -> list[Job]:
        raise AssertionError("jobs were listed")

    monkeypatch.setattr(documents.queue.backend, "list_jobs", refuse)
    assert (documents.size(*HERE), documents.total_size()) == (1, 2)
    documents.clear(*HERE)
    assert (documents.size(*HERE), documents.total_size()) == (0, 1)
    documents.clear_all()
    assert documents.total_size() == 0
