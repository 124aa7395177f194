"""Spawning: jobs that a running job adds to what others wait for."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest

from penstock.backends import Backend, Change
from penstock.errors import (
    DependencyError,
    InvalidArgumentError,
    InvalidTransitionError,
    JobExistsError,
    JobNotFoundError,
    QueueBlockedError,
    QueueFullError,
    StaleAttemptError,
)
from penstock.job import JobStatus, Key
from penstock.policy import FailureCategory
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._support import (
    MISSING,
    ONE_ATTEMPT,
    STATUSES,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    all_jobs,
    claim,
    drive,
    is_takeable,
    put,
    put_running,
    refused,
    rows_of,
)
from penstock.testing.conformance.concurrency import expect_no_errors, together
from penstock.testing.conformance.dependencies import fate, finish

_S = JobStatus
_BAD_ENDS = [status for status in STATUSES if status.is_final and status is not _S.COMPLETED]


def spawn(
    backend: Backend, parent: str, *job_ids: str, attempt: int | None = None, **fields: Any
) -> list[str]:
    """Let a running job spawn one job per id, all with the same fields."""
    return backend.spawn_jobs(parent, [a_job(id=each, **fields) for each in job_ids], attempt=attempt)


def complete(backend: Backend, *job_ids: str) -> None:
    """Run jobs to their end; those that are running already are completed."""
    for job_id in job_ids:
        if backend.get_job(job_id).status is not _S.RUNNING:
            claim(backend, job_id)
        backend.complete_job(job_id)


class Spawning(Suite):
    """`spawn_jobs`: dependents of the parent wait for the spawned jobs too."""

    def test_what_waits_for_the_parent_waits_for_the_spawned(self, backend: Backend) -> None:
        """G24, C33: fan-out by a running job, and the fan-in after it."""
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        assert spawn(backend, "parent", "one", "two", attempt=1) == ["one", "two"]
        assert {backend.get_job(name).parent_id for name in ("one", "two")} == {"parent"}
        assert backend.get_job("last").after == ("parent",)
        for name in ("parent", "one"):
            complete(backend, name)
            assert not is_takeable(backend, "last")
        complete(backend, "two")
        assert is_takeable(backend, "last")

    def test_the_order_of_the_ends_does_not_matter(self, backend: Backend) -> None:
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        spawn(backend, "parent", "child")
        complete(backend, "child")
        assert not is_takeable(backend, "last")
        complete(backend, "parent")
        assert is_takeable(backend, "last")

    @pytest.mark.parametrize("parent_has_ended", [False, True])
    def test_a_job_enqueued_later_waits_for_the_spawned(
        self, backend: Backend, parent_has_ended: bool
    ) -> None:
        """It is enqueued while the parent runs, or after the parent's end."""
        put_running(backend, "parent")
        spawn(backend, "parent", "done", "open")
        complete(backend, "done")
        if parent_has_ended:
            complete(backend, "parent")
        put(backend, "last", after=["parent"])
        complete(backend, *([] if parent_has_ended else ["parent"]))
        assert not is_takeable(backend, "last")
        complete(backend, "open")
        assert is_takeable(backend, "last")
        put(backend, "later", after=["parent"])
        assert is_takeable(backend, "later")

    def test_what_the_spawned_spawn_counts_as_well(self, backend: Backend) -> None:
        put_running(backend, "parent")
        put(backend, "before", after=["parent"])
        spawn(backend, "parent", "child")
        claim(backend, "child")
        complete(backend, "parent")
        spawn(backend, "child", "grandchild")
        complete(backend, "child")
        put(backend, "after", after=["parent"])
        put(backend, "of the child", after=["child"])
        for name in ("before", "after", "of the child"):
            assert not is_takeable(backend, name)
        complete(backend, "grandchild")
        for name in ("before", "after", "of the child"):
            assert is_takeable(backend, name)

    def test_whoever_waits_for_both_waits_once(self, backend: Backend) -> None:
        put_running(backend, "parent")
        spawn(backend, "parent", "child")
        put(backend, "last", after=["parent", "child"])
        complete(backend, "parent", "child")
        assert is_takeable(backend, "last")

    def test_any_end_is_that_of_the_parent_itself(self, backend: Backend) -> None:
        """G24: `after_any` is met by the first end."""
        put_running(backend, "parent")
        put(backend, "before", after_any=["parent"])
        spawn(backend, "parent", "child")
        put(backend, "after", after_any=["parent"])
        complete(backend, "parent")
        assert is_takeable(backend, "before")
        assert is_takeable(backend, "after")

    def test_spawned_jobs_may_wait_for_each_other_and_for_the_parent(self, backend: Backend) -> None:
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        backend.spawn_jobs(
            "parent", [a_job(id="two", after=["one"]), a_job(id="one"), a_job(id="rest", after=["parent"])]
        )
        assert not is_takeable(backend, "rest")
        complete(backend, "parent", "one", "two")
        assert not is_takeable(backend, "last")
        complete(backend, "rest")
        assert is_takeable(backend, "last")

    def test_nothing_spawned_changes_nothing(self, backend: Backend) -> None:
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        assert backend.spawn_jobs("parent", [], attempt=1) == []
        complete(backend, "parent")
        assert is_takeable(backend, "last")

    def test_the_spawned_do_not_count_against_the_limit_of_breadth(self, backend: Backend) -> None:
        """G25."""
        put_running(backend, "parent")
        backend.enqueue_jobs([a_job(id=f"d{number}") for number in range(999)])
        put(backend, "last", after=["parent", *(f"d{number}" for number in range(999))])
        spawn(backend, "parent", *(f"s{number}" for number in range(1001)))
        put(backend, "later", after=["parent"])
        complete(backend, "parent")
        held = [*(f"d{number}" for number in range(999)), *(f"s{number}" for number in range(1001))]
        backend.dequeue_jobs(WORKER, limit=3000)
        backend.complete_jobs(dict.fromkeys(held[:-1]))
        assert not is_takeable(backend, "last")
        assert not is_takeable(backend, "later")
        backend.complete_job(held[-1])
        assert is_takeable(backend, "last")
        assert is_takeable(backend, "later")

    def test_spawning_passes_a_block(self, backend: Backend) -> None:
        """R16, C51."""
        put_running(backend, "parent")
        backend.set_blocked(True)
        spawn(backend, "parent", "child")
        with pytest.raises(QueueBlockedError):
            put(backend, "other")
        assert is_takeable(backend, "child")

    def test_the_spawned_take_part_in_the_limit_of_waiting_jobs(
        self, make_backend: MakeBackend, clock: ManualClock
    ) -> None:
        with make_backend(clock=clock, max_pending=2) as backend:
            put_running(backend, "parent")
            with refused(backend, QueueFullError):
                spawn(backend, "parent", "a", "b", "c")
            spawn(backend, "parent", "a", "b")

    def test_the_first_row_of_a_spawned_job_names_its_parent(self, backend: Backend) -> None:
        put_running(backend, "parent")
        spawn(backend, "parent", "child")
        (row,) = rows_of(backend, "child")
        assert (str(row.verb), row.parent_id, row.status) == ("enqueue", "parent", _S.INITIAL_PENDING)

    def test_listeners_hear_of_the_spawned(self, backend: Backend) -> None:
        put_running(backend, "parent")
        heard: list[Change] = []
        backend.runtime.listen(heard.extend)
        spawn(backend, "parent", "child")
        assert [(change.job_id, change.available) for change in heard] == [("child", True)]

    def test_a_later_process_knows_the_spawned(
        self, make_backend: MakeBackend, backend: Backend, second_backend: Backend
    ) -> None:
        put_running(backend, "parent")
        spawn(backend, "parent", "child")
        complete(second_backend, "parent")
        put(second_backend, "last", after=["parent"])
        assert not is_takeable(second_backend, "last")
        complete(backend, "child")
        assert is_takeable(second_backend, "last")


