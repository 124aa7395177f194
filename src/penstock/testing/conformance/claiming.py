"""Claiming: which jobs a claim returns, in which order, and what it changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.backends import Backend, ClaimRequest
from penstock.errors import InvalidArgumentError, InvalidTransitionError, JobNotFoundError
from penstock.job import Job, JobState, JobStatus, Key, Priority
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    MISSING,
    OTHER_WORKER,
    STATUSES,
    WORKER,
    Suite,
    a_job,
    claim,
    drive,
    ids,
    is_takeable,
    put,
    put_running,
    refused,
    retry_policy,
    unchanged,
)


class Claiming(Suite):
    """dequeue_jobs."""

    def test_a_claimed_job_is_running_and_names_its_holder(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q21, B5, G5, G20, C36."""
        put(backend, "job", payload=b"work", tags=["red"])
        now = clock.advance(5)
        (job,) = backend.dequeue_jobs(WORKER)
        assert (job.id, job.payload, job.tags) == ("job", b"work", ("red",))
        assert (job.status, job.state, job.attempt) == (JobStatus.RUNNING, JobState.RUNNING, 1)
        assert (job.assignee_id, job.assigned_at) == (WORKER, now)
        assert (job.started_at, job.attempt_started_at, job.updated_at) == (now, now, now)
        assert backend.get_job("job") == job

    def test_nothing_to_take_is_an_empty_list(self, backend: Backend) -> None:
        """B5."""
        assert backend.dequeue_jobs(WORKER) == []

    @cells("status", STATUSES)
    def test_only_eligible_statuses_are_taken(self, backend: Backend, status: JobStatus) -> None:
        """Q5, Q33, B5."""
        drive(backend, status)
        taken = backend.dequeue_jobs(OTHER_WORKER, limit=10)
        assert bool(taken) is status.is_eligible

    def test_a_job_is_taken_once(self, backend: Backend) -> None:
        """Q33, B5."""
        put(backend, "job")
        assert ids(backend.dequeue_jobs(WORKER)) == ["job"]
        assert backend.dequeue_jobs(OTHER_WORKER, limit=10) == []
        assert backend.dequeue_jobs(WORKER, limit=10, job_ids=["job"]) == []

    @cells(("limit", "count"), [(1, 1), (2, 2), (4, 4), (5, 5), (6, 5), (1000, 5)])
    def test_a_claim_takes_as_many_as_it_may(self, backend: Backend, limit: int, count: int) -> None:
        """B5, Q25."""
        put(backend, "a", "b", "c", "d", "e")
        assert ids(backend.dequeue_jobs(WORKER, limit=limit)) == list("abcde")[:count]
        assert backend.get_job_stats().running_jobs == count

    def test_the_first_start_is_kept_and_each_attempt_has_its_own(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q2, Q4, C57, G20, G31."""
        put(backend, "job")
        first = claim(backend, "job", WORKER)
        clock.advance(10)
        backend.fail_job("job", "boom")
        clock.advance(10)
        second = claim(backend, "job", OTHER_WORKER)
        assert (second.attempt, second.started_at) == (2, first.started_at)
        assert (second.assignee_id, second.assigned_at) == (OTHER_WORKER, clock.now())
        assert second.attempt_started_at == clock.now()

    def test_a_claim_begins_with_no_progress_and_the_last_checkpoint(self, backend: Backend) -> None:
        """G22."""
        put_running(backend, "job")
        backend.save_progress("job", 60, "more than half")
        backend.save_checkpoint("job", b"row 600")
        backend.fail_job("job", "boom")
        assert backend.get_job("job").description == "more than half"
        again = claim(backend, "job")
        assert (again.progress, again.description, again.checkpoint) == (0, None, b"row 600")
        assert backend.get_job("job").description is None

    def test_the_first_claim_leaves_the_description_that_was_given(self, backend: Backend) -> None:
        """C14: the description of a submission is kept for the first attempt and cleared by the second."""
        put(backend, "job", "other", description="Import of May")
        (first, second) = backend.dequeue_jobs(WORKER, limit=2)
        assert (first.description, second.description) == ("Import of May", "Import of May")
        backend.fail_jobs({"job": "boom", "other": "boom"})
        (first, second) = backend.dequeue_jobs(WORKER, limit=2)
        assert (first.description, second.description) == (None, None)
        assert backend.get_job("job").description is None

    def test_several_assignees_hold_their_own_jobs(self, backend: Backend) -> None:
        """Q33, B2."""
        put(backend, "a", "b")
        backend.dequeue_jobs(WORKER)
        backend.dequeue_jobs(OTHER_WORKER)
        assert [backend.get_job(each).assignee_id for each in "ab"] == [WORKER, OTHER_WORKER]

    @cells("name", ["w", "worker/1", "ünï", "x" * 512, "' OR 1=1"])
    def test_any_text_names_an_assignee(self, backend: Backend, name: str) -> None:
        put(backend, "job")
        assert backend.dequeue_jobs(name)[0].assignee_id == name
        assert backend.complete_job("job") == {name: 1}


class Order(Suite):
    """Which job comes first: priority, then age, then insertion."""

    def test_the_more_urgent_comes_first(self, backend: Backend) -> None:
        """G7, G8, G10, C25, C58."""
        for priority in (3, 1, 4, 0, 2):
            put(backend, f"p{priority}", priority=priority)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["p0", "p1", "p2", "p3", "p4"]

    def test_a_low_priority_waits_as_long_as_there_is_something_more_urgent(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G10, C26: strict, and at last its turn comes."""
        put(backend, "bulk", priority=Priority.BULK)
        for number in range(10):
            clock.advance(3600)
            put(backend, f"low-{number}", priority=Priority.LOW)
            assert ids(backend.dequeue_jobs(WORKER)) == [f"low-{number}"]
        assert ids(backend.dequeue_jobs(WORKER)) == ["bulk"]

    def test_one_at_a_time_the_order_is_the_same(self, backend: Backend) -> None:
        """G8, C58."""
        for priority in (3, 1, 4, 0, 2):
            put(backend, f"p{priority}", priority=priority)
        taken = [ids(backend.dequeue_jobs(WORKER))[0] for _ in range(5)]
        assert taken == ["p0", "p1", "p2", "p3", "p4"]

    def test_equally_urgent_jobs_go_by_age(self, backend: Backend, clock: ManualClock) -> None:
        """Q23, B5, G9."""
        for name, age in (("young", 1), ("old", 3), ("middle", 2)):
            put(backend, name, created_at=clock.now() - timedelta(hours=age))
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["old", "middle", "young"]

    def test_jobs_of_the_same_instant_go_by_insertion(self, backend: Backend) -> None:
        """C17, G9."""
        names = [f"job-{number * 7 % 30}" for number in range(30)]
        put(backend, *names)
        assert ids(backend.dequeue_jobs(WORKER, limit=30)) == names

    def test_a_batch_keeps_its_order(self, backend: Backend) -> None:
        """C17, G9."""
        names = [f"job-{number * 7 % 30}" for number in range(30)]
        backend.enqueue_jobs([a_job(id=name, type="t") for name in names])
        assert ids(backend.dequeue_jobs(WORKER, limit=30)) == names

    def test_a_failed_job_goes_behind_what_was_created_before_its_failure(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q23, B5, C58: age counts from the last retry."""
        put_running(backend, "failed")
        clock.advance(1)
        put(backend, "before")
        clock.advance(1)
        backend.fail_job("failed", "boom")
        clock.advance(1)
        put(backend, "after")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["before", "failed", "after"]

    def test_a_lost_job_keeps_its_place(self, backend: Backend, clock: ManualClock) -> None:
        """Q23, Q45: being lost is no retry."""
        put_running(backend, "lost")
        clock.advance(1)
        put(backend, "younger")
        backend.mark_worker_unresponsive(WORKER)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["lost", "younger"]

    def test_a_last_retry_that_the_caller_gave_counts(self, backend: Backend, clock: ManualClock) -> None:
        """C14, Q23."""
        put(backend, "retried", created_at=clock.now() - timedelta(days=9), last_retry_at=clock.now())
        put(backend, "plain", created_at=clock.now() - timedelta(days=1))
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["plain", "retried"]

    def test_urgency_beats_age(self, backend: Backend, clock: ManualClock) -> None:
        """C58."""
        put(backend, "old", created_at=clock.now() - timedelta(days=9))
        put(backend, "urgent", priority=Priority.HIGH)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["urgent", "old"]

    def test_a_running_job_is_never_interrupted_by_a_more_urgent_one(self, backend: Backend) -> None:
        """G11, C25."""
        put_running(backend, "bulk", priority=Priority.BULK)
        put(backend, "critical", priority=Priority.CRITICAL)
        backend.dequeue_jobs(OTHER_WORKER)
        bulk = backend.get_job("bulk")
        assert (bulk.status, bulk.assignee_id) == (JobStatus.RUNNING, WORKER)

    def test_a_delayed_job_that_is_due_takes_its_place_by_age(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q23, G4."""
        put(backend, "delayed", run_at=clock.now() + timedelta(seconds=10))
        clock.advance(5)
        put(backend, "younger")
        clock.advance(5)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["delayed", "younger"]


class Filters(Suite):
    """Tags, types, keys and ids narrow a claim."""

    @cells(
        ("wanted", "matches"),
        [
            ((), True),
            (None, True),
            (("red",), True),
            (("red", "blue"), True),
            (("blue", "red"), True),
            (("red", "red"), True),
            (("red", "blue", "big"), True),
            (("green",), False),
            (("red", "green"), False),
            (("Red",), False),
            (("re",), False),
            (("red ",), False),
            (("%",), False),
            (("*",), False),
        ],
    )
    def test_a_job_matches_when_it_has_every_tag(self, backend: Backend, wanted: Any, matches: bool) -> None:
        """Q9, Q22, B5."""
        put(backend, "job", tags=["red", "blue", "big"])
        assert bool(backend.dequeue_jobs(WORKER, wanted)) is matches

    def test_a_job_without_tags_matches_the_empty_filter_alone(self, backend: Backend) -> None:
        """Q9."""
        put(backend, "job")
        assert backend.dequeue_jobs(WORKER, ["red"]) == []
        assert ids(backend.dequeue_jobs(WORKER, [])) == ["job"]

    def test_none_is_no_filter_wherever_tags_filter(self, backend: Backend) -> None:
        """Q9: nil is as good as an empty list; next to ids it selects nothing."""
        nothing: Any = None
        put(backend, "tagged", tags=["red"])
        put(backend, "plain")
        assert backend.get_job_stats(nothing).total_jobs == 2
        assert backend.get_job_stats(nothing).tags == ()
        assert ids(backend.list_jobs(tags=nothing)) == ["tagged", "plain"]
        assert backend.cancel_jobs(nothing, ["unknown"]) == ([], ["unknown"])
        assert backend.delete_jobs(nothing, ["unknown"]) == 0
        for both in (backend.cancel_jobs, backend.delete_jobs, backend.redrive_jobs):
            with refused(backend, InvalidArgumentError):
                both(nothing, nothing)
        assert ids(backend.dequeue_jobs(WORKER, nothing, 5)) == ["tagged", "plain"]

    def test_tags_that_differ_in_unicode_form_are_different(self, backend: Backend) -> None:
        """Q9."""
        put(backend, "job", tags=["caf\u00e9"])
        assert backend.dequeue_jobs(WORKER, ["cafe\u0301"]) == []

    def test_a_filter_does_not_cost_a_claim_its_fill(self, backend: Backend) -> None:
        """Q9, Q25: 136 jobs with five tags each; the first claim of eight gets eight."""
        tags = ["a", "b", "c", "d", "e"]
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t", tags=tags) for number in range(136)])
        taken: list[Job] = []
        while batch := backend.dequeue_jobs(WORKER, tags, limit=8):
            assert len(batch) == 8
            taken += batch
        assert len(set(ids(taken))) == 136

    def test_jobs_of_other_tags_do_not_hide_those_asked_for(self, backend: Backend) -> None:
        """Q9, B5."""
        backend.enqueue_jobs(
            [a_job(id=f"other-{n}", type="t", tags=["common"], priority=0) for n in range(300)]
            + [a_job(id="rare", type="t", tags=["common", "rare"], priority=4)]
        )
        assert ids(backend.dequeue_jobs(WORKER, ["common", "rare"], limit=10)) == ["rare"]

    def test_types_narrow_a_claim(self, backend: Backend) -> None:
        for number, name in enumerate(["mail", "resize", "mail", "report"]):
            put(backend, f"job-{number}", type=name)
        assert ids(backend.dequeue_jobs(WORKER, limit=10, types=["mail", "report", "other"])) == [
            "job-0",
            "job-2",
            "job-3",
        ]

    def test_no_types_at_all_take_nothing(self, backend: Backend) -> None:
        put(backend, "job")
        with unchanged(backend):
            assert backend.dequeue_jobs(WORKER, types=()) == []

    def test_types_are_compared_exactly(self, backend: Backend) -> None:
        put(backend, "job", type="Mail")
        assert backend.dequeue_jobs(WORKER, types=["mail", "MAIL", "Mai", "Mail "]) == []

    def test_selection_order_holds_across_types(self, backend: Backend) -> None:
        """C58."""
        put(backend, "a", type="mail", priority=3)
        put(backend, "b", type="report", priority=1)
        put(backend, "c", type="mail", priority=2)
        assert ids(backend.dequeue_jobs(WORKER, limit=10, types=["mail", "report"])) == ["b", "c", "a"]

    @cells("key", [Key("k1"), "k1", ("k1",), ["k1"]], ids=repr)
    def test_a_key_narrows_a_claim(self, backend: Backend, key: Any) -> None:
        """R2."""
        put(backend, "a", key="k1")
        put(backend, "b", key="k2")
        put(backend, "c")
        assert ids(backend.dequeue_jobs(WORKER, limit=10, key=key)) == ["a"]

    def test_keys_of_several_parts_do_not_run_together(self, backend: Backend) -> None:
        """R2."""
        put(backend, "a", key=Key("x", "y"))
        assert backend.dequeue_jobs(WORKER, key=Key("xy")) == []
        assert backend.dequeue_jobs(WORKER, key=Key("x")) == []
        assert backend.dequeue_jobs(WORKER, key=Key("x", "y", "")) == []
        assert ids(backend.dequeue_jobs(WORKER, key=Key("x", "y"))) == ["a"]

    def test_job_ids_narrow_a_claim(self, backend: Backend) -> None:
        put(backend, "a", "b", "c")
        assert ids(backend.dequeue_jobs(WORKER, limit=10, job_ids=["c", "a", MISSING])) == ["a", "c"]

    def test_no_job_ids_at_all_take_nothing(self, backend: Backend) -> None:
        put(backend, "job")
        assert backend.dequeue_jobs(WORKER, job_ids=[]) == []

    def test_all_filters_apply_together(self, backend: Backend) -> None:
        put(backend, "a", type="mail", tags=["red"], key="k1")
        put(backend, "b", type="mail", tags=["red"], key="k2")
        put(backend, "c", type="mail", tags=["blue"], key="k3")
        put(backend, "d", type="report", tags=["red"], key="k4")
        options: dict[str, Any] = {"limit": 10, "types": ["mail"], "job_ids": ["a", "c", "d"]}
        assert ids(backend.dequeue_jobs(WORKER, ["red"], **options)) == ["a"]

    def test_a_claim_by_id_waits_for_its_time_too(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "job", run_at=clock.now() + timedelta(seconds=1))
        assert backend.dequeue_jobs(WORKER, job_ids=["job"]) == []


class Delays(Suite):
    """run_at."""

    def test_a_delayed_job_is_taken_from_its_very_instant_on(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G4: no upkeep is needed for it."""
        put(backend, "job", run_at=clock.now() + timedelta(seconds=60))
        clock.advance(timedelta(seconds=59, microseconds=999_999))
        assert not is_takeable(backend, "job")
        clock.advance(timedelta(microseconds=1))
        assert is_takeable(backend, "job")

    def test_a_run_at_in_the_past_is_due_at_once(self, backend: Backend, clock: ManualClock) -> None:
        """G4."""
        put(backend, "job", run_at=clock.now() - timedelta(days=1))
        job = claim(backend, "job")
        assert job.run_at == clock.now() - timedelta(days=1)

    def test_a_delayed_job_does_not_hold_up_others(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "delayed", run_at=clock.now() + timedelta(days=1), priority=0)
        put(backend, "ready", priority=4)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["ready"]

    def test_many_delayed_jobs_that_are_due_are_all_taken(self, backend: Backend, clock: ManualClock) -> None:
        due = clock.now() + timedelta(seconds=1)
        backend.enqueue_jobs([a_job(id=f"job-{n}", type="t", run_at=due) for n in range(1_200)])
        clock.advance(1)
        taken: set[str] = set()
        while batch := backend.dequeue_jobs(WORKER, limit=500):
            taken.update(ids(batch))
        assert len(taken) == 1_200


class ManyDue(Suite):
    """More jobs come due at once than a claim moves into the ready set in one go."""

    def test_a_filtered_claim_finds_its_job_behind_thousands_that_are_due(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Q13, G13: a job is eligible however many others are."""
        due = clock.advance(0) + timedelta(seconds=5)
        backend.enqueue_jobs([a_job(id=f"job-{number}", run_at=due) for number in range(2_500)])
        put(backend, "wanted", tags=["rare"], run_at=due, priority=4)
        clock.advance(5)
        assert ids(backend.dequeue_jobs(WORKER, ["rare"])) == ["wanted"]
        assert len(backend.dequeue_jobs(WORKER, limit=3_000)) == 2_500


class Held(Suite):
    """Jobs that are claimed only by their id, and restarted by it."""

    def test_a_held_job_is_taken_by_its_id_alone(self, backend: Backend) -> None:
        put(backend, "held", held=True, tags=["red"], key="k")
        assert backend.dequeue_jobs(WORKER, limit=10) == []
        assert backend.dequeue_jobs(WORKER, ["red"], limit=10, types=["task"], key="k") == []
        assert ids(backend.dequeue_jobs(WORKER, job_ids=["held"])) == ["held"]

    def test_tags_and_types_apply_to_held_jobs_too(self, backend: Backend) -> None:
        put(backend, "held", held=True, tags=["red"])
        assert backend.dequeue_jobs(WORKER, ["blue"], job_ids=["held"]) == []
        assert backend.dequeue_jobs(WORKER, types=["other"], job_ids=["held"]) == []
        assert ids(backend.dequeue_jobs(WORKER, ["red"], types=["task"], job_ids=["held"])) == ["held"]

    def test_a_held_job_stays_held_when_it_retries(self, backend: Backend) -> None:
        put_running(backend, "held", held=True)
        backend.fail_job("held", "boom")
        assert backend.dequeue_jobs(WORKER, limit=10) == []
        claim(backend, "held")

    def test_a_stopped_held_job_can_be_restarted(self, backend: Backend, clock: ManualClock) -> None:
        """P12: attempt + 1, progress 0, finalized_at cleared."""
        put_running(backend, "held", held=True)
        started_at = clock.now()
        backend.save_progress("held", 70, "almost there")
        clock.advance(1)
        backend.stop_job("held", "enough")
        now = clock.advance(1)
        job = backend.restart_job("held", OTHER_WORKER)
        assert (job.status, job.state, job.attempt) == (JobStatus.RUNNING, JobState.RUNNING, 2)
        assert (job.assignee_id, job.assigned_at, job.attempt_started_at) == (OTHER_WORKER, now, now)
        assert (job.progress, job.description, job.finalized_at, job.started_at) == (
            0,
            None,
            None,
            started_at,
        )
        assert backend.get_job("held") == job
        assert backend.complete_job("held", b"done", attempt=2) == {OTHER_WORKER: 1}

    def test_a_restarted_job_is_held_by_its_owner(self, backend: Backend) -> None:
        put_running(backend, "held", held=True)
        backend.stop_job("held", "enough")
        owner = backend.owners.open()
        backend.restart_job("held", WORKER, owner=owner)
        backend.owners.close(owner)
        backend.maintain()
        assert backend.get_job("held").status is JobStatus.UNKNOWN_RETRY

    def test_a_job_that_is_not_held_cannot_be_restarted(self, backend: Backend) -> None:
        drive(backend, JobStatus.STOPPED)
        with refused(backend, InvalidTransitionError):
            backend.restart_job("job", WORKER)

    def test_restarting_an_unknown_job_is_an_error(self, backend: Backend) -> None:
        with refused(backend, JobNotFoundError):
            backend.restart_job(MISSING, WORKER)

    def test_a_restart_waits_for_nobody_but_respects_who_runs_in_its_key(self, backend: Backend) -> None:
        """R3."""
        put_running(backend, "held", held=True, key="k")
        backend.stop_job("held")
        put(backend, "next", key="k")
        claim(backend, "next")
        with refused(backend, InvalidTransitionError):
            backend.restart_job("held", WORKER)
        backend.complete_job("next")
        assert backend.restart_job("held", WORKER).status is JobStatus.RUNNING

    def test_a_restarted_job_takes_its_keys_turn_back(self, backend: Backend) -> None:
        """R3."""
        put_running(backend, "held", held=True, key="k")
        put(backend, "next", key="k")
        backend.stop_job("held")
        assert backend.get_job("next").state is JobState.SCHEDULED
        backend.restart_job("held", WORKER)
        assert backend.get_job("next").state is JobState.PENDING
        assert not is_takeable(backend, "next")
        backend.complete_job("held")
        assert is_takeable(backend, "next")


class ManyClaims(Suite):
    """dequeue_jobs_for."""

    def test_requests_are_served_in_order(self, backend: Backend) -> None:
        put(backend, "a", "b", "c")
        served = backend.dequeue_jobs_for(
            [ClaimRequest(assignee_id=WORKER, limit=2), ClaimRequest(assignee_id=OTHER_WORKER, limit=2)]
        )
        assert [ids(jobs) for jobs in served] == [["a", "b"], ["c"]]
        assert [jobs[0].assignee_id for jobs in served] == [WORKER, OTHER_WORKER]

    def test_each_request_has_its_own_filters(self, backend: Backend) -> None:
        """Q22."""
        put(backend, "red", tags=["red"])
        put(backend, "mail", type="mail")
        put(backend, "keyed", key="k")
        put(backend, "held", held=True)
        served = backend.dequeue_jobs_for(
            [
                ClaimRequest(assignee_id="w1", tags=["red"], limit=9),
                ClaimRequest(assignee_id="w2", types=["mail"], limit=9),
                ClaimRequest(assignee_id="w3", key="k", limit=9),
                ClaimRequest(assignee_id="w4", job_ids=["held"], limit=9),
                ClaimRequest(assignee_id="w5", limit=9),
            ]
        )
        assert [ids(jobs) for jobs in served] == [["red"], ["mail"], ["keyed"], ["held"], []]

    def test_two_requests_never_share_a_key(self, backend: Backend) -> None:
        """R3."""
        put(backend, "a", "b", key="k")
        served = backend.dequeue_jobs_for([ClaimRequest(assignee_id=w, limit=5) for w in ("w1", "w2")])
        assert [ids(jobs) for jobs in served] == [["a"], []]

    def test_no_requests_get_no_answers(self, backend: Backend) -> None:
        assert backend.dequeue_jobs_for([]) == []

    def test_one_wrong_request_refuses_all(self, backend: Backend) -> None:
        put(backend, "a", "b")
        with refused(backend, InvalidArgumentError):
            backend.dequeue_jobs_for(
                [ClaimRequest(assignee_id=WORKER), ClaimRequest(assignee_id=WORKER, limit=0)]
            )

    def test_backoff_and_delay_hold_for_every_request(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "job", retry=retry_policy(initial_delay=5))
        backend.fail_job("job", "boom")
        assert backend.dequeue_jobs_for([ClaimRequest(assignee_id=WORKER)] * 3) == [[], [], []]
        clock.advance(5)
        served = backend.dequeue_jobs_for([ClaimRequest(assignee_id=WORKER)] * 2)
        assert [ids(jobs) for jobs in served] == [["job"], []]
