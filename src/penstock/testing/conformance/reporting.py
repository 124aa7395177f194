"""Reports: what each one does to a job, and the slots that it frees."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.backends import Backend
from penstock.errors import (
    InvalidArgumentError,
    InvalidTransitionError,
)
from penstock.job import JobState, JobStatus
from penstock.policy import FailureCategory, RetryPolicy
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    AT_ONCE,
    WORKER,
    Suite,
    claim,
    drive,
    is_takeable,
    put,
    put_running,
    refused,
    retry_policy,
    unchanged,
)

_S = JobStatus
_CATEGORIES = tuple(FailureCategory)
_RETRIED = (FailureCategory.TEMPORARY, FailureCategory.TIMEOUT, FailureCategory.SYSTEM)


class Completing(Suite):
    """complete_job."""

    def test_a_completed_job_has_its_result_and_its_end(self, backend: Backend, clock: ManualClock) -> None:
        """Q3, Q35, B6, G5."""
        put_running(backend, "job")
        now = clock.advance(3)
        assert backend.complete_job("job", b"\x00result") == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.state, job.result) == (_S.COMPLETED, JobState.COMPLETED, b"\x00result")
        assert (job.finalized_at, job.completed_at, job.updated_at) == (now, now, now)

    @cells("result", [None, b"", b"\x00", bytearray(b"ab")], ids=repr)
    def test_a_result_may_be_empty_or_absent(self, backend: Backend, result: Any) -> None:
        """Q35, C60."""
        put_running(backend, "job")
        backend.complete_job("job", result)
        assert backend.get_job("job").result == result

    @cells(
        ("status", "freed"),
        [
            (_S.RUNNING, {WORKER: 1}),
            (_S.CANCELLING, {WORKER: 1}),
            (_S.UNKNOWN_RETRY, {}),
            (_S.UNKNOWN_STOPPED, {}),
        ],
    )
    def test_completion_frees_a_slot_only_while_one_is_held(
        self, backend: Backend, status: JobStatus, freed: dict[str, int]
    ) -> None:
        """Q35, Q40, B2, B6, C7."""
        before = drive(backend, status)
        assert backend.complete_job("job", b"late") == freed
        after = backend.get_job("job")
        assert (after.status, after.result) == (_S.COMPLETED, b"late")
        assert (after.assignee_id, after.assigned_at, after.started_at) == (
            WORKER,
            before.assigned_at,
            before.started_at,
        )

    def test_completing_an_unknown_stopped_job_moves_its_end(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q7, Q35: the time of completion is what counts."""
        drive(backend, _S.UNKNOWN_STOPPED)
        now = clock.advance(60)
        backend.complete_job("job")
        assert backend.get_job("job").finalized_at == now

    def test_a_completed_job_never_runs_again(self, backend: Backend, clock: ManualClock) -> None:
        """Q35."""
        drive(backend, _S.COMPLETED)
        clock.advance(timedelta(days=1))
        backend.maintain()
        assert backend.dequeue_jobs(WORKER, limit=10) == []
        assert not is_takeable(backend, "job")

    def test_the_errors_of_earlier_attempts_stay_visible(self, backend: Backend) -> None:
        put_running(backend, "job")
        backend.fail_job("job", "first try failed")
        claim(backend, "job")
        backend.complete_job("job")
        job = backend.get_job("job")
        assert (job.error_message, job.retry_count) == ("first try failed", 1)


