"""The document queue."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.documents import DocumentQueue
from penstock.errors import (
    InvalidArgumentError,
    InvalidTransitionError,
    JobExistsError,
    JobNotFoundError,
    QueueBlockedError,
    StaleAttemptError,
)
from penstock.events import Event, EventKind
from penstock.job import JobStatus, Key
from penstock.queue.flow import Flow
from penstock.testing.conformance.queue_support import HERE, SOON, QueueSuite, drain, part, taken


class DocumentOrder(QueueSuite):
    """One document, one job at a time, in order."""

    def test_a_document_is_worked_on_in_order_and_one_at_a_time(self, documents: DocumentQueue) -> None:
        """R2, R3, R11, C50."""
        first = documents.enqueue(*HERE, {"n": 1})
        second = documents.enqueue(*HERE, {"n": 2}, id="given")
        assert second.id == "given"
        assert first.type == "document"
        assert taken(documents.dequeue(*HERE)).id == first.id
        assert documents.dequeue(*HERE) is None
        assert documents.dequeue_next() is None
        documents.complete(first.id, {"ok": True})
        assert taken(documents.dequeue_next()).id == "given"
        assert documents.queue.get_job(first.id).result == b'{"ok":true}'

    def test_other_documents_scopes_and_branches_go_on(self, documents: DocumentQueue) -> None:
        """R2, C49."""
        keys = [HERE, ("doc", "global", "dev"), ("doc", "local", "main"), ("other", "global", "main")]
        for key in keys:
            documents.enqueue(*key, b"")
            documents.enqueue(*key, b"")
        taken = [documents.dequeue_next() for _ in range(5)]
        assert [job.key for job in taken if job is not None] == [Key(*key) for key in keys]
        assert taken[4] is None

    @pytest.mark.parametrize(
        "text",
        [
            "a b",
            "ü",
            '"',
            "\\",
            "\n",
            "[",
            "\x01\x7f",
            "👩‍👩‍👧",
            "e\u0301",
            "%s{}",
            "0" * 300,
            "'; DROP TABLE job",
        ],
    )
    def test_a_key_may_hold_any_text(self, documents: DocumentQueue, text: str) -> None:
        job = documents.enqueue(text, text, "", b"x")
        assert documents.size(text, text, "") == 1
        assert taken(documents.dequeue(text, text, "")).id == job.id

    @pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", None, 7, b"x"])
    @pytest.mark.parametrize("place", range(3))
    def test_what_no_store_can_keep_is_refused_as_a_key(
        self, documents: DocumentQueue, text: object, place: int
    ) -> None:
        """Q55."""
        key: list[Any] = ["doc", "global", "main"]
        key[place] = text
        for call in (
            lambda: documents.enqueue(key[0], key[1], key[2], b""),
            lambda: documents.dequeue(key[0], key[1], key[2]),
        ):
            with pytest.raises(InvalidArgumentError) as caught:
                call()
            assert caught.value.field == "key"
        assert documents.queue.get_job_stats().total_jobs == 0

    def test_keys_are_told_apart_part_by_part(self, documents: DocumentQueue) -> None:
        """R2: no text in one part can be taken for the border between two."""
        keys = [
            ("a", "b", "c"),
            ("a,b", "", "c"),
            ('a","b', "", "c"),
            ("ab", "", "c"),
            ("", "ab", "c"),
            ("", "", "abc"),
        ]
        for number, key in enumerate(keys):
            documents.enqueue(*key, number, id=str(number))
        assert [documents.size(*key) for key in keys] == [1] * len(keys)
        assert [taken(documents.dequeue(*key)).id for key in keys] == [
            str(number) for number in range(len(keys))
        ]

    def test_a_given_id_is_used_once(self, documents: DocumentQueue) -> None:
        """R11, C50: every job has an id of its own."""
        documents.enqueue(*HERE, 1, id="given")
        with pytest.raises(JobExistsError):
            documents.enqueue("other", "s", "b", 2, id="given")
        generated = {documents.enqueue(*HERE, number).id for number in range(10)}
        assert len(generated) == 10

    def test_contention_on_one_document_changes_no_order(self, documents: DocumentQueue) -> None:
        """R3, R5, R6: reshuffling and retrying are the executor's work; the queue keeps the order."""
        ids = [documents.enqueue(*HERE, number).id for number in range(50)]
        seen = []
        for attempt in range(100):
            job = taken(documents.dequeue(*HERE))
            seen.append(job.id)
            if attempt % 2:
                documents.complete(job.id)
            else:
                documents.retry(job.id, "conflict")
        assert seen == [each for each in ids for _ in range(2)]

    def test_many_threads_work_on_many_documents_in_order(self, documents: DocumentQueue) -> None:
        """R3, Q33, Q52."""
        keys = [(f"doc{number}", "s", "b") for number in range(6)]
        for number in range(10):
            for key in keys:
                documents.enqueue(*key, number)
        seen: dict[Key | None, list[int]] = {}
        busy: set[Key | None] = set()
        lock = threading.Lock()

        def work() -> None:
            while (job := documents.dequeue_next()) is not None or documents.total_size():
                if job is None:
                    continue
                with lock:
                    assert job.key not in busy
                    busy.add(job.key)
                    seen.setdefault(job.key, []).append(int(job.payload))
                with lock:
                    busy.discard(job.key)
                documents.complete(job.id)

        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(work) for _ in range(6)]:
                done.result(SOON)
        assert seen == {Key(*key): list(range(10)) for key in keys}

    def test_a_retry_goes_back_to_the_head(self, documents: DocumentQueue) -> None:
        """R6."""
        first = documents.enqueue(*HERE, 1)
        documents.enqueue(*HERE, 2)
        documents.dequeue(*HERE)
        documents.retry(first.id, "conflict")
        assert taken(documents.dequeue(*HERE)).id == first.id

    def test_failing_is_for_good_and_lets_the_next_one_pass(self, documents: DocumentQueue) -> None:
        """C47, C52."""
        first = documents.enqueue(*HERE, 1)
        second = documents.enqueue(*HERE, 2)
        documents.dequeue(*HERE)
        documents.fail(first.id, "bad signature")
        assert documents.queue.get_job(first.id).status is JobStatus.FAILED
        assert taken(documents.dequeue(*HERE)).id == second.id


