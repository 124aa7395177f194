"""The full matrix: every verb on a job in every status is accepted exactly when the table of moves says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from penstock.backends import Backend
from penstock.errors import InvalidTransitionError, ReportErrors, StaleAttemptError
from penstock.job import JobStatus
from penstock.lifecycle import Verb, allows, targets
from penstock.policy import FailureCategory, RetryPolicy
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    ONE_ATTEMPT,
    OTHER_WORKER,
    STATUSES,
    WORKER,
    Suite,
    drive,
    put,
    refused,
    rows_of,
    time_limits,
    unchanged,
)

_S = JobStatus
_each_status = cells("status", STATUSES, ids=str)

Single = Callable[[Backend, int | None], Any]
Plural = Callable[[Backend, dict[str, int] | None], Any]


class ReportCase(NamedTuple):
    """One report: the verb of the table, where it leads, and how it is called alone and in the plural."""

    verb: Verb
    target: JobStatus
    single: Single | None
    plural: Plural


def _failing(category: FailureCategory) -> tuple[Single, Plural]:
    return (
        lambda b, a: b.fail_job("job", "boom", attempt=a, category=category),
        lambda b, a: b.fail_jobs({"job": "boom"}, attempts=a, category=category),
    )


REPORT_CASES: dict[str, ReportCase] = {
    "complete": ReportCase(
        Verb.COMPLETE,
        _S.COMPLETED,
        lambda b, a: b.complete_job("job", b"r", attempt=a),
        lambda b, a: b.complete_jobs({"job": b"r"}, attempts=a),
    ),
    "fail": ReportCase(Verb.FAIL, _S.FAILED_RETRY, *_failing(FailureCategory.TEMPORARY)),
    "fail timeout": ReportCase(Verb.FAIL, _S.FAILED_RETRY, *_failing(FailureCategory.TIMEOUT)),
    "fail permanent": ReportCase(Verb.FAIL, _S.FAILED, *_failing(FailureCategory.PERMANENT)),
    "fail cancelled": ReportCase(Verb.FAIL, _S.STOPPED, *_failing(FailureCategory.CANCELLED)),
    "stop": ReportCase(
        Verb.STOP,
        _S.STOPPED,
        lambda b, a: b.stop_job("job", "stop", attempt=a),
        lambda b, a: b.stop_jobs({"job": "stop"}, attempts=a),
    ),
    "stop with retry": ReportCase(
        Verb.STOP_WITH_RETRY,
        _S.STOPPED,
        lambda b, a: b.stop_job_with_retry("job", "stop", attempt=a),
        lambda b, a: b.stop_jobs_with_retry({"job": "stop"}, attempts=a),
    ),
    "mark unknown stopped": ReportCase(
        Verb.MARK_UNKNOWN_STOPPED,
        _S.UNKNOWN_STOPPED,
        lambda b, a: b.mark_job_unknown_stopped("job", "lost", attempt=a),
        lambda b, a: b.mark_jobs_unknown_stopped({"job": "lost"}, attempts=a),
    ),
    "acknowledge executing": ReportCase(
        Verb.ACKNOWLEDGE,
        _S.STOPPED,
        lambda b, a: b.acknowledge_cancellation("job", True, attempt=a),
        lambda b, a: b.acknowledge_cancellations({"job": True}, attempts=a),
    ),
    "acknowledge not executing": ReportCase(
        Verb.ACKNOWLEDGE,
        _S.UNKNOWN_STOPPED,
        lambda b, a: b.acknowledge_cancellation("job", False, attempt=a),
        lambda b, a: b.acknowledge_cancellations({"job": False}, attempts=a),
    ),
    "release": ReportCase(
        Verb.RELEASE, _S.FAILED_RETRY, None, lambda b, a: b.release_jobs({"job": "back"}, attempts=a)
    ),
}

_each_report = cells("report", REPORT_CASES)
_each_single_report = cells(
    "report", [name for name, case in REPORT_CASES.items() if case.single is not None]
)


#: A job that may not be retried does not wait for a retry, and one without a policy does not die.
_LOSABLE = [
    (status, retry)
    for status in STATUSES
    for retry in (None, ONE_ATTEMPT)
    if status not in ((_S.DEAD_LETTER,) if retry is None else (_S.UNKNOWN_RETRY, _S.FAILED_RETRY))
]
_LOSABLE_NAMES = [
    f"{status} {'without a policy' if retry is None else 'in its last attempt'}" for status, retry in _LOSABLE
]


def assert_moved(backend: Backend, source: JobStatus, verb: Verb, target: JobStatus) -> None:
    """Assert that the job's last step is this one, and that it is in the table."""
    job, row = backend.get_job("job"), rows_of(backend, "job")[-1]
    assert (job.status, row.from_status, row.status, row.verb) == (target, source, target, verb)
    assert target in targets(verb, source)
    if target.is_final:
        assert job.finalized_at is not None
    else:
        assert job.finalized_at is None
    if source.holds_slot:
        assert job.assignee_id == WORKER


