"""Dependencies: waiting, inherited priorities, and how an end propagates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.errors import DependencyError
from penstock.job import CANCELLED, Job, JobState, JobStatus, Priority
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    MISSING,
    STATUSES,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    all_jobs,
    claim,
    drive,
    ids,
    is_takeable,
    put,
    put_running,
    refused,
    retry_policy,
    time_limits,
    unchanged,
    verbs_of,
)

_S = JobStatus
_BAD_ENDS = [status for status in STATUSES if status.is_final and status is not _S.COMPLETED]


def fate(status: JobStatus) -> JobStatus:
    """Return the status of a dependent whose dependency ends in this one."""
    return _S.UNSCHEDULED if status in CANCELLED else status


def finish(backend: Backend, job_id: str, status: JobStatus) -> None:
    """Lead a pending job with one allowed attempt to a final status."""
    if status is _S.UNSCHEDULED:
        backend.cancel_jobs(job_ids=[job_id])
        return
    claim(backend, job_id)
    if status is _S.COMPLETED:
        backend.complete_job(job_id)
    elif status is _S.STOPPED:
        backend.stop_job(job_id)
    elif status is _S.UNKNOWN_STOPPED:
        backend.mark_job_unknown_stopped(job_id, "lost")
    elif status is _S.FAILED:
        backend.fail_job(job_id, "boom", category=FailureCategory.PERMANENT)
    else:
        backend.fail_job(job_id, "boom")
    assert backend.get_job(job_id).status is status


def chain_of(length: int) -> list[Job]:
    """Return jobs c0, c1, … of which each waits for the one before."""
    return [
        a_job(id=f"c{number}", type="t", after=(f"c{number - 1}",) if number else ())
        for number in range(length)
    ]


class After(Suite):
    """`after`: all of them must have succeeded."""

    def test_a_job_waits_until_its_dependency_has_succeeded(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G24, G26, R7."""
        put(backend, "first")
        put(backend, "second", after=["first"])
        waiting = backend.get_job("second")
        assert (waiting.state, waiting.scheduled_at, waiting.after) == (JobState.PENDING, None, ("first",))
        assert not is_takeable(backend, "second")
        claim(backend, "first")
        assert not is_takeable(backend, "second")
        now = clock.advance(5)
        backend.complete_job("first")
        ready = backend.get_job("second")
        assert (ready.state, ready.scheduled_at) == (JobState.SCHEDULED, now)
        assert is_takeable(backend, "second")

    def test_all_dependencies_are_needed(self, backend: Backend) -> None:
        """G24."""
        put(backend, "a", "b", "c")
        put(backend, "last", after=["a", "b", "c"])
        for name in "cab":
            assert not is_takeable(backend, "last")
            finish(backend, name, _S.COMPLETED)
        assert is_takeable(backend, "last")

    def test_a_dependency_that_retries_is_waited_for(self, backend: Backend) -> None:
        """G26."""
        put_running(backend, "first")
        put(backend, "second", after=["first"])
        backend.fail_job("first", "boom")
        assert not is_takeable(backend, "second")
        claim(backend, "first")
        backend.mark_worker_unresponsive(WORKER)
        assert not is_takeable(backend, "second")
        backend.complete_job("first")
        assert is_takeable(backend, "second")

    def test_a_dependency_that_already_succeeded_is_met(self, backend: Backend) -> None:
        """G25, G26."""
        drive(backend, _S.COMPLETED, "first")
        put(backend, "second", after=["first"])
        assert is_takeable(backend, "second")

    def test_several_jobs_may_wait_for_one(self, backend: Backend) -> None:
        """G24: fan-out."""
        put(backend, "first")
        put(backend, "a", "b", "c", after=["first"])
        finish(backend, "first", _S.COMPLETED)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["a", "b", "c"]

    def test_a_chain_runs_in_order(self, backend: Backend) -> None:
        """G24: chain."""
        backend.enqueue_jobs(chain_of(5))
        taken = []
        while jobs := backend.dequeue_jobs(WORKER, limit=10):
            taken += ids(jobs)
            backend.complete_jobs(dict.fromkeys(ids(jobs)))
        assert taken == [f"c{number}" for number in range(5)]

    def test_fan_out_and_fan_in_make_a_diamond(self, backend: Backend) -> None:
        """G24, R7, R8."""
        put(backend, "top")
        put(backend, "left", "right", after=["top"])
        put(backend, "bottom", after=["left", "right"])
        taken = []
        while jobs := backend.dequeue_jobs(WORKER, limit=10):
            taken.append(ids(jobs))
            backend.complete_jobs(dict.fromkeys(ids(jobs)))
        assert taken == [["top"], ["left", "right"], ["bottom"]]

    def test_a_delayed_job_with_dependencies_needs_both(self, backend: Backend, clock: ManualClock) -> None:
        """G4: delayed and waiting at once shows as PENDING."""
        put(backend, "first")
        put(backend, "second", after=["first"], run_at=clock.now() + timedelta(seconds=60))
        assert backend.get_job("second").state is JobState.PENDING
        finish(backend, "first", _S.COMPLETED)
        assert backend.get_job("second").state is JobState.DELAYED
        assert not is_takeable(backend, "second")
        due = clock.advance(60)
        job = backend.get_job("second")
        assert (job.state, job.scheduled_at) == (JobState.SCHEDULED, due)
        assert is_takeable(backend, "second")

    def test_the_time_may_come_before_the_dependency(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "first")
        put(backend, "second", after=["first"], run_at=clock.now() + timedelta(seconds=60))
        clock.advance(90)
        backend.maintain()
        assert not is_takeable(backend, "second")
        now = clock.advance(1)
        finish(backend, "first", _S.COMPLETED)
        assert backend.get_job("second").scheduled_at == now
        assert is_takeable(backend, "second")

    def test_a_dependency_may_be_deleted_once_it_has_succeeded(self, backend: Backend) -> None:
        put(backend, "a", "b")
        put(backend, "last", after=["a", "b"])
        finish(backend, "a", _S.COMPLETED)
        backend.delete_jobs(job_ids=["a"])
        assert not is_takeable(backend, "last")
        finish(backend, "b", _S.COMPLETED)
        assert backend.get_job("last").after == ("a", "b")
        assert is_takeable(backend, "last")

    def test_an_id_used_again_is_not_the_old_dependency(self, backend: Backend) -> None:
        """C53."""
        put(backend, "a", "b")
        put(backend, "last", after=["a", "b"])
        finish(backend, "a", _S.COMPLETED)
        backend.delete_jobs(job_ids=["a"])
        put_running(backend, "a")
        backend.fail_job("a", "boom", category=FailureCategory.PERMANENT)
        finish(backend, "b", _S.COMPLETED)
        assert is_takeable(backend, "last")

    def test_a_parent_is_ancestry_and_not_a_dependency(self, backend: Backend) -> None:
        put(backend, "parent")
        put(backend, "child", parent_id="parent")
        assert is_takeable(backend, "child")

    def test_a_claim_by_id_respects_dependencies(self, backend: Backend) -> None:
        put(backend, "first")
        put(backend, "held", after=["first"], held=True)
        assert not is_takeable(backend, "held")