class DocumentJournal(QueueSuite):
    """Events and journal rows."""

    def test_a_job_is_announced_when_it_can_be_taken(self, documents: DocumentQueue) -> None:
        """R4, C46: at once for a job at the head, in its turn for the others, once each time."""
        seen: list[str | None] = []
        documents.queue.events.subscribe(EventKind.JOB_AVAILABLE, lambda event: seen.append(event.job_id))
        documents.enqueue(*HERE, 1, id="first")
        documents.enqueue(*HERE, 2, id="second")
        documents.add_flow(Flow(part("parent", ("p", "s", "b")), [part("child", ("c", "s", "b"))]))
        assert seen == ["first", "child"]
        documents.dequeue(*HERE)
        documents.retry("first", "conflict")
        documents.dequeue(*HERE)
        documents.complete("first")
        documents.dequeue("c", "s", "b")
        documents.complete("child")
        assert seen == ["first", "child", "first", "second", "parent"]

    def test_the_announcement_comes_after_the_journal_row(self, documents: DocumentQueue) -> None:
        """R10, R12, C46: a subscriber finds the job stored."""
        rows: list[int] = []

        def look(event: Event) -> None:
            rows.append(len([row for row in documents.queue.read_journal() if row.job_id == event.job_id]))

        documents.queue.events.subscribe(EventKind.JOB_AVAILABLE, look)
        documents.enqueue(*HERE, 1)
        assert rows == [1]

    def test_the_journal_tells_what_became_of_every_job(self, documents: DocumentQueue) -> None:
        """R10, R12, C52: enqueueing makes a record; the end, of whatever kind, updates it."""
        for name in ("good", "bad", "gone"):
            documents.enqueue(name, "s", "b", {"name": name}, id=name)
        documents.dequeue("good", "s", "b")
        documents.complete("good", {"ok": 1})
        documents.dequeue("bad", "s", "b")
        documents.fail("bad", "no such action")
        documents.remove("gone")
        found: dict[str, list[str]] = {}
        for row in documents.queue.read_journal():
            found.setdefault(row.job_id, []).append(str(row.verb))
        assert found == {
            "good": ["enqueue", "claim", "complete"],
            "bad": ["enqueue", "claim", "fail"],
            "gone": ["enqueue", "cancel"],
        }
        assert documents.queue.get_job("bad").error_message == "no such action"

    def test_signatures_are_nobodys_business_here(self, documents: DocumentQueue) -> None:
        """R9: neither made nor checked; what comes in goes out, byte by byte."""
        payload = b'{"actions":[{"signature":"forged"}]}'
        documents.enqueue(*HERE, payload)
        assert taken(documents.dequeue(*HERE)).payload == payload


