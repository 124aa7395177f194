"""Idempotency keys: submitting twice stores once."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

from penstock.backends import Backend
from penstock.errors import DependencyError, InvalidArgumentError
from penstock.job import Job, JobStatus
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    STATUSES,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    all_jobs,
    assert_sound,
    drive,
    ids,
    put,
    refused,
    unchanged,
)
from penstock.testing.conformance.concurrency import together


def keyed(job_id: str, key: str = "once", **fields: Any) -> Job:
    """Return a job with an idempotency key."""
    return a_job(id=job_id, idempotency_key=key, **{"type": "task", **fields})


def unique(job_id: str, key: str = "once", **fields: Any) -> Job:
    """Return a job whose idempotency key is reserved while it is unfinished."""
    return keyed(job_id, key, unique="while_unfinished", **fields)


class Idempotency(Suite):
    """Scope, window and release of idempotency keys."""

    def test_a_duplicate_returns_the_existing_id_and_stores_nothing(self, backend: Backend) -> None:
        """G2, G27, C32."""
        assert backend.enqueue_job(keyed("first")) == "first"
        with unchanged(backend):
            assert backend.enqueue_job(keyed("second", payload=b"different")) == "first"

    def test_the_same_submission_again_is_answered_the_same(self, backend: Backend) -> None:
        """G2: a client that did not receive the first answer."""
        job = keyed("first")
        backend.enqueue_job(job)
        with unchanged(backend):
            assert backend.enqueue_job(job) == "first"
            assert backend.enqueue_jobs([job]) == ["first"]

    def test_the_key_counts_per_type(self, backend: Backend) -> None:
        """G2, C32."""
        assert backend.enqueue_job(keyed("a", type="mail")) == "a"
        assert backend.enqueue_job(keyed("b", type="report")) == "b"
        assert backend.enqueue_job(keyed("c", type="mail")) == "a"

    @cells("other", ["Once", "once ", "oncë", "ONCE", "onc"])
    def test_keys_are_compared_exactly(self, backend: Backend, other: str) -> None:
        """G2."""
        backend.enqueue_job(keyed("a"))
        assert backend.enqueue_job(keyed("b", other)) == "b"

    def test_keys_that_differ_in_unicode_form_are_different(self, backend: Backend) -> None:
        backend.enqueue_job(keyed("a", "caf\u00e9"))
        assert backend.enqueue_job(keyed("b", "cafe\u0301")) == "b"

    @cells("status", STATUSES)
    def test_the_key_is_taken_whatever_became_of_the_job(self, backend: Backend, status: JobStatus) -> None:
        """G2, C32."""
        drive(backend, status, idempotency_key="once")
        with unchanged(backend):
            assert backend.enqueue_job(keyed("other")) == "job"

    def test_the_key_is_free_again_at_exactly_the_end_of_its_window(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """G2, C32: 24 hours from submission, though the job still exists."""
        backend.enqueue_job(keyed("first"))
        clock.advance(timedelta(hours=24, microseconds=-1))
        assert backend.enqueue_job(keyed("second")) == "first"
        clock.advance(timedelta(microseconds=1))
        assert backend.enqueue_job(keyed("second")) == "second"
        assert backend.enqueue_job(keyed("third")) == "second"
        assert ids(all_jobs(backend)) == ["first", "second"]

    def test_the_window_is_an_option(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        """G2, C32."""
        backend = make_backend(clock=clock, idempotency_window=timedelta(seconds=10))
        backend.enqueue_job(keyed("first"))
        clock.advance(9.999999)
        assert backend.enqueue_job(keyed("second")) == "first"
        clock.advance(0.000001)
        assert backend.enqueue_job(keyed("second")) == "second"

    def test_running_and_retrying_do_not_prolong_the_window(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """C32: counted from submission."""
        drive(backend, JobStatus.RUNNING, idempotency_key="once")
        clock.advance(timedelta(hours=23))
        backend.fail_job("job", "boom")
        clock.advance(timedelta(hours=1))
        assert backend.enqueue_job(keyed("second")) == "second"

    def test_deleting_the_job_frees_the_key(self, backend: Backend) -> None:
        drive(backend, JobStatus.COMPLETED, idempotency_key="once")
        backend.delete_jobs(job_ids=["job"])
        assert backend.enqueue_job(keyed("other")) == "other"

    def test_deleting_an_older_holder_does_not_free_the_key_of_a_newer_one(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        drive(backend, JobStatus.COMPLETED, "old", idempotency_key="once")
        clock.advance(timedelta(hours=24))
        assert backend.enqueue_job(keyed("new")) == "new"
        backend.delete_jobs(job_ids=["old"])
        assert backend.enqueue_job(keyed("third")) == "new"

    def test_cleaning_up_frees_the_key(self, backend: Backend, clock: ManualClock) -> None:
        drive(backend, JobStatus.COMPLETED, idempotency_key="once")
        clock.advance(60)
        assert backend.cleanup_expired_jobs(timedelta(seconds=60)) == 1
        assert backend.enqueue_job(keyed("other")) == "other"

    def test_jobs_without_a_key_are_never_duplicates(self, backend: Backend) -> None:
        put(backend, "a", "b", "c")
        assert len(all_jobs(backend)) == 3

    def test_a_duplicate_in_the_same_batch_gets_the_first_ones_id(self, backend: Backend) -> None:
        """G2."""
        batch = [keyed("a"), keyed("b"), keyed("c", "twice"), keyed("d"), keyed("e", "twice")]
        assert backend.enqueue_jobs(batch) == ["a", "a", "c", "a", "c"]
        assert ids(all_jobs(backend)) == ["a", "c"]

    def test_a_batch_may_mix_new_and_known_jobs(self, backend: Backend) -> None:
        """G2, Q14."""
        backend.enqueue_job(keyed("known"))
        assert backend.enqueue_jobs([a_job(id="x", type="t"), keyed("y"), a_job(id="z", type="t")]) == [
            "x",
            "known",
            "z",
        ]
        assert ids(all_jobs(backend)) == ["known", "x", "z"]

    def test_waiting_for_a_duplicate_means_waiting_for_the_existing_job(self, backend: Backend) -> None:
        """G2, G25."""
        backend.enqueue_job(keyed("existing"))
        backend.enqueue_jobs([a_job(id="last", type="t", after=("again",)), keyed("again")])
        job = backend.get_job("last")
        assert job.after == ("existing",)
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["existing"]
        backend.complete_job("existing")
        assert ids(backend.dequeue_jobs(WORKER, limit=10)) == ["last"]

    def test_waiting_for_a_duplicate_inside_the_batch_means_the_first_one(self, backend: Backend) -> None:
        """G2, G25."""
        backend.enqueue_jobs([keyed("a"), keyed("b"), a_job(id="last", type="t", after=("b", "a"))])
        assert backend.get_job("last").after == ("a",)

    def test_a_duplicate_is_no_reference_for_a_later_call(self, backend: Backend) -> None:
        """G25: its own id was never stored."""
        backend.enqueue_jobs([keyed("a"), keyed("b")])
        with refused(backend, DependencyError):
            put(backend, "last", after=["b"])

    def test_a_duplicate_does_not_count_against_max_pending(
        self, make_backend: MakeBackend, clock: ManualClock
    ) -> None:
        backend = make_backend(clock=clock, max_pending=1)
        backend.enqueue_job(keyed("a"))
        assert backend.enqueue_job(keyed("b")) == "a"

    @cells("key", ["", "x" * 257, "nul\x00", "\ud800", 5, b"once"], ids=repr)
    def test_a_key_is_text_of_one_to_256_characters(self, backend: Backend, key: Any) -> None:
        """G2, C32."""
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(keyed("job", key))

    @cells("key", ["x" * 256, "漢" * 256, "🦆" * 256, " "])
    def test_256_characters_of_any_kind_are_a_key(self, backend: Backend, key: str) -> None:
        """G2."""
        backend.enqueue_job(keyed("a", key))
        assert backend.enqueue_job(keyed("b", key)) == "a"
        assert backend.get_job("a").idempotency_key == key

    def test_a_second_object_sees_the_key(self, backend: Backend, second_backend: Backend) -> None:
        """G2."""
        backend.enqueue_job(keyed("a"))
        assert second_backend.enqueue_job(keyed("b")) == "a"

    @cells("status", [status for status in STATUSES if not status.is_final])
    def test_a_key_that_is_unique_while_unfinished_is_taken_until_then(
        self, backend: Backend, clock: ManualClock, status: JobStatus
    ) -> None:
        """However long that takes: the window does not count."""
        drive(backend, status, idempotency_key="once", unique="while_unfinished")
        with unchanged(backend):
            assert backend.enqueue_job(unique("other")) == "job"
        clock.advance(timedelta(hours=25))
        with unchanged(backend):
            assert backend.enqueue_job(unique("other")) == "job"
            assert backend.enqueue_job(keyed("plain", type="task")) == "job"

    @cells("status", [status for status in STATUSES if status.is_final])
    def test_a_key_that_is_unique_while_unfinished_is_free_once_its_job_has_ended(
        self, backend: Backend, status: JobStatus
    ) -> None:
        drive(backend, status, "old", idempotency_key="once", unique="while_unfinished")
        assert backend.enqueue_job(unique("new")) == "new"
        with unchanged(backend):
            assert backend.enqueue_job(unique("third")) == "new"
        assert backend.get_job("new").unique == "while_unfinished"

    def test_a_key_of_an_ended_unique_job_is_free_for_a_job_of_the_usual_rule(self, backend: Backend) -> None:
        drive(backend, JobStatus.COMPLETED, "old", idempotency_key="once", unique="while_unfinished")
        assert backend.enqueue_job(keyed("new")) == "new"
        assert backend.get_job("new").unique is None

    def test_a_unique_job_takes_over_the_key_of_a_usual_one_that_has_ended(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        drive(backend, JobStatus.COMPLETED, "old", idempotency_key="once")
        assert backend.enqueue_job(keyed("usual")) == "old"
        assert backend.enqueue_job(unique("new")) == "new"
        assert backend.enqueue_job(keyed("usual")) == "new"

    def test_a_unique_job_is_a_duplicate_of_an_unfinished_usual_one(self, backend: Backend) -> None:
        backend.enqueue_job(keyed("usual"))
        with unchanged(backend):
            assert backend.enqueue_job(unique("new")) == "usual"

    def test_a_job_whose_end_is_corrected_has_its_key_again_unless_it_is_taken(
        self, backend: Backend
    ) -> None:
        """UNKNOWN_STOPPED is final, and may still turn out to be unfinished."""
        drive(backend, JobStatus.UNKNOWN_STOPPED, "old", idempotency_key="once", unique="while_unfinished")
        backend.update_job_status("old", JobStatus.UNKNOWN_RETRY)
        assert backend.enqueue_job(unique("new")) == "old"
        backend.update_job_status("old", JobStatus.UNKNOWN_STOPPED)
        assert backend.enqueue_job(unique("new")) == "new"
        backend.update_job_status("old", JobStatus.UNKNOWN_RETRY)
        assert backend.enqueue_job(unique("third")) == "new"

    def test_deleting_an_ended_unique_job_does_not_free_the_key_of_its_successor(
        self, backend: Backend
    ) -> None:
        drive(backend, JobStatus.COMPLETED, "old", idempotency_key="once", unique="while_unfinished")
        backend.enqueue_job(unique("new"))
        backend.delete_jobs(job_ids=["old"])
        assert backend.enqueue_job(unique("third")) == "new"

    def test_unique_jobs_of_one_batch_share_their_key(self, backend: Backend) -> None:
        drive(backend, JobStatus.COMPLETED, "old", idempotency_key="once", unique="while_unfinished")
        assert backend.enqueue_jobs([unique("a"), unique("b"), unique("c", "other")]) == ["a", "a", "c"]

    def test_a_spawned_job_is_unique_too(self, backend: Backend) -> None:
        backend.enqueue_job(unique("child"))
        put(backend, "parent", type="parent")
        (parent,) = backend.dequeue_jobs(WORKER, types=["parent"])
        assert backend.spawn_jobs("parent", [unique("again")], attempt=parent.attempt) == ["child"]
        backend.dequeue_jobs(WORKER, job_ids=["child"])
        backend.complete_job("child")
        assert backend.spawn_jobs("parent", [unique("again")], attempt=parent.attempt) == ["again"]

    def test_a_redriven_copy_of_a_unique_job_has_neither_key_nor_rule(self, backend: Backend) -> None:
        drive(backend, JobStatus.FAILED, idempotency_key="once", unique="while_unfinished")
        (copy,) = backend.redrive_jobs(job_ids=["job"])
        copied = backend.get_job(copy)
        assert (copied.idempotency_key, copied.unique) == (None, None)
        assert backend.enqueue_job(unique("other")) == "other"

    def test_the_journal_tells_unique_jobs_from_others(self, backend: Backend) -> None:
        backend.enqueue_jobs([keyed("usual", "a"), unique("unique", "b")])
        assert [entry.verb for entry in backend.read_journal()] == ["enqueue", "enqueue_unique"]

    def test_submitters_at_the_same_time_leave_one_unfinished_job_of_a_key(self, backend: Backend) -> None:
        """Each round ends the job of the round before, while several threads submit."""
        for round_ in range(5):
            ids = together(
                *(functools.partial(backend.enqueue_job, unique(f"{round_}-{number}")) for number in range(8))
            )
            assert len(set(ids)) == 1
            assert backend.get_job_stats().pending_jobs == 1
            (job,) = backend.dequeue_jobs(WORKER)
            backend.complete_job(job.id)

    def test_submitters_of_several_objects_leave_one_unfinished_job_while_others_end_it(
        self, backend: Backend, second_backend: Backend
    ) -> None:
        """The journal's check of keys finds no two at a time."""

        def submit(store: Backend, name: str) -> None:
            for number in range(10):
                store.enqueue_job(unique(f"{name}-{number}"))

        def work(store: Backend, name: str) -> None:
            for _ in range(10):
                for job in store.dequeue_jobs(name):
                    store.complete_job(job.id)

        stores = [backend, second_backend]
        together(
            *(functools.partial(submit, stores[n % 2], f"s{n}") for n in range(4)),
            *(functools.partial(work, stores[n % 2], f"w{n}") for n in range(2)),
        )
        assert sum(not job.status.is_final for job in all_jobs(backend)) <= 1
        assert_sound(backend)

    @cells(
        "rule",
        ["", "window", "while_unfinished ", 5, True, ["while_unfinished"], "nul\x00", "\ud800"],
        ids=ascii,
    )
    def test_another_rule_is_refused(self, backend: Backend, rule: Any) -> None:
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(keyed("job", unique=rule))

    def test_a_rule_without_a_key_is_refused(self, backend: Backend) -> None:
        with refused(backend, InvalidArgumentError):
            backend.enqueue_job(a_job(id="job", type="t", unique="while_unfinished"))

    def test_a_redriven_copy_has_no_key(self, backend: Backend) -> None:
        """C23."""
        drive(backend, JobStatus.FAILED, idempotency_key="once")
        (copy,) = backend.redrive_jobs(job_ids=["job"])
        assert backend.get_job(copy).idempotency_key is None
        assert backend.enqueue_job(keyed("other")) == "job"
