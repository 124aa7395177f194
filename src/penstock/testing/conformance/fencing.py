"""Which reports are accepted: those of the current attempt, one by one or many in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.backends import Backend, Failure
from penstock.errors import (
    InvalidArgumentError,
    InvalidTransitionError,
    JobNotFoundError,
    ReportErrors,
    StaleAttemptError,
)
from penstock.job import JobStatus
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    AT_ONCE,
    MISSING,
    OTHER_WORKER,
    WORKER,
    Suite,
    a_job,
    claim,
    drive,
    ids,
    put_running,
    refused,
    unchanged,
)

_S = JobStatus
Report = Callable[[Backend, str, int | None], object]

REPORTS: dict[str, Report] = {
    "complete_job": lambda backend, job_id, attempt: backend.complete_job(job_id, b"r", attempt=attempt),
    "fail_job": lambda backend, job_id, attempt: backend.fail_job(job_id, "boom", attempt=attempt),
    "stop_job": lambda backend, job_id, attempt: backend.stop_job(job_id, "stop", attempt=attempt),
    "mark_job_unknown_stopped": lambda backend, job_id, attempt: backend.mark_job_unknown_stopped(
        job_id, "lost", attempt=attempt
    ),
    "update_job_status": lambda backend, job_id, attempt: backend.update_job_status(
        job_id, _S.STOPPED, attempt=attempt
    ),
    "save_progress": lambda backend, job_id, attempt: backend.save_progress(job_id, 50, attempt=attempt),
    "save_checkpoint": lambda backend, job_id, attempt: backend.save_checkpoint(
        job_id, b"s", attempt=attempt
    ),
}

CANCEL_REPORTS: dict[str, Report] = {
    "stop_job_with_retry": lambda backend, job_id, attempt: backend.stop_job_with_retry(
        job_id, "stop", attempt=attempt
    ),
    "acknowledge_cancellation": lambda backend, job_id, attempt: backend.acknowledge_cancellation(
        job_id, True, attempt=attempt
    ),
}

_NOT_WHILE_UNKNOWN = {"save_progress", "save_checkpoint"}


class Fencing(Suite):
    """`attempt=`: a report of an attempt that is over changes nothing."""

    @cells("verb", [*REPORTS, *CANCEL_REPORTS])
    def test_the_current_attempt_may_report(self, backend: Backend, verb: str) -> None:
        drive(backend, _S.CANCELLING if verb in CANCEL_REPORTS else _S.RUNNING)
        (REPORTS | CANCEL_REPORTS)[verb](backend, "job", 1)

    @cells("attempt", [0, 1, 3, 2**31 - 1])
    @cells("verb", [*REPORTS, *CANCEL_REPORTS])
    def test_another_attempt_is_refused(self, backend: Backend, verb: str, attempt: int) -> None:
        put_running(backend, "job")
        backend.fail_job("job", "boom")
        claim(backend, "job")
        if verb in CANCEL_REPORTS:
            backend.cancel_jobs(job_ids=["job"])
        with refused(backend, StaleAttemptError) as caught:
            (REPORTS | CANCEL_REPORTS)[verb](backend, "job", attempt)
        error: Any = caught.value
        assert (error.job_id, error.attempt, error.current_attempt) == ("job", attempt, 2)
        assert error.status == str(backend.get_job("job").status)

    @cells("verb", [name for name in REPORTS if name != "update_job_status"])
    @cells("status", [_S.FAILED_RETRY, _S.COMPLETED, _S.STOPPED, _S.FAILED, _S.DEAD_LETTER])
    def test_an_attempt_that_is_over_is_refused(self, backend: Backend, verb: str, status: JobStatus) -> None:
        drive(backend, status)
        with refused(backend, StaleAttemptError):
            REPORTS[verb](backend, "job", 1)

    @cells("status", [_S.COMPLETED, _S.FAILED_RETRY])
    @cells("verb", [name for name in REPORTS if name != "update_job_status"])
    def test_without_an_attempt_the_status_is_what_is_wrong(
        self, backend: Backend, verb: str, status: JobStatus
    ) -> None:
        """Q40, Q55."""
        drive(backend, status)
        with refused(backend, InvalidTransitionError):
            REPORTS[verb](backend, "job", None)

    @cells("verb", [name for name in REPORTS if name not in _NOT_WHILE_UNKNOWN])
    def test_a_lost_attempt_may_report_until_another_begins(self, backend: Backend, verb: str) -> None:
        """Q40."""
        drive(backend, _S.UNKNOWN_RETRY)
        REPORTS[verb](backend, "job", 1)
        assert backend.get_job("job").status is not _S.UNKNOWN_RETRY

    @cells("verb", list(REPORTS))
    def test_a_lost_attempt_may_not_report_once_another_has_begun(self, backend: Backend, verb: str) -> None:
        """A paused worker must not complete another worker's attempt."""
        drive(backend, _S.UNKNOWN_RETRY)
        claim(backend, "job", OTHER_WORKER)
        with refused(backend, StaleAttemptError):
            REPORTS[verb](backend, "job", 1)

    @cells("verb", [name for name in REPORTS if name not in _NOT_WHILE_UNKNOWN])
    def test_anyone_may_report_without_a_fence(self, backend: Backend, verb: str) -> None:
        """Q40."""
        drive(backend, _S.UNKNOWN_RETRY)
        claim(backend, "job", OTHER_WORKER)
        REPORTS[verb](backend, "job", None)
        assert backend.get_job("job").status is not _S.RUNNING

    @cells("attempt", [None, 1])
    @cells("verb", [*REPORTS, *CANCEL_REPORTS])
    def test_an_unknown_job_is_not_found_with_or_without_a_fence(
        self, backend: Backend, verb: str, attempt: int | None
    ) -> None:
        """Q55."""
        with refused(backend, JobNotFoundError) as caught:
            (REPORTS | CANCEL_REPORTS)[verb](backend, MISSING, attempt)
        assert caught.value.job_id == MISSING  # type: ignore[attr-defined]

    def test_a_fence_does_not_reach_across_a_deletion(self, backend: Backend) -> None:
        """C53: a new history begins."""
        drive(backend, _S.COMPLETED)
        backend.delete_jobs(job_ids=["job"])
        put_running(backend, "job")
        assert backend.complete_job("job", attempt=1) == {WORKER: 1}