class DocumentSizes(QueueSuite):
    """Counting, removing and clearing."""

    def test_sizes_count_what_waits(self, documents: DocumentQueue) -> None:
        """Parents that wait for their children are counted, running jobs are not."""
        documents.enqueue(*HERE, 1)
        documents.enqueue(*HERE, 2)
        documents.enqueue("other", "s", "b", 3)
        assert (documents.size(*HERE), documents.total_size()) == (2, 3)
        documents.add_flow(Flow(part("parent"), [Flow(part("middle"), [part("leaf", ("leaf", "s", "b"))])]))
        assert (documents.size(*HERE), documents.size("leaf", "s", "b"), documents.total_size()) == (4, 1, 6)
        job = taken(documents.dequeue(*HERE))
        assert (documents.size(*HERE), documents.total_size()) == (3, 5)
        documents.retry(job.id, "again")
        assert documents.size(*HERE) == 4
        documents.dequeue(*HERE)
        documents.complete(job.id)
        assert (documents.size(*HERE), documents.size("missing", "s", "b")) == (3, 0)

    def test_sizes_go_beyond_a_page(self, documents: DocumentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.documents.queue._PAGE", 10)
        documents.queue.enqueue_jobs([part(f"job{number}") for number in range(35)])
        assert (documents.size(*HERE), documents.total_size()) == (35, 35)
        documents.clear(*HERE)
        assert documents.total_size() == 0

    def test_waiting_jobs_can_be_removed_and_running_ones_cannot(self, documents: DocumentQueue) -> None:
        first = documents.enqueue(*HERE, 1)
        second = documents.enqueue(*HERE, 2)
        documents.dequeue(*HERE)
        assert not documents.remove(first.id)
        assert not documents.remove("unknown")
        assert documents.remove(second.id)
        assert not documents.remove(second.id)
        assert documents.queue.get_job(second.id).status is JobStatus.UNSCHEDULED
        assert documents.queue.get_job(first.id).status is JobStatus.RUNNING
        documents.retry(first.id, "again")
        assert documents.remove(first.id)
        assert documents.dequeue(*HERE) is None

    def test_a_removed_head_lets_the_next_one_pass_and_takes_its_parent_along(
        self, documents: DocumentQueue
    ) -> None:
        """R3, R7, G26."""
        documents.add_flow(Flow(part("parent", ("p", "s", "b")), [part("child")]))
        documents.enqueue(*HERE, 1, id="next")
        assert documents.remove("child")
        assert documents.queue.get_job("parent").status is JobStatus.UNSCHEDULED
        assert taken(documents.dequeue(*HERE)).id == "next"

    def test_clearing_leaves_running_jobs_and_other_documents_alone(self, documents: DocumentQueue) -> None:
        running = documents.enqueue(*HERE, 1)
        waiting = documents.enqueue(*HERE, 2)
        other = documents.enqueue("other", "s", "b", 3)
        stranger = documents.queue.submit("mail")
        documents.dequeue(*HERE)
        documents.clear(*HERE)
        status = {job.id: job.status for job in documents.queue.list_jobs()}
        assert status[waiting.id] is JobStatus.UNSCHEDULED
        assert status[running.id] is JobStatus.RUNNING
        assert status[other.id] is JobStatus.INITIAL_PENDING
        documents.clear_all()
        documents.clear_all()
        status = {job.id: job.status for job in documents.queue.list_jobs()}
        assert status[other.id] is JobStatus.UNSCHEDULED
        assert status[running.id] is JobStatus.RUNNING
        assert status[stranger.id] is JobStatus.INITIAL_PENDING
        documents.complete(running.id)
        assert documents.total_size() == 0


class DocumentReports(QueueSuite):
    """Accepted and refused reports."""

    def test_reports_of_jobs_that_are_not_there_or_not_running_are_refused(
        self, documents: DocumentQueue
    ) -> None:
        """Q55."""
        waiting = documents.enqueue(*HERE, 1)
        for report in (documents.complete, lambda job_id: documents.fail(job_id, "x")):
            with pytest.raises(JobNotFoundError):
                report("unknown")
            with pytest.raises(InvalidTransitionError):
                report(waiting.id)
        with pytest.raises(InvalidArgumentError):
            documents.fail(waiting.id, "")

    def test_a_late_report_of_a_job_that_somebody_else_has_is_refused(self, documents: DocumentQueue) -> None:
        """R15: nothing is finished on behalf of another."""
        job = documents.enqueue(*HERE, 1)
        other = DocumentQueue(documents.queue, assignee_id="other")
        documents.dequeue(*HERE)
        documents.queue.mark_worker_unresponsive("documents")
        assert taken(other.dequeue(*HERE)).attempt == 2
        for report in (
            documents.complete,
            documents.complete,
            lambda job_id: documents.retry(job_id, "conflict"),
        ):
            with pytest.raises(StaleAttemptError):
                report(job.id)
            assert documents.queue.get_job(job.id).status is JobStatus.RUNNING
        other.complete(job.id)
        assert documents.queue.get_job(job.id).status is JobStatus.COMPLETED

    def test_any_object_may_report_what_another_took(self, documents: DocumentQueue) -> None:
        """Q40."""
        job = documents.enqueue(*HERE, 1)
        documents.dequeue(*HERE)
        DocumentQueue(documents.queue).complete(job.id, b"raw")
        assert documents.queue.get_job(job.id).result == b"raw"


class DocumentFlows(QueueSuite):
    """Parents and children."""

    def test_a_flow_in_one_document_cannot_deadlock(self, documents: DocumentQueue) -> None:
        """R7, R8, C48."""

        documents.add_flow(Flow(part("parent"), [part("child"), Flow(part("other"), [part("grandchild")])]))
        assert drain(documents) == ["child", "grandchild", "other", "parent"]

    def test_a_parent_comes_after_all_its_children_succeeded_and_not_before(
        self, documents: DocumentQueue
    ) -> None:
        """R7."""
        documents.add_flow(Flow(part("parent"), [part("a", ("a", "s", "b")), part("b", ("b", "s", "b"))]))
        assert documents.dequeue(*HERE) is None
        documents.dequeue("a", "s", "b")
        documents.complete("a")
        assert documents.dequeue(*HERE) is None
        documents.dequeue("b", "s", "b")
        documents.retry("b", "conflict")
        assert documents.dequeue(*HERE) is None
        documents.dequeue("b", "s", "b")
        documents.complete("b")
        assert taken(documents.dequeue(*HERE)).id == "parent"

    def test_a_child_that_fails_for_good_fails_its_parents(self, documents: DocumentQueue) -> None:
        """R7, G26, C47."""
        jobs = documents.add_flow(Flow(part("root"), [Flow(part("middle"), [part("leaf")])]))
        assert [(job.id, job.parent_id) for job in jobs] == [
            ("leaf", "middle"),
            ("middle", "root"),
            ("root", None),
        ]
        documents.enqueue(*HERE, 1, id="next")
        documents.dequeue(*HERE)
        documents.fail("leaf", "bad signature")
        assert {documents.queue.get_job(name).status for name in ("leaf", "middle", "root")} == {
            JobStatus.FAILED
        }
        assert taken(documents.dequeue(*HERE)).id == "next"

    def test_a_deep_tree_runs_from_its_leaves(self, documents: DocumentQueue) -> None:
        """R8."""
        tree: Flow = Flow(part("0"))
        for depth in range(1, 100):
            tree = Flow(part(str(depth)), [tree])
        documents.add_flow(tree)
        assert drain(documents) == [str(depth) for depth in range(100)]


class DocumentBlocking(QueueSuite):
    """Blocking and draining."""

    def test_a_blocked_queue_refuses_and_drains(self, documents: DocumentQueue) -> None:
        """R16, R17."""
        calls: list[int] = []
        documents.block(lambda: calls.append(1))
        assert calls == [1]
        for refused in (
            lambda: documents.enqueue(*HERE, 1),
            lambda: documents.add_flow(Flow(part("a"))),
            lambda: documents.queue.submit("mail"),  # one flag for every view of the store
        ):
            with pytest.raises(QueueBlockedError, match="Queue is blocked"):
                refused()
        assert documents.is_drained()
        documents.unblock()
        documents.enqueue(*HERE, 1)
        assert not documents.is_drained()

    def test_a_blocked_queue_works_off_what_it_has(self, documents: DocumentQueue) -> None:
        """R16, C51: retries pass; the callback comes once, when nothing waits and nothing runs."""
        documents.add_flow(Flow(part("parent"), [part("child")]))
        calls: list[str] = []
        drained = threading.Event()

        def on_drained() -> None:
            calls.append("drained")
            drained.set()

        documents.block(on_drained)
        documents.dequeue_next()
        documents.retry("child", "conflict")
        documents.dequeue_next()
        documents.complete("child")
        documents.dequeue_next()
        assert not drained.wait(0.25)  # the parent runs
        documents.complete("parent")
        assert drained.wait(SOON)
        drained.clear()
        assert not drained.wait(0.25)
        assert calls == ["drained"]
        assert documents.is_drained()