class SpawnedEnds(Suite):
    """How the ends of parents and spawned jobs propagate."""

    @pytest.mark.parametrize("end", _BAD_ENDS)
    def test_a_spawned_job_that_ends_badly_takes_along_who_waits(
        self, backend: Backend, end: JobStatus
    ) -> None:
        """G26."""
        put_running(backend, "parent")
        put(backend, "before", after=["parent"])
        spawn(backend, "parent", "child", retry=ONE_ATTEMPT)
        finish(backend, "child", end)
        assert backend.get_job("before").status is fate(end)
        assert backend.get_job("parent").status is _S.RUNNING
        put(backend, "between", after=["parent"])
        complete(backend, "parent")
        put(backend, "after", after=["parent"])
        assert {backend.get_job(name).status for name in ("between", "after")} == {fate(end)}

    @pytest.mark.parametrize("end", [end for end in _BAD_ENDS if end is not _S.UNSCHEDULED])
    def test_the_end_of_the_parent_leaves_the_spawned_alone(self, backend: Backend, end: JobStatus) -> None:
        """G26: an end propagates to dependents only; `parent_id` is ancestry."""
        put(backend, "parent", retry=ONE_ATTEMPT)
        claim(backend, "parent")
        put(backend, "last", after=["parent"])
        spawn(backend, "parent", "child")
        if end is _S.DEAD_LETTER:
            backend.fail_job("parent", "boom")
        elif end is _S.FAILED:
            backend.fail_job("parent", "boom", category=FailureCategory.PERMANENT)
        elif end is _S.STOPPED:
            backend.stop_job("parent")
        else:
            backend.mark_job_unknown_stopped("parent", "lost")
        assert backend.get_job("last").status is fate(end)
        complete(backend, "child")

    def test_a_correction_is_heard_by_those_who_come_later(self, backend: Backend) -> None:
        """Q35: the truth about an UNKNOWN_STOPPED job may still come."""
        put_running(backend, "parent")
        spawn(backend, "parent", "child")
        finish(backend, "child", _S.UNKNOWN_STOPPED)
        backend.complete_job("child")
        complete(backend, "parent")
        put(backend, "last", after=["parent"])
        assert is_takeable(backend, "last")

    def test_a_spawned_job_that_waits_for_a_failed_one_ends_at_once(self, backend: Backend) -> None:
        """G26."""
        drive(backend, _S.FAILED, "broken")
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        spawn(backend, "parent", "child", after=["broken"])
        assert {backend.get_job(name).status for name in ("child", "last")} == {_S.FAILED}

    def test_a_deleted_spawned_job_is_forgotten(self, backend: Backend) -> None:
        put_running(backend, "parent")
        spawn(backend, "parent", "child")
        finish(backend, "child", _S.FAILED)
        backend.delete_jobs(job_ids=["child"])
        put(backend, "child")
        put(backend, "last", after=["parent"])
        complete(backend, "parent")
        assert is_takeable(backend, "last")

    def test_a_retried_parent_spawns_again(self, backend: Backend) -> None:
        """The jobs of the first attempt are still waited for; an idempotency key makes the second one harmless."""
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        spawn(backend, "parent", "first", idempotency_key="once")
        backend.fail_job("parent", "boom")
        claim(backend, "parent")
        assert spawn(backend, "parent", "second", attempt=2, idempotency_key="once") == ["first"]
        assert len(all_jobs(backend)) == 3
        complete(backend, "parent")
        assert not is_takeable(backend, "last")
        complete(backend, "first")
        assert is_takeable(backend, "last")

    def test_a_duplicate_that_has_ended_counts_as_it_ended(self, backend: Backend) -> None:
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        put(backend, "good", idempotency_key="good")
        complete(backend, "good")
        assert spawn(backend, "parent", "again", idempotency_key="good") == ["good"]
        assert backend.get_job("last").status is _S.INITIAL_PENDING
        put(backend, "bad", idempotency_key="bad")
        finish(backend, "bad", _S.FAILED)
        assert spawn(backend, "parent", "again", idempotency_key="bad") == ["bad"]
        assert backend.get_job("last").status is _S.FAILED