class Propagation(Suite):
    """A dependency that did not succeed ends its dependents."""

    @cells("end", _BAD_ENDS)
    def test_a_dependent_shares_the_fate(self, backend: Backend, clock: ManualClock, end: JobStatus) -> None:
        """G26, C24, C33, C47."""
        put(backend, "first", retry=retry_policy(max_attempts=1))
        put(backend, "second", after=["first"])
        now = clock.advance(5)
        finish(backend, "first", end)
        job = backend.get_job("second")
        assert (job.status, job.finalized_at) == (fate(end), now)
        assert (job.attempt, job.assignee_id, job.retry_count, job.failures) == (0, None, 0, 0)
        assert verbs_of(backend, "second") == ["enqueue", "propagate"]

    @cells("end", _BAD_ENDS)
    def test_a_fate_spreads_through_the_whole_tree(self, backend: Backend, end: JobStatus) -> None:
        """G24, G26, R8."""
        put(backend, "first", retry=retry_policy(max_attempts=1))
        backend.enqueue_jobs(
            [
                a_job(id="a", type="t", after=("first",)),
                a_job(id="b", type="t", after=("first",)),
                a_job(id="aa", type="t", after=("a",)),
                a_job(id="aaa", type="t", after=("aa", "b")),
                a_job(id="free", type="t"),
            ]
        )
        finish(backend, "first", end)
        assert {backend.get_job(each).status for each in ("a", "b", "aa", "aaa")} == {fate(end)}
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["free"]

    @cells("end", _BAD_ENDS)
    def test_a_job_that_waits_for_something_already_over_shares_its_fate_at_once(
        self, backend: Backend, end: JobStatus
    ) -> None:
        """G25, G26."""
        drive(backend, end, "first")
        assert backend.enqueue_job(a_job(id="second", type="t", after=("first",))) == "second"
        job = backend.get_job("second")
        assert (job.status, job.finalized_at) == (fate(end), job.created_at)
        assert verbs_of(backend, "second") == ["enqueue", "propagate"]

    def test_a_batch_whose_root_is_dead_shares_the_fate_down_to_its_leaves(self, backend: Backend) -> None:
        """G26."""
        drive(backend, _S.FAILED, "dead")
        jobs = chain_of(4)
        jobs[0] = a_job(id="c0", type="t", after=("dead",))
        backend.enqueue_jobs(reversed(jobs))
        assert {backend.get_job(f"c{number}").status for number in range(4)} == {_S.FAILED}

    def test_a_cancelled_running_job_takes_its_dependents_only_when_it_has_ended(
        self, backend: Backend
    ) -> None:
        """G26, Q42."""
        put_running(backend, "first")
        put(backend, "second", after=["first"])
        backend.cancel_jobs(job_ids=["first"])
        assert backend.get_job("second").status is _S.INITIAL_PENDING
        backend.acknowledge_cancellation("first", True)
        assert backend.get_job("second").status is _S.UNSCHEDULED

    def test_completion_despite_cancellation_lets_dependents_proceed(self, backend: Backend) -> None:
        """Q35, G26."""
        put_running(backend, "first")
        put(backend, "second", after=["first"])
        backend.cancel_jobs(job_ids=["first"])
        backend.complete_job("first")
        assert is_takeable(backend, "second")

    def test_cancelling_a_tree_by_tag_reports_every_job_of_it(self, backend: Backend) -> None:
        """Q41, Q43, G26."""
        backend.enqueue_jobs(
            [a_job(id="a", type="t", tags=["x"]), a_job(id="b", type="t", tags=["x"], after=("a",))]
        )
        cancelled, unknown = backend.cancel_jobs(["x"])
        assert (sorted(cancelled), unknown) == (["a", "b"], [])
        assert {backend.get_job(each).status for each in "ab"} == {_S.UNSCHEDULED}

    def test_one_bad_dependency_is_enough(self, backend: Backend) -> None:
        """G24, G26."""
        put(backend, "good", "bad")
        put(backend, "last", after=["good", "bad"])
        finish(backend, "bad", _S.FAILED)
        assert backend.get_job("last").status is _S.FAILED
        finish(backend, "good", _S.COMPLETED)
        assert backend.get_job("last").status is _S.FAILED

    def test_an_end_that_is_corrected_does_not_revive_dependents(self, backend: Backend) -> None:
        """Q7, C2."""
        put(backend, "first")
        put(backend, "second", after=["first"])
        finish(backend, "first", _S.UNKNOWN_STOPPED)
        assert backend.get_job("second").status is _S.UNSCHEDULED
        backend.complete_job("first")
        assert backend.get_job("second").status is _S.UNSCHEDULED

    def test_a_job_added_after_the_correction_sees_the_truth(self, backend: Backend) -> None:
        """Q7, Q35."""
        drive(backend, _S.UNKNOWN_STOPPED, "first")
        backend.update_job_status("first", _S.UNKNOWN_RETRY)
        put(backend, "second", after=["first"])
        assert backend.get_job("second").status is _S.INITIAL_PENDING
        backend.complete_job("first")
        assert is_takeable(backend, "second")

    @cells("how", ["lost", "expired", "timed out"])
    def test_an_end_by_upkeep_spreads_too(self, backend: Backend, clock: ManualClock, how: str) -> None:
        """G16, G26."""
        timeouts = {
            "lost": time_limits(visibility=5),
            "expired": time_limits(lifetime=5),
            "timed out": time_limits(execution=5),
        }
        put_running(backend, "first", timeouts=timeouts[how], retry=retry_policy(max_attempts=1))
        put(backend, "second", after=["first"])
        clock.advance(15)
        backend.maintain()
        assert [backend.get_job(each).status for each in ("first", "second")] == [_S.DEAD_LETTER] * 2

    def test_a_redriven_job_does_not_revive_dependents(self, backend: Backend) -> None:
        """C23."""
        put(backend, "first")
        put(backend, "second", after=["first"])
        finish(backend, "first", _S.FAILED)
        (copy,) = backend.redrive_jobs(job_ids=["first"])
        finish(backend, copy, _S.COMPLETED)
        assert backend.get_job("second").status is _S.FAILED