class Failing(Suite):
    """fail_job."""

    def test_a_failure_without_a_policy_is_retried_at_once(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q36, B7, C1, C55."""
        put_running(backend, "job")
        now = clock.advance(3)
        assert backend.fail_job("job", "boom") == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.state) == (_S.FAILED_RETRY, JobState.SCHEDULED)
        assert (job.error_message, job.error_category, job.error_code) == (
            "boom",
            FailureCategory.TEMPORARY,
            None,
        )
        assert (job.retry_count, job.failures, job.last_retry_at) == (1, 1, now)
        assert (job.finalized_at, job.assignee_id, job.updated_at) == (None, WORKER, now)
        assert is_takeable(backend, "job")

    def test_without_a_policy_there_is_no_limit(self, backend: Backend) -> None:
        """Q36, C55, G34: a job has a policy only if it was submitted with one."""
        put(backend, "job")
        for attempt in range(1, 31):
            assert claim(backend, "job").attempt == attempt
            backend.fail_job("job", "boom")
        job = backend.get_job("job")
        assert (job.status, job.retry_count, job.failures) == (_S.FAILED_RETRY, 30, 30)

    @cells("category", _CATEGORIES)
    def test_category_and_code_are_stored(self, backend: Backend, category: FailureCategory) -> None:
        """G28, G29."""
        put_running(backend, "job")
        backend.fail_job("job", "boom", category=category, code="E42")
        job = backend.get_job("job")
        assert (job.error_message, job.error_category, job.error_code) == ("boom", category, "E42")

    @cells("retry", [None, AT_ONCE], ids=["no policy", "policy"])
    @cells(
        ("category", "status", "state"),
        [
            (FailureCategory.TEMPORARY, _S.FAILED_RETRY, JobState.SCHEDULED),
            (FailureCategory.TIMEOUT, _S.FAILED_RETRY, JobState.SCHEDULED),
            (FailureCategory.SYSTEM, _S.FAILED_RETRY, JobState.SCHEDULED),
            (FailureCategory.PERMANENT, _S.FAILED, JobState.FAILED),
            (FailureCategory.CANCELLED, _S.STOPPED, JobState.CANCELLED),
        ],
    )
    def test_the_category_decides_where_a_failure_leads(
        self,
        backend: Backend,
        clock: ManualClock,
        retry: RetryPolicy | None,
        category: FailureCategory,
        status: JobStatus,
        state: JobState,
    ) -> None:
        """G5, G21, G28, C21."""
        put_running(backend, "job", retry=retry)
        now = clock.advance(1)
        assert backend.fail_job("job", "boom", category=category) == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.state) == (status, state)
        assert (job.retry_count, job.last_retry_at) == (1, now)
        assert job.failures == (0 if category is FailureCategory.CANCELLED else 1)
        assert job.finalized_at == (now if status.is_final else None)

    @cells(("retry", "failures"), [(None, 1), (AT_ONCE, 1)], ids=["no policy", "policy"])
    def test_a_late_failure_of_a_lost_attempt_is_counted_once(
        self, backend: Backend, retry: RetryPolicy | None, failures: int
    ) -> None:
        """Q36, Q40: with a policy the loss was the count; without one nothing was counted before."""
        drive(backend, _S.UNKNOWN_RETRY, retry=retry)
        assert backend.fail_job("job", "late", attempt=1) == {}
        job = backend.get_job("job")
        assert (job.status, job.failures, job.retry_count) == (_S.FAILED_RETRY, failures, 1)

    def test_the_last_allowed_failure_is_dead(self, backend: Backend, clock: ManualClock) -> None:
        """G5, G6, G18, C21."""
        put(backend, "job", retry=AT_ONCE)
        for _ in range(2):
            claim(backend, "job")
            backend.fail_job("job", "boom")
            assert backend.get_job("job").status is _S.FAILED_RETRY
        claim(backend, "job")
        now = clock.advance(1)
        assert backend.fail_job("job", "boom") == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.state, job.finalized_at) == (_S.DEAD_LETTER, JobState.DEAD_LETTER, now)
        assert (job.attempt, job.failures, job.retry_count) == (3, 3, 3)
        assert not is_takeable(backend, "job")

    @cells("category", _RETRIED)
    def test_a_category_that_the_policy_does_not_retry_is_dead_at_once(
        self, backend: Backend, category: FailureCategory
    ) -> None:
        """G28, C29."""
        others = tuple(each for each in _RETRIED if each is not category)
        put_running(backend, "job", retry=retry_policy(max_attempts=9, retry_on=others))
        backend.fail_job("job", "boom", category=category)
        job = backend.get_job("job")
        assert (job.status, job.failures) == (_S.DEAD_LETTER, 1)

    @cells(
        ("policy", "delays"),
        [
            (retry_policy(max_attempts=5, backoff="constant", initial_delay=10), [10, 10, 10, 10]),
            (
                retry_policy(max_attempts=5, backoff="linear", initial_delay=10, max_delay=25),
                [10, 20, 25, 25],
            ),
            (retry_policy(max_attempts=5, initial_delay=10, max_delay=60), [10, 20, 40, 60]),
            (retry_policy(max_attempts=5, initial_delay=10, multiplier=3.0), [10, 30, 90, 270]),
        ],
        ids=["constant", "linear", "exponential", "multiplier"],
    )
    def test_a_retry_waits_for_its_backoff(
        self, backend: Backend, clock: ManualClock, policy: RetryPolicy, delays: list[int]
    ) -> None:
        """G6, G19: RETRYING until the very instant, then SCHEDULED."""
        put(backend, "job", retry=policy)
        for delay in delays:
            claim(backend, "job")
            backend.fail_job("job", "boom")
            clock.advance(timedelta(seconds=delay, microseconds=-1))
            assert backend.get_job("job").state is JobState.RETRYING
            assert not is_takeable(backend, "job")
            clock.advance(timedelta(microseconds=1))
            assert backend.get_job("job").state is JobState.SCHEDULED

    @cells("retry", [None, retry_policy(initial_delay=5, max_delay=10)], ids=["none", "policy"])
    @cells("after", [100, 100.0, timedelta(seconds=100)], ids=repr)
    def test_retry_after_replaces_the_backoff_and_is_not_capped(
        self, backend: Backend, clock: ManualClock, retry: RetryPolicy | None, after: Any
    ) -> None:
        """G29, C36c."""
        put_running(backend, "job", retry=retry)
        backend.fail_job("job", "slow down", retry_after=after)
        clock.advance(99.999999)
        assert not is_takeable(backend, "job")
        clock.advance(0.000001)
        assert is_takeable(backend, "job")

    def test_retry_after_does_not_revive_what_is_over(self, backend: Backend, clock: ManualClock) -> None:
        """G5."""
        put_running(backend, "dead", retry=retry_policy(max_attempts=1))
        put_running(backend, "failed")
        backend.fail_job("dead", "boom", retry_after=5)
        backend.fail_job("failed", "boom", retry_after=5, category=FailureCategory.PERMANENT)
        clock.advance(10)
        assert [backend.get_job(each).status for each in ("dead", "failed")] == [_S.DEAD_LETTER, _S.FAILED]

    def test_jitter_stays_within_its_share(self, backend: Backend, clock: ManualClock) -> None:
        """G23, C36c."""
        policy = retry_policy(backoff="constant", initial_delay=100, jitter=0.1)
        put(backend, *(f"job-{number}" for number in range(20)), retry=policy)
        backend.dequeue_jobs(WORKER, limit=20)
        backend.fail_jobs({f"job-{number}": "boom" for number in range(20)})
        clock.advance(89.9)
        assert backend.dequeue_jobs(WORKER, limit=20) == []
        clock.advance(20.2)
        assert len(backend.dequeue_jobs(WORKER, limit=20)) == 20

    def test_a_backoff_counts_failures_not_attempts(self, backend: Backend, clock: ManualClock) -> None:
        """G19: a released attempt is not a failure."""
        put_running(backend, "job", retry=retry_policy(initial_delay=10))
        backend.release_jobs({"job": "drained"})
        claim(backend, "job")
        backend.fail_job("job", "boom")
        clock.advance(10)
        assert is_takeable(backend, "job")

    @cells("retry", [None, AT_ONCE], ids=["no policy", "policy"])
    def test_a_failure_needs_a_message(self, backend: Backend, retry: RetryPolicy | None) -> None:
        """Q36, B7."""
        put_running(backend, "job", retry=retry)
        with refused(backend, InvalidArgumentError):
            backend.fail_job("job", "")


class LateFailures(Suite):
    """Failures of attempts whose outcome was unknown."""

    def test_an_attempt_that_was_only_marked_unknown_counts_when_it_fails(self, backend: Backend) -> None:
        """G20: `update_job_status` counts nothing, so the late report does; retries stay bounded."""
        put_running(backend, "job", retry=RetryPolicy(max_attempts=1))
        backend.update_job_status("job", JobStatus.UNKNOWN_RETRY)
        backend.fail_job("job", "boom", retry_after=0)
        job = backend.get_job("job")
        assert (job.status, job.failures) == (JobStatus.DEAD_LETTER, 1)

    def test_a_change_in_between_does_not_make_it_count_less(self, backend: Backend) -> None:
        put_running(backend, "job", retry=RetryPolicy(max_attempts=1))
        backend.update_job_status("job", JobStatus.UNKNOWN_RETRY)
        backend.update_job("job", priority=1)
        backend.fail_job("job", "boom", retry_after=0)
        assert backend.get_job("job").status is JobStatus.DEAD_LETTER

    def test_a_correction_in_between_does_not_make_it_count_twice(self, backend: Backend) -> None:
        put_running(backend, "job", retry=RetryPolicy(max_attempts=3))
        backend.reset_running_jobs()
        backend.update_job_status("job", JobStatus.UNKNOWN_STOPPED)
        backend.update_job_status("job", JobStatus.UNKNOWN_RETRY)
        backend.fail_job("job", "boom", retry_after=0)
        assert backend.get_job("job").failures == 1

    def test_an_attempt_that_was_counted_as_lost_does_not_count_again(self, backend: Backend) -> None:
        """Q40, G20."""
        put_running(backend, "job", retry=RetryPolicy(max_attempts=3))
        backend.mark_worker_unresponsive(WORKER)
        backend.fail_job("job", "boom", retry_after=0)
        job = backend.get_job("job")
        assert (job.status, job.failures) == (JobStatus.FAILED_RETRY, 1)


class Stopping(Suite):
    """stop_job, stop_job_with_retry, mark_job_unknown_stopped."""

    @cells(
        ("status", "freed"), [(_S.RUNNING, {WORKER: 1}), (_S.CANCELLING, {WORKER: 1}), (_S.UNKNOWN_RETRY, {})]
    )
    @cells("message", ["", "by request"])
    def test_a_stopped_job_has_ended(
        self, backend: Backend, clock: ManualClock, status: JobStatus, freed: dict[str, int], message: str
    ) -> None:
        """Q3, Q37, B2, B8, C7."""
        drive(backend, status)
        now = clock.advance(2)
        assert backend.stop_job("job", message) == freed
        job = backend.get_job("job")
        assert (job.status, job.state, job.error_message) == (_S.STOPPED, JobState.CANCELLED, message)
        assert (job.finalized_at, job.retry_count, job.assignee_id) == (now, 0, WORKER)

    def test_the_message_of_a_stop_may_be_left_out(self, backend: Backend) -> None:
        """Q37."""
        put_running(backend, "job")
        backend.stop_job("job")
        assert backend.get_job("job").error_message == ""

    def test_a_failure_while_cancelling_counts_as_a_retry_and_ends(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q38, B8."""
        drive(backend, _S.CANCELLING)
        now = clock.advance(2)
        assert backend.stop_job_with_retry("job", "failed on the way out") == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.error_message) == (_S.STOPPED, "failed on the way out")
        assert (job.retry_count, job.last_retry_at, job.finalized_at) == (1, now, now)
        assert job.assignee_id == WORKER

    @cells(
        ("status", "freed"), [(_S.RUNNING, {WORKER: 1}), (_S.CANCELLING, {WORKER: 1}), (_S.UNKNOWN_RETRY, {})]
    )
    def test_a_job_of_unknown_fate_is_marked_so(
        self, backend: Backend, clock: ManualClock, status: JobStatus, freed: dict[str, int]
    ) -> None:
        """Q3, Q39, B8, C7, C13."""
        drive(backend, status)
        now = clock.advance(2)
        assert backend.mark_job_unknown_stopped("job", "no answer") == freed
        job = backend.get_job("job")
        assert (job.status, job.state) == (_S.UNKNOWN_STOPPED, JobState.CANCELLED)
        assert (job.error_message, job.finalized_at, job.assignee_id) == ("no answer", now, WORKER)

    def test_marking_a_final_job_unknown_changes_nothing(self, backend: Backend) -> None:
        """C13: a defect of the original: COMPLETED was overwritten."""
        drive(backend, _S.COMPLETED)
        with refused(backend, InvalidTransitionError):
            backend.mark_job_unknown_stopped("job", "no answer")