class SpawnedKeys(Suite):
    """Spawned jobs and the turns of keys."""

    def test_a_child_with_its_parents_key_runs_after_it_and_before_who_waits(self, backend: Backend) -> None:
        """C48: a job that another one waits for passes it inside a key."""
        key = Key("document")
        put(backend, "parent", key=key)
        claim(backend, "parent")
        put(backend, "last", key=key, after=["parent"])
        put(backend, "stranger", key=key)
        spawn(backend, "parent", "child", key=key)
        assert not is_takeable(backend, "child")  # the parent has the turn
        complete(backend, "parent")
        order = []
        while taken := backend.dequeue_jobs(WORKER, limit=5):
            order += [job.id for job in taken]
            for job in taken:
                backend.complete_job(job.id)
        assert order == ["child", "last", "stranger"]

    def test_a_child_passes_who_waits_for_it_while_the_parent_still_runs(self, backend: Backend) -> None:
        """C48."""
        put_running(backend, "parent")
        put(backend, "last", key=Key("k"), after=["parent"])
        spawn(backend, "parent", "child", key=Key("k"))
        complete(backend, "child", "parent", "last")

    def test_a_child_passes_nobody_else(self, backend: Backend) -> None:
        """R3."""
        put_running(backend, "parent")
        put(backend, "first", key=Key("k"))
        spawn(backend, "parent", "child", key=Key("k"))
        put(backend, "any", key=Key("k"), after_any=["parent"])
        assert not is_takeable(backend, "child")
        complete(backend, "first", "child", "parent", "any")

    def test_whoever_waits_only_for_the_parent_is_not_passed(self, backend: Backend) -> None:
        """R3: `after_any` of the parent does not wait for the spawned."""
        put_running(backend, "parent")
        put(backend, "any", key=Key("k"), after_any=["parent"])
        spawn(backend, "parent", "child", key=Key("k"))
        assert not is_takeable(backend, "child")
        complete(backend, "parent", "any", "child")