class AfterAny(Suite):
    """`after_any`: the first that ends is enough, however it ends."""

    @cells("end", [status for status in STATUSES if status.is_final])
    def test_any_end_of_any_dependency_lets_the_job_run(
        self, backend: Backend, clock: ManualClock, end: JobStatus
    ) -> None:
        """G24, C33."""
        put(backend, "a", "b", retry=retry_policy(max_attempts=1))
        put(backend, "last", after_any=["a", "b"])
        assert backend.get_job("last").state is JobState.PENDING
        assert not is_takeable(backend, "last")
        now = clock.advance(5)
        finish(backend, "b", end)
        assert backend.get_job("last").scheduled_at == now
        assert is_takeable(backend, "last")

    @cells("end", [status for status in STATUSES if status.is_final])
    def test_a_dependency_that_is_over_already_is_enough(self, backend: Backend, end: JobStatus) -> None:
        """G24, C33."""
        drive(backend, end, "over")
        put(backend, "open")
        put(backend, "last", after_any=["open", "over"])
        assert is_takeable(backend, "last")

    def test_both_kinds_must_be_met(self, backend: Backend) -> None:
        """G24."""
        put(backend, "all", "any-1", "any-2")
        put(backend, "last", after=["all"], after_any=["any-1", "any-2"])
        finish(backend, "any-2", _S.FAILED)
        assert not is_takeable(backend, "last")
        finish(backend, "all", _S.COMPLETED)
        assert is_takeable(backend, "last")

    def test_both_kinds_must_be_met_in_the_other_order_too(self, backend: Backend) -> None:
        """G24."""
        put(backend, "all", "any-1", "any-2")
        put(backend, "last", after=["all"], after_any=["any-1", "any-2"])
        finish(backend, "all", _S.COMPLETED)
        assert not is_takeable(backend, "last")
        finish(backend, "any-1", _S.COMPLETED)
        assert is_takeable(backend, "last")

    def test_a_failed_all_dependency_decides_even_if_any_is_met(self, backend: Backend) -> None:
        """G26."""
        put(backend, "all", "any")
        put(backend, "last", after=["all"], after_any=["any"])
        finish(backend, "any", _S.COMPLETED)
        finish(backend, "all", _S.FAILED)
        assert backend.get_job("last").status is _S.FAILED

    def test_what_was_met_stays_met_when_the_end_is_corrected(self, backend: Backend) -> None:
        """Q7."""
        put(backend, "first", "never")
        put(backend, "last", after_any=["first", "never"])
        finish(backend, "first", _S.UNKNOWN_STOPPED)
        backend.update_job_status("first", _S.UNKNOWN_RETRY)
        assert is_takeable(backend, "last")

    def test_cancelling_the_dependency_does_not_cancel_the_job(self, backend: Backend) -> None:
        """G24, G26."""
        put(backend, "first")
        put(backend, "last", after_any=["first"])
        backend.cancel_jobs(job_ids=["first"])
        assert is_takeable(backend, "last")


