"""The journal: one row per change, in the transaction of the change, readable by one cursor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.errors import InvalidArgumentError, InvalidTransitionError, JobNotFoundError, StaleAttemptError
from penstock.job import JobStatus, JournalEntry, Key, Priority
from penstock.policy import FailureCategory, Timeouts
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    AT_ONCE,
    MISSING,
    OTHER_WORKER,
    STATUSES,
    WORKER,
    Suite,
    a_job,
    all_jobs,
    claim,
    drive,
    journal,
    put,
    put_running,
    refused,
    retry_policy,
    rows_of,
    time_limits,
    verbs_of,
)
from penstock.testing.journal import fold_journal

_S = JobStatus


class Journal(Suite):
    """The contents of the rows."""

    def test_the_first_row_tells_where_a_job_came_from(self, backend: Backend, clock: ManualClock) -> None:
        """R10, R11, R12."""
        put(backend, "a", "b")
        due = clock.now() + timedelta(seconds=60)
        put(
            backend,
            "job",
            type="mail",
            tags=["red"],
            key=Key("k", "1"),
            priority=Priority.HIGH,
            retry=retry_policy(max_attempts=4),
            idempotency_key="once",
            after=["a"],
            after_any=["b"],
            parent_id="a",
            run_at=due,
        )
        (row,) = rows_of(backend, "job")
        assert (row.seq, row.n, row.verb) == (3, 1, "enqueue")
        assert (row.from_status, row.status, row.recorded_at) == (None, _S.INITIAL_PENDING, clock.now())
        assert (row.type, row.tags, row.key, row.priority) == ("mail", ("red",), Key("k", "1"), Priority.HIGH)
        assert (row.max_attempts, row.idempotency_key, row.due_at) == (4, "once", due)
        assert (row.after, row.after_any, row.parent_id) == (("a",), ("b",), "a")
        assert (row.attempt, row.retry_count, row.failures, row.progress) == (0, 0, 0, 0)
        assert (row.assignee_id, row.error_message) == (None, "")
        assert (row.error_category, row.error_code, row.ready_at, row.started_at) == (None, None, None, None)
        assert isinstance(row.key, Key)

    def test_later_rows_do_not_repeat_the_origin(self, backend: Backend) -> None:
        put(backend, "first")
        put(backend, "job", after_any=["first"], parent_id="first")
        backend.cancel_jobs(job_ids=["first"])
        claim(backend, "job")
        row = rows_of(backend, "job")[-1]
        assert (row.verb, row.after, row.after_any, row.parent_id) == ("claim", (), (), None)

    def test_a_life_is_told_row_by_row(self, backend: Backend, clock: ManualClock) -> None:
        """R10, R12."""
        put(backend, "job", retry=AT_ONCE)
        clock.advance(1)
        claim(backend, "job")
        clock.advance(1)
        backend.fail_job("job", "boom", category=FailureCategory.SYSTEM, code="E1")
        clock.advance(1)
        claim(backend, "job", OTHER_WORKER)
        clock.advance(1)
        backend.complete_job("job")
        rows = rows_of(backend, "job")
        start = rows[0].recorded_at
        assert [
            (
                row.n,
                str(row.verb),
                row.from_status,
                row.status,
                row.attempt,
                row.retry_count,
                row.failures,
                row.assignee_id,
                (row.recorded_at - start).seconds,
            )
            for row in rows
        ] == [
            (1, "enqueue", None, _S.INITIAL_PENDING, 0, 0, 0, None, 0),
            (2, "claim", _S.INITIAL_PENDING, _S.RUNNING, 1, 0, 0, WORKER, 1),
            (3, "fail", _S.RUNNING, _S.FAILED_RETRY, 1, 1, 1, WORKER, 2),
            (4, "claim", _S.FAILED_RETRY, _S.RUNNING, 2, 1, 1, OTHER_WORKER, 3),
            (5, "complete", _S.RUNNING, _S.COMPLETED, 2, 1, 1, OTHER_WORKER, 4),
        ]
        assert (rows[2].error_message, rows[2].error_category, rows[2].error_code) == (
            "boom",
            FailureCategory.SYSTEM,
            "E1",
        )
        assert rows[4].error_message == "boom"

    def test_the_row_that_ends_an_attempt_tells_when_it_was_ready_and_started(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        put(backend, "job", run_at=clock.now() + timedelta(seconds=10), retry=retry_policy(initial_delay=5))
        due = clock.now() + timedelta(seconds=10)
        started = clock.advance(15)
        claim(backend, "job")
        failed = clock.advance(1)
        backend.fail_job("job", "boom")
        row = rows_of(backend, "job")[-1]
        assert (row.ready_at, row.started_at) == (due, started)
        assert row.due_at == failed + timedelta(seconds=5)
        started = clock.advance(8)
        claim(backend, "job")
        assert (rows_of(backend, "job")[-1].ready_at, rows_of(backend, "job")[-1].started_at) == (None, None)
        clock.advance(1)
        backend.cancel_jobs(job_ids=["job"])
        assert (rows_of(backend, "job")[-1].ready_at, rows_of(backend, "job")[-1].started_at) == (None, None)
        backend.stop_job("job")
        row = rows_of(backend, "job")[-1]
        assert (row.ready_at, row.started_at) == (failed + timedelta(seconds=5), started)

    def test_a_late_end_tells_the_times_of_its_own_attempt(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q7: not when the job became ready for the next one."""
        put(backend, "job")
        ready, started = clock.now(), clock.advance(5)
        claim(backend, "job")
        clock.advance(5)
        backend.reset_running_jobs()
        clock.advance(5)
        backend.update_job_status("job", _S.CANCELLING)
        backend.stop_job("job")
        row = rows_of(backend, "job")[-1]
        assert (row.verb, row.ready_at, row.started_at) == ("stop", ready, started)

    def test_ready_at_is_the_last_of_dependencies_and_turn(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        put(backend, "needed")
        put(backend, "head", key="k")
        put(backend, "job", after=["needed"], key="k")
        clock.advance(10)
        claim(backend, "needed")
        backend.complete_job("needed")
        turn = clock.advance(10)
        claim(backend, "head")
        backend.complete_job("head")
        clock.advance(10)
        claim(backend, "job")
        backend.complete_job("job")
        assert rows_of(backend, "job")[-1].ready_at == turn

    @cells(
        ("call", "verb"),
        [
            (lambda backend: backend.complete_job("job"), "complete"),
            (lambda backend: backend.fail_job("job", "boom"), "fail"),
            (lambda backend: backend.stop_job("job"), "stop"),
            (lambda backend: backend.mark_job_unknown_stopped("job", "x"), "mark_unknown_stopped"),
            (lambda backend: backend.update_job_status("job", _S.STOPPED), "update_status"),
            (lambda backend: backend.cancel_jobs(job_ids=["job"]), "cancel"),
            (lambda backend: backend.mark_worker_unresponsive(WORKER), "mark_worker_unresponsive"),
            (lambda backend: backend.reset_running_jobs(), "reset_running"),
            (lambda backend: backend.release_jobs({"job": "x"}), "release"),
            (lambda backend: backend.update_job("job", priority=1), "update"),
            (lambda backend: backend.complete_jobs({"job": None}), "complete"),
            (lambda backend: backend.fail_jobs({"job": "boom"}), "fail"),
            (lambda backend: backend.stop_jobs({"job": ""}), "stop"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_every_verb_writes_its_name(self, backend: Backend, call: Any, verb: str) -> None:
        put_running(backend, "job")
        call(backend)
        assert verbs_of(backend, "job") == ["enqueue", "claim", verb]

    @cells(
        ("call", "verb"),
        [
            (lambda backend: backend.stop_job_with_retry("job", "x"), "stop_with_retry"),
            (lambda backend: backend.acknowledge_cancellation("job", True), "acknowledge_cancellation"),
            (lambda backend: backend.acknowledge_cancellation("job", False), "acknowledge_cancellation"),
            (lambda backend: backend.complete_job("job"), "complete"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_every_verb_of_cancellation_writes_its_name(self, backend: Backend, call: Any, verb: str) -> None:
        """C9: the verb distinguishes an acknowledgement from a stop."""
        drive(backend, _S.CANCELLING)
        call(backend)
        assert verbs_of(backend, "job") == ["enqueue", "claim", "cancel", verb]

    @cells(
        ("timeouts", "verb"),
        [
            (time_limits(visibility=1), "lose"),
            (time_limits(execution=1), "time_out"),
            (time_limits(lifetime=1), "expire"),
        ],
        ids=["lose", "time_out", "expire"],
    )
    def test_upkeep_writes_what_it_did(
        self, backend: Backend, clock: ManualClock, timeouts: Timeouts, verb: str
    ) -> None:
        put_running(backend, "job", timeouts=timeouts)
        clock.advance(11)
        backend.maintain()
        assert verbs_of(backend, "job") == ["enqueue", "claim", verb]

    def test_a_restart_writes_its_name(self, backend: Backend) -> None:
        drive(backend, _S.STOPPED, held=True)
        backend.restart_job("job", WORKER)
        row = rows_of(backend, "job")[-1]
        assert (row.verb, row.from_status, row.status, row.attempt) == ("restart", _S.STOPPED, _S.RUNNING, 2)

    @cells("status", STATUSES)
    def test_the_fold_of_the_journal_is_the_job(self, backend: Backend, status: JobStatus) -> None:
        """Invariant 23: nothing about a job's state is known to the store alone."""
        job = drive(backend, status, tags=["red"], key=Key("k"), idempotency_key="once")
        fold = fold_journal(journal(backend))["job"]
        assert (fold.status, fold.attempt, fold.retry_count, fold.failures) == (
            job.status,
            job.attempt,
            job.retry_count,
            job.failures,
        )
        assert (fold.tags, fold.key, fold.assignee_id, fold.error_message) == (
            job.tags,
            job.key,
            job.assignee_id,
            job.error_message,
        )
        assert fold.updated_at == job.updated_at

    def test_a_refused_report_writes_no_row(self, backend: Backend) -> None:
        drive(backend, _S.COMPLETED)
        before = journal(backend)
        with pytest.raises(InvalidTransitionError):
            backend.complete_job("job")
        with pytest.raises(StaleAttemptError):
            backend.complete_job("job", attempt=7)
        with pytest.raises(JobNotFoundError):
            backend.fail_job(MISSING, "boom")
        assert journal(backend) == before

    def test_a_plural_writes_one_row_per_job_it_changed(self, backend: Backend) -> None:
        put_running(backend, "a", "b")
        before = len(journal(backend))
        with pytest.raises(ExceptionGroup):
            backend.complete_jobs({"a": None, MISSING: None, "b": None})
        assert [(row.job_id, str(row.verb)) for row in journal(backend)[before:]] in (
            [("a", "complete"), ("b", "complete")],
            [("b", "complete"), ("a", "complete")],
        )


class JournalReading(Suite):
    """read_journal: a dense, growing sequence."""

    def test_an_empty_journal_has_no_rows(self, backend: Backend) -> None:
        assert backend.read_journal() == []
        assert backend.read_journal(after=100) == []

    def test_seq_is_dense_from_one(self, backend: Backend) -> None:
        put(backend, "a", "b", "c")
        backend.dequeue_jobs(WORKER, limit=3)
        backend.complete_jobs(dict.fromkeys("abc"))
        assert [row.seq for row in backend.read_journal()] == list(range(1, 10))

    def test_refused_calls_leave_no_gaps(self, backend: Backend) -> None:
        put(backend, "a")
        for _ in range(3):
            with pytest.raises(Exception, match="a"):
                backend.enqueue_jobs([a_job(id="new", type="t"), a_job(id="a", type="t")])
        put(backend, "b")
        assert [row.seq for row in backend.read_journal()] == [1, 2]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
    def test_pages_join_without_seam(self, backend: Backend, limit: int) -> None:
        put(backend, *"abcdefg")
        rows: list[JournalEntry] = []
        while page := backend.read_journal(after=rows[-1].seq if rows else 0, limit=limit):
            assert len(page) <= limit
            rows += page
        assert [row.job_id for row in rows] == list("abcdefg")

    def test_a_thousand_rows_are_the_default_page(self, backend: Backend) -> None:
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t") for number in range(1_100)])
        assert len(backend.read_journal()) == 1_000
        assert len(backend.read_journal(after=1_000)) == 100

    def test_ones_own_commit_is_readable_at_once(self, backend: Backend, second_backend: Backend) -> None:
        for number, writer in enumerate([backend, second_backend] * 4):
            put(writer, f"job-{number}")
            for reader in (backend, second_backend):
                assert [row.job_id for row in reader.read_journal(after=number)] == [f"job-{number}"]

    def test_the_span_reaches_to_ones_own_commit(self, backend: Backend, second_backend: Backend) -> None:
        assert backend.journal.span() == (1, 0)
        for number, writer in enumerate([backend, second_backend] * 2, start=1):
            put(writer, f"job-{number}")
            assert {reader.journal.span() for reader in (backend, second_backend)} == {(1, number)}

    def test_the_span_of_the_jobs_covers_those_stored(self, backend: Backend) -> None:
        assert backend.reading.jobs_span() == (1, 0)
        put(backend, "a", "b", "c")
        first, last = backend.reading.jobs_span()
        assert last - first >= 2
        for name in ("a", "b"):
            claim(backend, name)
            backend.complete_job(name)
        backend.delete_jobs(job_ids=["a", "b"])
        assert backend.reading.jobs_span() == (last, last)

    def test_a_store_keeps_its_id(self, backend: Backend, second_backend: Backend) -> None:
        assert backend.journal.store_id() == second_backend.journal.store_id() == backend.journal.store_id()
        assert len(backend.journal.store_id()) == 32

    def test_the_rows_of_removed_jobs_stay(self, backend: Backend) -> None:
        drive(backend, _S.COMPLETED)
        backend.delete_jobs(job_ids=["job"])
        assert all_jobs(backend) == []
        assert verbs_of(backend, "job") == ["enqueue", "claim", "complete", "delete"]

    def test_the_history_of_a_job_is_its_rows_in_order(self, backend: Backend) -> None:
        put(backend, "a", "b")
        for name in ("b", "a"):
            claim(backend, name)
            backend.complete_job(name)
        rows = backend.journal.history("a")
        assert rows == [row for row in journal(backend) if row.job_id == "a"]
        assert [row.n for row in rows] == [1, 2, 3]

    def test_a_limited_history_is_its_end(self, backend: Backend) -> None:
        put(backend, "a")
        for _ in range(3):
            claim(backend, "a")
            backend.fail_job("a", "broken")
        assert [row.n for row in backend.journal.history("a", 2)] == [6, 7]
        assert [row.n for row in backend.journal.history("a", limit=1)] == [7]

    def test_a_history_is_not_that_of_an_earlier_job_with_the_same_id(self, backend: Backend) -> None:
        drive(backend, _S.COMPLETED)
        backend.delete_jobs(job_ids=["job"])
        with refused(backend, JobNotFoundError):
            backend.journal.history("job")
        put(backend, "job")
        assert [(row.n, str(row.verb)) for row in backend.journal.history("job")] == [(1, "enqueue")]

    def test_a_history_reaches_to_the_commits_of_others(
        self, backend: Backend, second_backend: Backend
    ) -> None:
        put(backend, "a")
        claim(second_backend, "a")
        assert [str(row.verb) for row in backend.journal.history("a")] == ["enqueue", "claim"]

    @cells("limit", [0, -1, True, "1", None], ids=repr)
    def test_a_history_without_a_sound_limit_is_refused(self, backend: Backend, limit: Any) -> None:
        put(backend, "a")
        with refused(backend, InvalidArgumentError):
            backend.journal.history("a", limit)

    @cells(
        "arguments",
        [
            {"after": -1},
            {"after": True},
            {"after": "1"},
            {"after": None},
            {"after": 1.0},
            {"limit": 0},
            {"limit": -1},
            {"limit": True},
            {"limit": "10"},
        ],
        ids=repr,
    )
    def test_what_is_no_cursor_or_limit_is_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        with refused(backend, InvalidArgumentError):
            backend.read_journal(**arguments)