class SpawnRaces(Suite):
    """Spawning while other processes enqueue dependents: in either order, no job runs too early."""

    @pytest.mark.parametrize("number", range(15))
    def test_a_job_enqueued_meanwhile_waits_for_the_spawned(self, backend: Backend, number: int) -> None:
        put_running(backend, "parent")

        def spawn_and_complete() -> None:
            spawn(backend, "parent", "child", attempt=1)
            backend.complete_job("parent", attempt=1)

        expect_no_errors(together(spawn_and_complete, partial(put, backend, "last", after=["parent"])))
        assert not is_takeable(backend, "last")
        complete(backend, "child")
        assert is_takeable(backend, "last")

    @pytest.mark.parametrize("number", range(15))
    def test_a_job_enqueued_meanwhile_waits_for_what_the_spawned_spawn(
        self, backend: Backend, number: int
    ) -> None:
        put_running(backend, "parent")
        spawn(backend, "parent", "child")
        complete(backend, "parent")
        claim(backend, "child")

        def spawn_and_complete() -> None:
            spawn(backend, "child", "grandchild")
            backend.complete_job("child")

        expect_no_errors(together(spawn_and_complete, partial(put, backend, "last", after=["parent"])))
        assert not is_takeable(backend, "last")
        complete(backend, "grandchild")
        assert is_takeable(backend, "last")

    @pytest.mark.parametrize("number", range(15))
    def test_two_that_spawn_at_once_make_no_cycle(self, backend: Backend, number: int) -> None:
        """G25: each spawns a job after what waits for the other; both together would wait for ever."""
        for name in ("left", "right"):
            put_running(backend, name)
            put(backend, f"next {name}", after=[name])
            put(backend, f"after {name}", after=[f"next {name}"])

        def spawn_crosswise(here: str, there: str) -> None:
            with contextlib.suppress(DependencyError):
                spawn(backend, here, f"by {here}", after=[f"after {there}"])
            backend.complete_job(here)

        expect_no_errors(
            together(partial(spawn_crosswise, "left", "right"), partial(spawn_crosswise, "right", "left"))
        )
        while taken := backend.dequeue_jobs(WORKER, limit=10):
            backend.complete_jobs(dict.fromkeys(job.id for job in taken))
        assert all(job.status.is_final for job in all_jobs(backend))