class TransitionsMatrix(Suite):
    """Every verb on every status: legal moves happen, all others are refused and change nothing."""

    @_each_single_report
    @_each_status
    def test_reports_are_accepted_exactly_where_the_table_allows_them(
        self, backend: Backend, status: JobStatus, report: str
    ) -> None:
        """Q5, Q6, Q35-Q39, Q44, B6-B8, B17, C2, C13, B20."""
        case = REPORT_CASES[report]
        assert case.single is not None
        job = drive(backend, status)
        if allows(case.verb, status):
            freed = case.single(backend, None)
            assert_moved(backend, status, case.verb, case.target)
            if case.verb is not Verb.ACKNOWLEDGE:
                assert freed == ({WORKER: 1} if status.holds_slot else {})
        else:
            with refused(backend, InvalidTransitionError) as caught:
                case.single(backend, None)
            error: Any = caught.value
            assert (error.job_id, error.status, error.verb) == ("job", str(status), str(case.verb))
        assert backend.get_job("job").attempt == job.attempt

    @_each_single_report
    @_each_status
    def test_fenced_reports_are_accepted_exactly_where_the_table_allows_them(
        self, backend: Backend, status: JobStatus, report: str
    ) -> None:
        """Q35-Q40: the right attempt in the wrong status is over, unless it holds the job: then the verb is wrong."""
        case = REPORT_CASES[report]
        assert case.single is not None
        attempt = drive(backend, status).attempt
        if allows(case.verb, status):
            case.single(backend, attempt)
            assert_moved(backend, status, case.verb, case.target)
        else:
            with refused(backend, InvalidTransitionError if status.holds_slot else StaleAttemptError):
                case.single(backend, attempt)

    @_each_report
    @_each_status
    def test_plural_reports_are_accepted_exactly_where_the_table_allows_them(
        self, backend: Backend, status: JobStatus, report: str
    ) -> None:
        """B2."""
        case = REPORT_CASES[report]
        drive(backend, status)
        if allows(case.verb, status):
            freed = case.plural(backend, None)
            target = _S.STOPPED if (case.verb, status) == (Verb.RELEASE, _S.CANCELLING) else case.target
            assert_moved(backend, status, case.verb, target)
            if case.verb is not Verb.ACKNOWLEDGE:
                assert freed == ({WORKER: 1} if status.holds_slot else {})
        else:
            with unchanged(backend), pytest.raises(ReportErrors) as caught:
                case.plural(backend, None)
            assert [type(error) for error in caught.value.exceptions] == [InvalidTransitionError]
            assert caught.value.freed == {}

    @_each_report
    @_each_status
    def test_fenced_plural_reports_are_accepted_exactly_where_the_table_allows_them(
        self, backend: Backend, status: JobStatus, report: str
    ) -> None:
        case = REPORT_CASES[report]
        attempt = drive(backend, status).attempt
        if allows(case.verb, status):
            case.plural(backend, {"job": attempt})
            assert rows_of(backend, "job")[-1].verb == case.verb
        else:
            with unchanged(backend), pytest.raises(ReportErrors) as caught:
                case.plural(backend, {"job": attempt})
            expected = InvalidTransitionError if status.holds_slot else StaleAttemptError
            assert [type(error) for error in caught.value.exceptions] == [expected]

    @cells("target", STATUSES, ids=str)
    @_each_status
    def test_update_job_status_is_refused_to_an_attempt_that_is_over(
        self, backend: Backend, status: JobStatus, target: JobStatus
    ) -> None:
        """Q40: a report is refused if the job was released, was never claimed, or ended with a known outcome."""
        attempt = drive(backend, status).attempt
        if status.holds_slot or status in (_S.UNKNOWN_RETRY, _S.UNKNOWN_STOPPED):
            if allows(Verb.UPDATE_STATUS, status, target):
                backend.update_job_status("job", target, attempt=attempt)
                assert_moved(backend, status, Verb.UPDATE_STATUS, target)
        else:
            with refused(backend, StaleAttemptError):
                backend.update_job_status("job", target, attempt=attempt)

    @cells("target", STATUSES, ids=str)
    @_each_status
    def test_update_job_status_walks_exactly_the_edges_of_the_table(
        self, backend: Backend, status: JobStatus, target: JobStatus
    ) -> None:
        """Q6, Q7, B9, C2: never to RUNNING, FAILED, DEAD_LETTER or back to INITIAL_PENDING."""
        drive(backend, status)
        if allows(Verb.UPDATE_STATUS, status, target):
            freed = backend.update_job_status("job", target)
            assert_moved(backend, status, Verb.UPDATE_STATUS, target)
            frees = status.holds_slot and target in (_S.COMPLETED, _S.STOPPED, _S.UNKNOWN_STOPPED)
            assert freed == ({WORKER: 1} if frees else {})
        elif status is target and not status.is_final:
            with unchanged(backend):
                assert backend.update_job_status("job", target) == {}
        else:
            with refused(backend, InvalidTransitionError):
                backend.update_job_status("job", target)

    @_each_status
    def test_a_claim_takes_exactly_what_is_eligible(self, backend: Backend, status: JobStatus) -> None:
        """Q5, B5."""
        before = drive(backend, status)
        if allows(Verb.CLAIM, status):
            (job,) = backend.dequeue_jobs(WORKER, job_ids=["job"])
            assert job.attempt == before.attempt + 1
            assert_moved(backend, status, Verb.CLAIM, _S.RUNNING)
        else:
            with unchanged(backend):
                assert backend.dequeue_jobs(WORKER, job_ids=["job"]) == []

    @cells("held", [True, False], ids=["held", "not held"])
    @_each_status
    def test_a_restart_takes_exactly_held_jobs_that_stopped(
        self, backend: Backend, status: JobStatus, held: bool
    ) -> None:
        """P12."""
        before = drive(backend, status, held=held)
        if held and allows(Verb.RESTART, status):
            assert backend.restart_job("job", WORKER).attempt == before.attempt + 1
            assert_moved(backend, status, Verb.RESTART, _S.RUNNING)
        else:
            with refused(backend, InvalidTransitionError):
                backend.restart_job("job", WORKER)

    @_each_status
    def test_a_cancellation_ends_or_asks_exactly_what_is_unfinished(
        self, backend: Backend, status: JobStatus
    ) -> None:
        """Q42, Q43."""
        drive(backend, status)
        if allows(Verb.CANCEL, status):
            assert backend.cancel_jobs(job_ids=["job"]) == (["job"], [])
            (target,) = targets(Verb.CANCEL, status)
            assert_moved(backend, status, Verb.CANCEL, target)
        else:
            with unchanged(backend):
                answer = backend.cancel_jobs(job_ids=["job"])
            assert answer == ((["job"], []) if status is _S.CANCELLING else ([], ["job"]))

    @cells("verb", [Verb.UNRESPONSIVE, Verb.RESET, Verb.LOSE], ids=str)
    @cells(("status", "retry"), _LOSABLE, ids=_LOSABLE_NAMES)
    def test_a_loss_moves_exactly_what_is_in_flight(
        self, backend: Backend, clock: ManualClock, status: JobStatus, verb: Verb, retry: RetryPolicy | None
    ) -> None:
        """Q45, Q49, G15, C63."""
        drive(backend, status, retry=retry, timeouts=time_limits(visibility=5))
        clock.advance(5)

        def lose() -> None:
            if verb is Verb.UNRESPONSIVE:
                backend.mark_worker_unresponsive(WORKER)
            elif verb is Verb.RESET:
                backend.reset_running_jobs()
            else:
                backend.maintain()

        if allows(verb, status):
            lose()
            alive, dead = (*targets(verb, status), None)[:2]
            target = dead if retry is not None and dead is not None else alive
            assert target is not None
            assert_moved(backend, status, verb, target)
        else:
            with unchanged(backend):
                lose()

    @_each_status
    def test_an_execution_time_ends_exactly_what_is_running(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """G14."""
        drive(backend, status, timeouts=time_limits(execution=5))
        clock.advance(15)
        if allows(Verb.TIME_OUT, status):
            assert backend.maintain().timed_out == 1
            assert_moved(backend, status, Verb.TIME_OUT, _S.FAILED_RETRY)
        else:
            with unchanged(backend):
                assert backend.maintain().timed_out == 0

    @_each_status
    def test_a_lifetime_ends_exactly_what_is_unfinished(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """G16, C30."""
        drive(backend, status, timeouts=time_limits(lifetime=5))
        clock.advance(5)
        if allows(Verb.EXPIRE, status):
            assert backend.maintain().expired == 1
            assert_moved(backend, status, Verb.EXPIRE, _S.DEAD_LETTER)
        else:
            with unchanged(backend):
                assert backend.maintain().expired == 0

    @_each_status
    def test_progress_and_checkpoints_belong_to_jobs_in_flight(
        self, backend: Backend, status: JobStatus
    ) -> None:
        attempt = drive(backend, status).attempt
        if status.holds_slot:
            backend.save_progress("job", 5, attempt=attempt)
            backend.save_checkpoint("job", b"state", attempt=attempt)
        else:
            for fence, error in ((None, InvalidTransitionError), (attempt, StaleAttemptError)):
                with refused(backend, error):
                    backend.save_progress("job", 5, attempt=fence)
                with refused(backend, error):
                    backend.save_checkpoint("job", b"state", attempt=fence)

    @_each_status
    def test_only_unfinished_jobs_can_be_changed(self, backend: Backend, status: JobStatus) -> None:
        """C34."""
        drive(backend, status)
        if status.is_final:
            with refused(backend, InvalidTransitionError):
                backend.update_job("job", priority=1)
        else:
            backend.update_job("job", priority=1)
            assert backend.get_job("job").status is status

    @_each_status
    def test_only_dead_jobs_can_be_redriven(self, backend: Backend, status: JobStatus) -> None:
        """C23."""
        drive(backend, status)
        if status in (_S.FAILED, _S.DEAD_LETTER):
            assert len(backend.redrive_jobs(job_ids=["job"])) == 1
        else:
            with refused(backend, InvalidTransitionError):
                backend.redrive_jobs(job_ids=["job"])

    @_each_status
    def test_only_ended_jobs_can_be_deleted(self, backend: Backend, status: JobStatus) -> None:
        """Q50."""
        drive(backend, status)
        if status.is_final:
            assert backend.delete_jobs(job_ids=["job"]) == 1
        else:
            with refused(backend, InvalidTransitionError):
                backend.delete_jobs(job_ids=["job"])

    @_each_status
    def test_only_completed_jobs_are_cleaned_up(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """Q48."""
        drive(backend, status)
        clock.advance(10)
        assert backend.cleanup_expired_jobs(timedelta(seconds=10)) == (status is _S.COMPLETED)

    @_each_status
    def test_a_heartbeat_counts_exactly_what_is_in_flight(self, backend: Backend, status: JobStatus) -> None:
        drive(backend, status)
        with unchanged(backend):
            assert backend.heartbeat(WORKER) == status.holds_slot

    @_each_status
    def test_a_dependent_is_told_exactly_when_its_dependency_ends(
        self, backend: Backend, status: JobStatus
    ) -> None:
        """G26."""
        drive(backend, status)
        put(backend, "dependent", after=["job"])
        stored = backend.get_job("dependent").status
        if status.is_final and status is not _S.COMPLETED:
            expected = status if status in (_S.FAILED, _S.DEAD_LETTER) else _S.UNSCHEDULED
            assert stored is expected
            assert allows(Verb.PROPAGATE, _S.INITIAL_PENDING, stored)
        else:
            assert stored is _S.INITIAL_PENDING
            assert bool(backend.dequeue_jobs(OTHER_WORKER, job_ids=["dependent"])) is (status is _S.COMPLETED)