class Inheritance(Suite):
    """A job is at least as urgent as what it waits for."""

    @cells("field", ["after", "after_any"])
    @cells(("own", "theirs", "effective"), [(3, 1, 1), (1, 3, 1), (2, 2, 2), (4, 0, 0)], ids=repr)
    def test_the_most_urgent_wins(
        self, backend: Backend, field: str, own: int, theirs: int, effective: int
    ) -> None:
        """G12, G25, C27."""
        put(backend, "first", priority=theirs)
        put(backend, "second", priority=own, **{field: ["first"]})
        assert backend.get_job("second").priority == effective
        assert backend.get_job("first").priority == theirs

    def test_urgency_is_inherited_along_the_whole_chain(self, backend: Backend) -> None:
        """G12."""
        jobs = [
            a_job(id="c", type="t", after=("b",), priority=Priority.BULK),
            a_job(id="b", type="t", after=("a",), priority=Priority.LOW),
            a_job(id="a", type="t", priority=Priority.HIGH),
        ]
        backend.enqueue_jobs(jobs)
        assert {backend.get_job(each).priority for each in "abc"} == {Priority.HIGH}

    def test_a_finished_dependency_still_lends_its_urgency(self, backend: Backend) -> None:
        """G12: fixed at enqueue."""
        drive(backend, _S.COMPLETED, "first", priority=Priority.CRITICAL)
        put(backend, "second", after=["first"], priority=Priority.BULK)
        assert backend.get_job("second").priority is Priority.CRITICAL