class SpawnFences(Suite):
    """Attempts that may spawn, and jobs that may not be spawned."""

    def test_a_stale_attempt_cannot_spawn(self, backend: Backend) -> None:
        put_running(backend, "parent")
        backend.fail_job("parent", "boom")
        with refused(backend, StaleAttemptError):
            spawn(backend, "parent", "child", attempt=1)
        claim(backend, "parent")
        with refused(backend, StaleAttemptError):
            spawn(backend, "parent", "child", attempt=1)
        spawn(backend, "parent", "child", attempt=2)

    @pytest.mark.parametrize("status", [status for status in STATUSES if status is not _S.RUNNING])
    def test_only_a_running_job_can_spawn(self, backend: Backend, status: JobStatus) -> None:
        drive(backend, status, "parent")
        with refused(backend, InvalidTransitionError):
            spawn(backend, "parent", "child")

    def test_the_fan_in_closes_when_the_parent_completes(self, backend: Backend) -> None:
        """C33."""
        put_running(backend, "parent")
        backend.complete_job("parent")
        with refused(backend, StaleAttemptError):
            spawn(backend, "parent", "child", attempt=1)

    def test_a_parent_must_exist(self, backend: Backend) -> None:
        with refused(backend, JobNotFoundError):
            spawn(backend, MISSING, "child")

    def test_all_or_nothing(self, backend: Backend) -> None:
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        with refused(backend, JobExistsError):
            spawn(backend, "parent", "child", "last")
        with refused(backend, JobExistsError):
            spawn(backend, "parent", "child", "child")
        with refused(backend, DependencyError):
            spawn(backend, "parent", "child", after=[MISSING])
        complete(backend, "parent", "last")

    def test_a_cycle_is_refused(self, backend: Backend) -> None:
        """G25: a spawned job cannot wait for what is to wait for it."""
        put_running(backend, "parent")
        put(backend, "last", after=["parent"])
        put(backend, "latest", after=["last"], idempotency_key="taken")
        for ref in ("last", "latest"):
            with refused(backend, DependencyError) as caught:
                spawn(backend, "parent", "child", after=[ref])
            assert isinstance(caught.value, DependencyError)
            assert caught.value.reason == "cycle"
        with refused(backend, DependencyError):
            spawn(backend, "parent", "child", idempotency_key="taken")

    def test_a_job_cannot_spawn_itself(self, backend: Backend) -> None:
        put(backend, "parent", idempotency_key="taken")
        claim(backend, "parent")
        with refused(backend, DependencyError):
            spawn(backend, "parent", "child", idempotency_key="taken")

    @pytest.mark.parametrize("jobs", [None, "child", b"child", {"id": "child"}, 7, [None], ["child"]])
    def test_what_is_no_job_is_refused(self, backend: Backend, jobs: object) -> None:
        put_running(backend, "parent")
        with refused(backend, InvalidArgumentError):
            backend.spawn_jobs("parent", jobs)  # type: ignore[arg-type]

    @pytest.mark.parametrize("arguments", [{"parent_id": ""}, {"parent_id": None}, {"attempt": "1"}])
    def test_wrong_arguments_are_refused(self, backend: Backend, arguments: dict[str, Any]) -> None:
        put_running(backend, "parent")
        with refused(backend, InvalidArgumentError):
            backend.spawn_jobs(**{"parent_id": "parent", "jobs": [a_job(id="child")], **arguments})

    def test_a_child_of_another_parent_is_refused(self, backend: Backend) -> None:
        put_running(backend, "parent")
        with refused(backend, InvalidArgumentError):
            spawn(backend, "parent", "child", parent_id="other")
        spawn(backend, "parent", "child", parent_id="parent")