Plural = Callable[[Backend, dict[str, Any], dict[str, int] | None], Any]

PLURALS: dict[str, tuple[Plural, Any, JobStatus, JobStatus]] = {
    "complete_jobs": (lambda b, x, a: b.complete_jobs(x, attempts=a), b"r", _S.RUNNING, _S.COMPLETED),
    "fail_jobs": (lambda b, x, a: b.fail_jobs(x, attempts=a), "boom", _S.RUNNING, _S.FAILED_RETRY),
    "stop_jobs": (lambda b, x, a: b.stop_jobs(x, attempts=a), "stop", _S.RUNNING, _S.STOPPED),
    "stop_jobs_with_retry": (
        lambda b, x, a: b.stop_jobs_with_retry(x, attempts=a),
        "stop",
        _S.CANCELLING,
        _S.STOPPED,
    ),
    "mark_jobs_unknown_stopped": (
        lambda b, x, a: b.mark_jobs_unknown_stopped(x, attempts=a),
        "lost",
        _S.RUNNING,
        _S.UNKNOWN_STOPPED,
    ),
    "release_jobs": (lambda b, x, a: b.release_jobs(x, attempts=a), "back", _S.RUNNING, _S.FAILED_RETRY),
    "acknowledge_cancellations": (
        lambda b, x, a: b.acknowledge_cancellations(x, attempts=a),
        True,
        _S.CANCELLING,
        _S.STOPPED,
    ),
}

_each_plural = cells("verb", list(PLURALS))