def _cycle(*edges: str) -> list[Job]:
    return [a_job(id=edge[0], type="t", after=tuple(edge[1:])) for edge in edges]


class DependencyLimits(Suite):
    """Dependencies that are refused."""

    @cells("field", ["after", "after_any"])
    def test_an_unknown_reference_is_refused(self, backend: Backend, field: str) -> None:
        """G25."""
        with refused(backend, DependencyError) as caught:
            put(backend, "job", **{field: [MISSING]})
        assert caught.value.reason == "unknown"  # type: ignore[attr-defined]

    def test_every_unknown_reference_of_a_job_is_named(self, backend: Backend) -> None:
        put(backend, "there")
        with refused(backend, DependencyError) as caught:
            put(backend, "job", after=["first", "there", "second"], after_any=["third"])
        assert all(f"'{name}'" in str(caught.value) for name in ("first", "second", "third"))
        assert "'there'" not in str(caught.value)

    def test_a_deleted_job_is_an_unknown_reference(self, backend: Backend) -> None:
        """G25."""
        drive(backend, _S.COMPLETED, "gone")
        backend.delete_jobs(job_ids=["gone"])
        with refused(backend, DependencyError):
            put(backend, "job", after=["gone"])

    @cells(
        "jobs",
        [
            _cycle("aa"),
            _cycle("ab", "ba"),
            _cycle("ab", "bc", "ca"),
            _cycle("ab", "bcd", "c", "dbc"),
            [a_job(id="a", type="t", after=("b",)), a_job(id="b", type="t", after_any=("a",))],
            [a_job(id="a", type="t", after_any=("a",))],
        ],
        ids=["self", "two", "three", "inner", "mixed", "any self"],
    )
    def test_a_cycle_is_refused(self, backend: Backend, jobs: list[Job]) -> None:
        """G25."""
        put(backend, "before")
        with refused(backend, DependencyError) as caught:
            backend.enqueue_jobs(jobs)
        assert caught.value.reason == "cycle"  # type: ignore[attr-defined]

    def test_a_long_cycle_is_refused_without_trouble(self, backend: Backend) -> None:
        """G25."""
        jobs = chain_of(3_000)
        jobs[0] = a_job(id="c0", type="t", after=("c2999",))
        with unchanged(backend), pytest.raises(DependencyError):
            backend.enqueue_jobs(jobs)

    def test_a_chain_of_a_hundred_jobs_is_allowed(self, backend: Backend) -> None:
        """G25."""
        backend.enqueue_jobs(chain_of(100))
        assert len(all_jobs(backend)) == 100

    @cells("turned", [False, True], ids=["in order", "reversed"])
    def test_a_chain_of_a_hundred_and_one_is_not(self, backend: Backend, turned: bool) -> None:
        """G25."""
        jobs = chain_of(101)
        with refused(backend, DependencyError) as caught:
            backend.enqueue_jobs(reversed(jobs) if turned else jobs)
        assert caught.value.reason == "depth"  # type: ignore[attr-defined]

    @pytest.mark.parametrize("limit", [1, 3, 150])
    def test_the_depth_can_be_set(self, make_backend: MakeBackend, clock: ManualClock, limit: int) -> None:
        """G25."""
        backend = make_backend(clock=clock, max_depth=limit)
        assert backend.options.max_depth == limit
        with refused(backend, DependencyError) as caught:
            backend.enqueue_jobs(chain_of(limit + 1))
        assert caught.value.reason == "depth"  # type: ignore[attr-defined]
        backend.enqueue_jobs(chain_of(limit))
        assert len(all_jobs(backend)) == limit

    def test_depth_counts_across_calls(self, backend: Backend) -> None:
        """G25."""
        backend.enqueue_jobs(chain_of(99))
        put(backend, "hundredth", after=["c98"])
        with refused(backend, DependencyError) as caught:
            put(backend, "too-deep", after=["c3", "hundredth"])
        assert caught.value.reason == "depth"  # type: ignore[attr-defined]

    def test_a_thousand_dependencies_are_allowed(self, backend: Backend) -> None:
        """G25."""
        names = [f"d{number}" for number in range(1_000)]
        backend.enqueue_jobs([a_job(id=name, type="t") for name in names])
        put(backend, "job", after=names)
        assert backend.get_job("job").after == tuple(names)

    @cells("split", [1_001, 600, 0])
    def test_a_thousand_and_one_are_not(self, backend: Backend, split: int) -> None:
        """G25: both kinds count together."""
        names = [f"d{number}" for number in range(1_001)]
        backend.enqueue_jobs([a_job(id=name, type="t") for name in names])
        with refused(backend, DependencyError) as caught:
            put(backend, "job", after=names[:split], after_any=names[split:])
        assert caught.value.reason == "breadth"  # type: ignore[attr-defined]

    def test_a_repeated_reference_counts_once(self, backend: Backend) -> None:
        put(backend, "first")
        put(backend, "second", after=["first", "first"])
        assert backend.get_job("second").after == ("first",)
        finish(backend, "first", _S.COMPLETED)
        assert is_takeable(backend, "second")


