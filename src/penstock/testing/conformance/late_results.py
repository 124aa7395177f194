"""Results of attempts that were reclaimed though their worker was alive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.backends import Backend
from penstock.errors import InvalidTransitionError, ReportErrors, StaleAttemptError
from penstock.job import JobStatus
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    WORKER,
    Suite,
    claim,
    put,
    put_running,
    refused,
    retry_policy,
    time_limits,
)

_S = JobStatus
_ONCE = retry_policy(max_attempts=1)


def _reclaim(backend: Backend, clock: ManualClock) -> None:
    """Let the leases of all running jobs end."""
    clock.advance(60)
    assert backend.maintain().lost


class LateResults(Suite):
    """Upkeep reclaimed the last allowed attempt, so its job is DEAD_LETTER; then it reports."""

    def test_the_result_of_a_lost_last_attempt_is_accepted(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q40: it is true, and no other attempt can have begun."""
        put_running(backend, "job", retry=_ONCE, timeouts=time_limits(visibility=60))
        _reclaim(backend, clock)
        assert backend.get_job("job").status is _S.DEAD_LETTER
        now = clock.advance(5)
        assert backend.complete_job("job", b"late", attempt=1) == {}
        job = backend.get_job("job")
        assert (job.status, job.result, job.attempt, job.failures) == (_S.COMPLETED, b"late", 1, 1)
        assert (job.finalized_at, job.updated_at) == (now, now)
        last = backend.read_journal()[-1]
        assert (last.verb, last.from_status, last.status) == ("complete", _S.DEAD_LETTER, _S.COMPLETED)
        with refused(backend, StaleAttemptError):
            backend.complete_job("job", b"again", attempt=1)
        backend.maintain()
        stats = backend.get_job_stats()
        assert (stats.total_jobs, stats.completed_jobs, stats.stopped_jobs) == (1, 1, 0)

    def test_it_is_accepted_in_the_plural_too(self, backend: Backend, clock: ManualClock) -> None:
        for name in ("first", "second", "failed"):
            put_running(backend, name, retry=_ONCE, timeouts=time_limits(visibility=60))
        backend.fail_job("failed", "boom")
        _reclaim(backend, clock)
        with pytest.raises(ReportErrors) as caught:
            backend.complete_jobs(
                {"first": b"1", "second": b"2", "failed": b"3"},
                attempts={"first": 1, "second": 1, "failed": 1},
            )
        assert [type(error) for error in caught.value.exceptions] == [StaleAttemptError]
        assert [backend.get_job(name).result for name in ("first", "second", "failed")] == [b"1", b"2", None]

    @cells("declare", ["mark_worker_unresponsive", "reset_running_jobs"])
    def test_it_is_refused_after_a_person_declared_the_attempt_lost(
        self, backend: Backend, declare: str
    ) -> None:
        """C21: a declaration is no inference from silence."""
        put_running(backend, "job", retry=_ONCE)
        getattr(backend, declare)(*([WORKER] if declare == "mark_worker_unresponsive" else []))
        assert backend.get_job("job").status is _S.DEAD_LETTER
        with refused(backend, StaleAttemptError):
            backend.complete_job("job", b"late", attempt=1)

    def test_a_report_that_names_no_attempt_or_another_is_refused(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q35: without an attempt the result could be any caller's."""
        put_running(backend, "job", retry=_ONCE, timeouts=time_limits(visibility=60))
        _reclaim(backend, clock)
        with refused(backend, InvalidTransitionError):
            backend.complete_job("job", b"unfenced")
        with refused(backend, StaleAttemptError):
            backend.complete_job("job", b"older", attempt=0)

    @cells("report", ["fail_job", "stop_job", "stop_job_with_retry", "mark_job_unknown_stopped"])
    def test_only_a_result_is_accepted(self, backend: Backend, clock: ManualClock, report: str) -> None:
        put_running(backend, "job", retry=_ONCE, timeouts=time_limits(visibility=60))
        _reclaim(backend, clock)
        with refused(backend, StaleAttemptError):
            getattr(backend, report)("job", "late", attempt=1)

    @cells("how", ["failed", "lifetime", "lost, then lifetime", "failed after a loss"])
    def test_a_dead_letter_for_any_other_reason_stays(
        self, backend: Backend, clock: ManualClock, how: str
    ) -> None:
        """G3, G16."""
        ways: dict[str, Callable[[], object]] = {
            "failed": lambda: backend.fail_job("job", "boom", category=FailureCategory.SYSTEM),
            "lifetime": lambda: (clock.advance(100), backend.maintain()),
            "lost, then lifetime": lambda: (
                backend.update_job_status("job", _S.UNKNOWN_RETRY),
                clock.advance(100),
                backend.maintain(),
            ),
            "failed after a loss": lambda: (
                backend.update_job_status("job", _S.UNKNOWN_RETRY),
                backend.fail_job("job", "boom", attempt=1),
            ),
        }
        put_running(backend, "job", retry=_ONCE, timeouts=time_limits(lifetime=100))
        ways[how]()
        assert backend.get_job("job").status is _S.DEAD_LETTER
        with refused(backend, StaleAttemptError):
            backend.complete_job("job", b"late", attempt=1)

    def test_dependents_that_shared_the_fate_stay_and_later_ones_may_run(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G27: as after a corrected UNKNOWN_STOPPED."""
        put_running(backend, "job", retry=_ONCE, timeouts=time_limits(visibility=60))
        put(backend, "before", after=("job",))
        _reclaim(backend, clock)
        assert backend.get_job("before").status is _S.DEAD_LETTER
        backend.complete_job("job", attempt=1)
        assert backend.get_job("before").status is _S.DEAD_LETTER
        put(backend, "later", after=("job",))
        assert claim(backend, "later").status is _S.RUNNING

    def test_the_copy_of_a_redriven_job_is_left_alone(self, backend: Backend, clock: ManualClock) -> None:
        """C23."""
        put_running(backend, "job", retry=_ONCE, timeouts=time_limits(visibility=60))
        _reclaim(backend, clock)
        (copy,) = backend.redrive_jobs(job_ids=["job"])
        backend.complete_job("job", b"late", attempt=1)
        assert backend.get_job("job").status is _S.COMPLETED
        assert backend.get_job(copy).status is _S.INITIAL_PENDING