class Plurals(Suite):
    """Many reports in one transaction, best effort."""

    @_each_plural
    def test_every_job_is_reported_and_the_freed_slots_add_up(self, backend: Backend, verb: str) -> None:
        """B2."""
        call, value, source, target = PLURALS[verb]
        put_running(backend, "a", "b")
        put_running(backend, "c", worker=OTHER_WORKER)
        if source is _S.CANCELLING:
            backend.cancel_jobs(job_ids=["a", "b", "c"])
        freed = call(backend, {"a": value, "b": value, "c": value}, None)
        assert freed == (None if verb == "acknowledge_cancellations" else {WORKER: 2, OTHER_WORKER: 1})
        assert [backend.get_job(each).status for each in "abc"] == [target] * 3

    @_each_plural
    def test_nothing_to_report_is_fine(self, backend: Backend, verb: str) -> None:
        call, *_ = PLURALS[verb]
        with unchanged(backend):
            assert call(backend, {}, None) in ({}, None)

    @_each_plural
    def test_what_is_refused_is_raised_after_the_rest_was_done(self, backend: Backend, verb: str) -> None:
        """B2, Q55."""
        call, value, source, target = PLURALS[verb]
        put_running(backend, "good", "stale", "done")
        if source is _S.CANCELLING:
            backend.cancel_jobs(job_ids=["good", "stale", "done"])
        backend.complete_job("done")
        before = {each: backend.get_job(each) for each in ("stale", "done")}
        with pytest.raises(ReportErrors) as caught:
            call(backend, dict.fromkeys(("stale", "good", MISSING, "done"), value), {"stale": 9, "good": 1})
        errors: list[Any] = list(caught.value.exceptions)
        assert {error.job_id: type(error) for error in errors} == {
            "stale": StaleAttemptError,
            MISSING: JobNotFoundError,
            "done": InvalidTransitionError,
        }
        assert caught.value.freed == {WORKER: 1}
        assert backend.get_job("good").status is target
        assert {each: backend.get_job(each) for each in before} == before

    @_each_plural
    def test_when_all_are_refused_nothing_changes(self, backend: Backend, verb: str) -> None:
        call, value, *_ = PLURALS[verb]
        drive(backend, _S.COMPLETED)
        with unchanged(backend), pytest.raises(ReportErrors) as caught:
            call(backend, {"job": value, MISSING: value}, None)
        assert caught.value.freed == {}
        assert len(caught.value.exceptions) == 2

    @_each_plural
    def test_attempts_fence_only_the_jobs_they_name(self, backend: Backend, verb: str) -> None:
        call, value, source, target = PLURALS[verb]
        put_running(backend, "a", "b")
        if source is _S.CANCELLING:
            backend.cancel_jobs(job_ids=["a", "b"])
        call(backend, {"a": value, "b": value}, {"a": 1, "unrelated": 7})
        assert [backend.get_job(each).status for each in "ab"] == [target] * 2

    def test_one_empty_message_refuses_all_failures_before_any_work(self, backend: Backend) -> None:
        put_running(backend, "a", "b")
        with refused(backend, InvalidArgumentError):
            backend.fail_jobs({"a": "boom", "b": ""})

    def test_one_oversized_result_refuses_all_completions(self, backend: Backend) -> None:
        put_running(backend, "a", "b")
        with unchanged(backend), pytest.raises(InvalidArgumentError):
            backend.complete_jobs({"a": b"fine", "b": bytes(1_048_577)})

    def test_failures_may_differ_in_one_call(self, backend: Backend, clock: ManualClock) -> None:
        """G28, G29."""
        put_running(backend, "plain", "permanent", "later", "dead", retry=AT_ONCE)
        backend.fail_jobs(
            {
                "plain": "boom",
                "permanent": Failure(message="bad", category=FailureCategory.PERMANENT, code="E1"),
                "later": Failure(message="busy", retry_after=30),
                "dead": Failure(message="kaputt", category=FailureCategory.CANCELLED),
            },
            category=FailureCategory.SYSTEM,
            code="host",
        )
        jobs = backend.get_jobs(["plain", "permanent", "later", "dead"])
        assert {job_id: (job.status, job.error_category, job.error_code) for job_id, job in jobs.items()} == {
            "plain": (_S.FAILED_RETRY, FailureCategory.SYSTEM, "host"),
            "permanent": (_S.FAILED, FailureCategory.PERMANENT, "E1"),
            "later": (_S.FAILED_RETRY, FailureCategory.TEMPORARY, None),
            "dead": (_S.STOPPED, FailureCategory.CANCELLED, None),
        }
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["plain"]
        clock.advance(30)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["later"]

    def test_the_keyword_retry_after_applies_to_plain_messages(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G29."""
        put_running(backend, "a", "b")
        backend.fail_jobs({"a": "busy", "b": "busy"}, retry_after=30)
        assert backend.dequeue_jobs(WORKER, limit=10) == []
        clock.advance(30)
        assert len(backend.dequeue_jobs(WORKER, limit=10)) == 2

    def test_many_completions_are_one_call(self, backend: Backend) -> None:
        """Q18, B2."""
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t") for number in range(500)])
        backend.dequeue_jobs(WORKER, limit=500)
        freed = backend.complete_jobs({f"job-{number}": b"%d" % number for number in range(500)})
        assert freed == {WORKER: 500}
        assert backend.get_job_stats().completed_jobs == 500
        assert backend.get_job("job-77").result == b"77"