class Releasing(Suite):
    """release_jobs: the attempt does not count."""

    def test_a_released_job_is_due_at_once_and_not_counted(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        put_running(backend, "job", retry=retry_policy(max_attempts=1, initial_delay=100))
        now = clock.advance(2)
        assert backend.release_jobs({"job": "draining"}) == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.state, job.error_message) == (_S.FAILED_RETRY, JobState.SCHEDULED, "draining")
        assert (job.retry_count, job.failures, job.last_retry_at) == (1, 0, now)
        assert claim(backend, "job").attempt == 2

    def test_releasing_a_job_that_is_being_cancelled_ends_it(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        drive(backend, _S.CANCELLING)
        now = clock.advance(2)
        assert backend.release_jobs({"job": "draining"}) == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.finalized_at, job.failures) == (_S.STOPPED, now, 0)

    def test_attempts_and_retries_are_counted_apart(self, backend: Backend) -> None:
        """C56: attempts begin, retries end one, failures are those that the policy counts."""
        put(backend, "job", retry=retry_policy(max_attempts=9, initial_delay=0))
        claim(backend, "job")
        backend.fail_job("job", "boom")
        claim(backend, "job")
        backend.release_jobs({"job": "back"})
        claim(backend, "job")
        backend.mark_worker_unresponsive(WORKER)
        claim(backend, "job")
        job = backend.get_job("job")
        assert (job.attempt, job.retry_count, job.failures) == (4, 2, 2)

    def test_the_attempt_number_never_falls(self, backend: Backend) -> None:
        """An attempt number is the fence."""
        put(backend, "job", retry=AT_ONCE)
        for attempt in range(1, 8):
            assert claim(backend, "job").attempt == attempt
            backend.release_jobs({"job": "again"}, attempts={"job": attempt})
        job = backend.get_job("job")
        assert (job.failures, job.status) == (0, _S.FAILED_RETRY)