class RollingChains(Suite):
    """Each job after the one before, for ever: only what is unfinished counts as depth (G24)."""

    def test_what_has_ended_or_is_gone_makes_no_chain_longer(self, backend: Backend) -> None:
        put(backend, "job-0")
        for number in range(1, 130):
            put(backend, f"job-{number}", after=[f"job-{number - 1}"])
            (job,) = backend.dequeue_jobs(WORKER)
            backend.complete_job(job.id)
        backend.delete_jobs(job_ids=[f"job-{number}" for number in range(100)])
        put(backend, "last", after=["job-129"])
        assert backend.get_job("last").state is JobState.PENDING

    def test_a_hundred_unfinished_are_the_limit_all_the_same(self, backend: Backend) -> None:
        put(backend, "job-0")
        for number in range(1, 50):
            put(backend, f"job-{number}", after=[f"job-{number - 1}"])
        for number in range(20):
            backend.dequeue_jobs(WORKER)
            backend.complete_job(f"job-{number}")
        for number in range(50, 120):
            put(backend, f"job-{number}", after=[f"job-{number - 1}"])
        with refused(backend, DependencyError) as caught:
            put(backend, "too-deep", after=["job-119"])
        assert caught.value.reason == "depth"  # type: ignore[attr-defined]


class BatchOrder(Suite):
    """A batch is inserted dependencies first; everything else keeps its order."""

    @cells(
        ("given", "inserted"),
        [
            (["a", "b", "c"], "abc"),
            (["ab", "b"], "ba"),
            (["abc", "c", "b"], "bca"),
            (["x", "abc", "y", "c", "b"], "xbcay"),
            (["ab", "bc", "c", "d"], "cbad"),
            (["dbc", "c", "ba", "a"], "abcd"),
        ],
        ids=lambda value: value if isinstance(value, str) else None,
    )
    def test_insertion_is_stable_and_depth_first(
        self, backend: Backend, given: Iterable[str], inserted: str
    ) -> None:
        """C48."""
        jobs = _cycle(*given)
        assert backend.enqueue_jobs(jobs) == [job.id for job in jobs]
        assert ids(all_jobs(backend)) == list(inserted)

    def test_after_goes_before_after_any(self, backend: Backend) -> None:
        """C48."""
        jobs: list[Any] = [
            a_job(id="a", type="t", after_any=("x", "y"), after=("z",)),
            *(a_job(id=name, type="t") for name in "yxz"),
        ]
        backend.enqueue_jobs(jobs)
        assert ids(all_jobs(backend)) == ["z", "x", "y", "a"]

    def test_forward_references_work_like_backward_ones(self, backend: Backend) -> None:
        """G25."""
        backend.enqueue_jobs(reversed(chain_of(5)))
        taken = []
        while jobs := backend.dequeue_jobs(WORKER, limit=10):
            taken += ids(jobs)
            backend.complete_jobs(dict.fromkeys(ids(jobs)))
        assert taken == [f"c{number}" for number in range(5)]

    def test_a_refused_batch_leaves_no_waiting_dependents(self, backend: Backend) -> None:
        """Q15."""
        put(backend, "taken")
        with unchanged(backend), pytest.raises(Exception, match="taken"):
            backend.enqueue_jobs([a_job(id="a", type="t", after=("taken",)), a_job(id="taken", type="t")])
        finish(backend, "taken", _S.COMPLETED)
        put(backend, "a")
        assert is_takeable(backend, "a")