class StatusUpdates(Suite):
    """update_job_status (the matrix of moves is in its own family)."""

    @cells("target", [_S.COMPLETED, _S.STOPPED, _S.UNKNOWN_STOPPED])
    @cells("source", [_S.RUNNING, _S.CANCELLING])
    def test_ending_a_job_in_flight_frees_its_slot(
        self, backend: Backend, clock: ManualClock, source: JobStatus, target: JobStatus
    ) -> None:
        """B9, C7."""
        drive(backend, source)
        now = clock.advance(1)
        assert backend.update_job_status("job", target) == {WORKER: 1}
        job = backend.get_job("job")
        assert (job.status, job.finalized_at, job.assignee_id) == (target, now, WORKER)

    @cells("target", [_S.CANCELLING, _S.FAILED_RETRY, _S.UNKNOWN_RETRY])
    def test_other_moves_report_nothing_freed(self, backend: Backend, target: JobStatus) -> None:
        """B9."""
        drive(backend, _S.RUNNING)
        assert backend.update_job_status("job", target) == {}
        assert backend.get_job("job").status is target

    @cells("target", [_S.COMPLETED, _S.STOPPED, _S.UNKNOWN_STOPPED])
    def test_leaving_an_unknown_status_frees_nothing(self, backend: Backend, target: JobStatus) -> None:
        """B9, C7."""
        drive(backend, _S.UNKNOWN_RETRY)
        assert backend.update_job_status("job", target) == {}

    def test_result_and_message_are_replaced_only_when_given(self, backend: Backend) -> None:
        """B9."""
        put_running(backend, "job")
        backend.update_job_status("job", _S.UNKNOWN_RETRY, b"half", "lost contact")
        backend.update_job_status("job", _S.FAILED_RETRY)
        job = backend.get_job("job")
        assert (job.result, job.error_message) == (b"half", "lost contact")
        claim(backend, "job")
        backend.update_job_status("job", _S.STOPPED, b"", "changed my mind")
        job = backend.get_job("job")
        assert (job.result, job.error_message) == (b"", "changed my mind")

    @cells("retry", [None, AT_ONCE], ids=["no policy", "policy"])
    @cells("target", [_S.FAILED_RETRY, _S.UNKNOWN_RETRY, _S.STOPPED])
    def test_counters_stay(self, backend: Backend, target: JobStatus, retry: RetryPolicy | None) -> None:
        """B9."""
        put_running(backend, "job", retry=retry)
        backend.update_job_status("job", target, error_message="moved")
        job = backend.get_job("job")
        assert (job.retry_count, job.failures, job.last_retry_at, job.attempt) == (0, 0, None, 1)

    @cells("status", [s for s in _S if not s.is_final])
    def test_the_same_status_again_is_nothing(self, backend: Backend, status: JobStatus) -> None:
        """C2: no journal row, no change, not even of result and message."""
        drive(backend, status)
        with unchanged(backend):
            assert backend.update_job_status("job", status, b"result", "message") == {}

    @cells("status", [s for s in _S if s.is_final])
    def test_the_same_final_status_again_is_an_error(self, backend: Backend, status: JobStatus) -> None:
        """C2."""
        drive(backend, status)
        with refused(backend, InvalidTransitionError):
            backend.update_job_status("job", status)

    @cells("target", [_S.CANCELLING, _S.FAILED_RETRY, _S.UNKNOWN_RETRY])
    def test_correcting_an_unknown_end_to_an_open_status_clears_the_end(
        self, backend: Backend, target: JobStatus
    ) -> None:
        """Q7, C2."""
        drive(backend, _S.UNKNOWN_STOPPED)
        backend.update_job_status("job", target)
        job = backend.get_job("job")
        assert (job.status, job.finalized_at) == (target, None)

    @cells("target", [_S.COMPLETED, _S.STOPPED, _S.UNSCHEDULED])
    def test_correcting_an_unknown_end_to_another_end_keeps_its_time(
        self, backend: Backend, clock: ManualClock, target: JobStatus
    ) -> None:
        """Q7, B8, B9, C2."""
        before = drive(backend, _S.UNKNOWN_STOPPED)
        clock.advance(60)
        backend.update_job_status("job", target)
        job = backend.get_job("job")
        assert (job.status, job.finalized_at) == (target, before.finalized_at)

    def test_a_corrected_job_can_be_taken_again(self, backend: Backend) -> None:
        """Q7."""
        drive(backend, _S.UNKNOWN_STOPPED)
        backend.update_job_status("job", _S.UNKNOWN_RETRY)
        assert claim(backend, "job").attempt == 2

    def test_no_update_leads_into_a_key_that_is_in_use(self, backend: Backend) -> None:
        """R3: CANCELLING holds a slot, and a key has one."""
        put_running(backend, "first", key="k")
        backend.mark_job_unknown_stopped("first", "lost")
        put(backend, "second", key="k")
        claim(backend, "second")
        with refused(backend, InvalidTransitionError):
            backend.update_job_status("first", _S.CANCELLING)
