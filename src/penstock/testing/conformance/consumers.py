"""Consumers of the journal, and archiving of the rows that all of them have consumed."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from penstock.backends import Backend
from penstock.errors import InvalidArgumentError
from penstock.job import JobStatus, JournalArchive, JournalConsumer
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._support import (
    MISSING,
    STATUSES,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    assert_sound,
    claim,
    drive,
    journal,
    put_running,
    refused,
    rows_of,
    snapshot,
    unchanged,
)
from penstock.testing.conformance._support import put as enqueue

_S = JobStatus
_FINALS = [status for status in STATUSES if status.is_final]


def seqs(backend: Backend) -> list[int]:
    return [row.seq for row in journal(backend)]


def put(backend: Backend, *job_ids: str, **fields: Any) -> None:
    """Enqueue jobs and read the journal, which numbers its new rows."""
    enqueue(backend, *job_ids, **fields)
    journal(backend)


def end(backend: Backend, *job_ids: str) -> None:
    """Enqueue, claim and complete jobs: three rows each."""
    for job_id in job_ids:
        put_running(backend, job_id)
        backend.complete_job(job_id)


class Consumers(Suite):
    """Registered consumers, their offsets, and the lease that keeps two processes from reading at once."""

    def test_a_registered_consumer_is_listed_by_name(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "a", "b", "c")
        assert backend.journal.list_consumers() == []
        second = backend.journal.register_consumer("lake", seq=2)
        first = backend.journal.register_consumer("callbacks")
        assert first == JournalConsumer(name="callbacks", seq=0, updated_at=clock.now())
        assert second.seq == 2
        assert backend.journal.list_consumers() == [first, second]

    def test_registering_again_changes_nothing(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "a", "b", "c")
        known = backend.journal.register_consumer("lake", seq=2)
        clock.advance(5)
        with unchanged(backend):
            assert backend.journal.register_consumer("lake", seq=3) == known
            assert backend.journal.register_consumer("lake") == known

    def test_a_consumer_only_goes_forward(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "a", "b", "c")
        backend.journal.register_consumer("lake")
        moved = clock.advance(5)
        assert backend.journal.advance_consumer("lake", 2)
        clock.advance(5)
        with unchanged(backend):
            assert backend.journal.advance_consumer("lake", 1)
            assert backend.journal.advance_consumer("lake", 2)
        assert backend.journal.list_consumers() == [JournalConsumer(name="lake", seq=2, updated_at=moved)]

    def test_nobody_can_have_read_what_is_not_written(self, backend: Backend) -> None:
        put(backend, "a", "b")
        with refused(backend, InvalidArgumentError):
            backend.journal.register_consumer("lake", seq=3)
        backend.journal.register_consumer("lake", seq=1)
        with refused(backend, InvalidArgumentError):
            backend.journal.advance_consumer("lake", 3)

    def test_an_unknown_consumer_is_neither_held_nor_advanced(self, backend: Backend) -> None:
        with refused(backend, InvalidArgumentError):
            backend.journal.hold_consumer(MISSING, "me", 10)
        with refused(backend, InvalidArgumentError):
            backend.journal.advance_consumer(MISSING, 0)

    def test_a_forgotten_consumer_is_gone(self, backend: Backend) -> None:
        put(backend, "a")
        backend.journal.register_consumer("lake")
        backend.journal.hold_consumer("lake", "me", 10)
        assert backend.journal.forget_consumer("lake") is True
        assert backend.journal.forget_consumer("lake") is False
        assert backend.journal.list_consumers() == []
        assert backend.journal.register_consumer("lake").holder is None

    def test_one_holder_at_a_time(self, backend: Backend, clock: ManualClock) -> None:
        backend.journal.register_consumer("callbacks")
        held = backend.journal.hold_consumer("callbacks", "first", timedelta(seconds=10))
        assert held is not None
        assert (held.holder, held.held_until) == ("first", clock.now() + timedelta(seconds=10))
        with unchanged(backend):
            assert backend.journal.hold_consumer("callbacks", "second", 10) is None
        clock.advance(9)
        renewed = backend.journal.hold_consumer("callbacks", "first", 10)
        assert renewed is not None
        assert renewed.held_until == clock.now() + timedelta(seconds=10)
        clock.advance(9)
        assert backend.journal.hold_consumer("callbacks", "second", 10) is None
        assert backend.journal.list_consumers() == [renewed]

    def test_a_silent_holder_loses_it_when_its_lease_is_over(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        put(backend, "a", "b")
        backend.journal.register_consumer("callbacks")
        backend.journal.hold_consumer("callbacks", "first", 10)
        clock.advance(10)
        assert backend.journal.advance_consumer(
            "callbacks", 1, holder="first"
        )  # no other process holds it yet
        taken = backend.journal.hold_consumer("callbacks", "second", 10)
        assert taken is not None
        assert (taken.holder, taken.seq) == ("second", 1)
        with unchanged(backend):
            assert backend.journal.hold_consumer("callbacks", "first", 10) is None
            assert not backend.journal.advance_consumer("callbacks", 2, holder="first")
        assert backend.journal.advance_consumer("callbacks", 2, holder="second")

    def test_a_clock_that_was_set_back_keeps_nobody_waiting(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """F17: otherwise the lease of a dead holder would last as long as the clock was wrong."""
        start = clock.now()
        clock.advance(timedelta(hours=1))
        backend.journal.register_consumer("callbacks")
        backend.journal.hold_consumer("callbacks", "first", 10)
        clock.set(start)
        taken = backend.journal.hold_consumer("callbacks", "second", 10)
        assert taken is not None
        assert (taken.holder, taken.held_until) == ("second", start + timedelta(seconds=10))
        assert backend.journal.hold_consumer("callbacks", "first", 10) is None

    def test_who_does_not_hold_it_does_not_advance_it(self, backend: Backend, clock: ManualClock) -> None:
        put(backend, "a", "b")
        backend.journal.register_consumer("callbacks")
        with unchanged(backend):
            assert not backend.journal.advance_consumer("callbacks", 1, holder="me")
        backend.journal.hold_consumer("callbacks", "me", 10)
        with unchanged(backend):
            assert not backend.journal.advance_consumer("callbacks", 1)
            assert not backend.journal.advance_consumer("callbacks", 1, holder="other")
        assert backend.journal.advance_consumer("callbacks", 1, holder="me")
        clock.advance(10)
        assert backend.journal.advance_consumer("callbacks", 2)

    def test_a_lease_of_nothing_gives_it_back(self, backend: Backend) -> None:
        backend.journal.register_consumer("callbacks")
        backend.journal.hold_consumer("callbacks", "me", 10)
        assert backend.journal.hold_consumer("callbacks", "other", 0) is None
        given_back = backend.journal.hold_consumer("callbacks", "me", 0)
        assert given_back is not None
        assert (given_back.holder, given_back.held_until) == (None, None)
        with unchanged(backend):
            backend.journal.hold_consumer("callbacks", "other", 0)
        taken = backend.journal.hold_consumer("callbacks", "other", 10)
        assert taken is not None
        assert taken.holder == "other"

    def test_of_many_at_once_one_gets_it(self, backend: Backend) -> None:
        backend.journal.register_consumer("callbacks")
        ready, held = threading.Barrier(8), []

        def take(holder: str) -> None:
            ready.wait()
            if backend.journal.hold_consumer("callbacks", holder, 10) is not None:
                held.append(holder)

        threads = [threading.Thread(target=take, args=(f"holder-{number}",)) for number in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(held) == 1
        assert backend.journal.list_consumers()[0].holder == held[0]

    def test_what_consumers_said_outlives_the_object(
        self, make_backend: MakeBackend, clock: ManualClock
    ) -> None:
        if not make_backend.shares_store:
            pytest.skip("the store lives in its object")
        with make_backend(clock=clock) as backend:
            end(backend, "a", "b")
            put(backend, "c")
            backend.journal.register_consumer("lake", seq=2)
            backend.journal.hold_consumer("lake", "me", 10)
            clock.advance(1)
            backend.journal.advance_consumer("lake", 4, holder="me")
            backend.journal.archive(0)
            known = snapshot(backend)
        with make_backend(clock=clock) as again:
            assert snapshot(again) == known
            assert again.journal.get_archive() == JournalArchive(histories=1, rows=3, upto=3)

    @pytest.mark.parametrize(
        "call",
        [
            lambda backend: backend.journal.register_consumer(""),
            lambda backend: backend.journal.register_consumer(None),
            lambda backend: backend.journal.register_consumer("x" * 257),
            lambda backend: backend.journal.register_consumer("nul\0"),
            lambda backend: backend.journal.register_consumer("x", seq=-1),
            lambda backend: backend.journal.register_consumer("x", seq=True),
            lambda backend: backend.journal.register_consumer("x", seq="1"),
            lambda backend: backend.journal.hold_consumer("reader", "", 10),
            lambda backend: backend.journal.hold_consumer("reader", None, 10),
            lambda backend: backend.journal.hold_consumer("reader", "me", -1),
            lambda backend: backend.journal.hold_consumer("reader", "me", "10"),
            lambda backend: backend.journal.hold_consumer("reader", "me", float("nan")),
            lambda backend: backend.journal.advance_consumer("reader", None),
            lambda backend: backend.journal.advance_consumer("reader", -1),
            lambda backend: backend.journal.advance_consumer("reader", 1, holder=""),
            lambda backend: backend.journal.forget_consumer(""),
            lambda backend: backend.journal.archive(-1),
            lambda backend: backend.journal.archive(None),
            lambda backend: backend.journal.archive(float("inf")),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, backend: Backend, call: Any) -> None:
        put(backend, "a")
        backend.journal.register_consumer("reader")
        with refused(backend, InvalidArgumentError):
            call(backend)


class Archiving(Suite):
    """archive_journal: whole histories that have ended, are old, and were read by every consumer."""

    def test_nothing_was_archived_at_first(self, backend: Backend) -> None:
        put(backend, "a")
        assert backend.journal.get_archive() == JournalArchive(histories=0, rows=0, upto=0)
        assert backend.journal.archive(0) == JournalArchive()

    def test_an_ended_history_goes_whole_and_is_counted(self, backend: Backend) -> None:
        end(backend, "old")
        put_running(backend, "runs")
        end(backend, "older")
        put(backend, "waits")
        assert backend.journal.archive(0) == JournalArchive(histories=2, rows=6, upto=8)
        assert {row.job_id for row in journal(backend)} == {"runs", "waits"}
        assert backend.journal.get_archive() == JournalArchive(histories=2, rows=6, upto=8)
        assert backend.journal.archive(0) == JournalArchive()
        assert_sound(backend)

    @pytest.mark.parametrize("status", STATUSES)
    def test_only_what_is_final_goes(self, backend: Backend, status: JobStatus) -> None:
        drive(backend, status)
        put(backend, "newest")
        before = snapshot(backend)
        backend.journal.archive(0)
        after = snapshot(backend)
        assert (after.jobs, after.stats) == (before.jobs, before.stats)
        assert (rows_of(backend, "job") == []) is status.is_final
        assert_sound(backend)

    @pytest.mark.parametrize("status", _FINALS)
    def test_deleted_jobs_go_with_the_row_that_says_so(self, backend: Backend, status: JobStatus) -> None:
        drive(backend, status, tags=["red"])
        backend.delete_jobs(job_ids=["job"])
        put(backend, "newest")
        rows = len(rows_of(backend, "job"))
        assert backend.journal.archive(0) == JournalArchive(histories=1, rows=rows, upto=rows)
        assert backend.get_job_stats().total_jobs == 1
        assert backend.get_job_stats(["red"]).total_jobs == 0

    def test_age_is_that_of_the_last_row(self, backend: Backend, clock: ManualClock) -> None:
        put_running(backend, "long")
        clock.advance(100)
        backend.complete_job("long")
        end(backend, "short")
        clock.advance(50)
        put(backend, "newest")
        assert backend.journal.archive(timedelta(seconds=51)) == JournalArchive()
        assert backend.journal.archive(timedelta(seconds=50)).histories == 2

    def test_what_somebody_has_not_read_stays(self, backend: Backend) -> None:
        end(backend, "a", "b")
        put(backend, "newest")
        backend.journal.register_consumer("lake", seq=5)
        backend.journal.register_consumer("callbacks")
        assert backend.journal.archive(0) == JournalArchive()
        backend.journal.advance_consumer("callbacks", 7)
        assert backend.journal.archive(0).upto == 3
        backend.journal.advance_consumer("lake", 6)
        assert backend.journal.archive(0).upto == 6
        assert_sound(backend)

    def test_a_history_stays_whole_until_its_last_row_is_read(self, backend: Backend) -> None:
        end(backend, "a")
        put(backend, "newest")
        backend.journal.register_consumer("lake")
        for seq in (1, 2):
            backend.journal.advance_consumer("lake", seq)
            assert backend.journal.archive(0) == JournalArchive()
        backend.journal.advance_consumer("lake", 3)
        assert backend.journal.archive(0).rows == 3

    def test_a_forgotten_consumer_holds_nothing_back(self, backend: Backend) -> None:
        end(backend, "a")
        put(backend, "newest")
        backend.journal.register_consumer("lake")
        backend.journal.forget_consumer("lake")
        assert backend.journal.archive(0).rows == 3

    def test_the_newest_row_stays_so_that_no_number_comes_twice(self, backend: Backend) -> None:
        end(backend, "a", "b")
        backend.delete_jobs(job_ids=["a", "b"])
        assert len(journal(backend)) == 8
        backend.journal.archive(0)
        left = seqs(backend)
        assert left[-1] == 8
        put(backend, "c")
        assert seqs(backend) == [*left, 9]

    def test_cursors_stay_valid_across_the_gaps(self, backend: Backend) -> None:
        put_running(backend, "first")
        end(backend, "a", "b", "c")
        put(backend, "last")
        backend.journal.archive(0)
        assert seqs(backend) == [1, 2, 12]
        assert [row.seq for row in backend.read_journal(after=1, limit=1)] == [2]
        for gone in range(2, 12):
            assert [row.seq for row in backend.read_journal(after=gone)] == [12]
        backend.complete_job("first")
        assert [row.seq for row in backend.read_journal(after=12)] == [13]

    def test_statistics_are_those_of_the_jobs(self, backend: Backend) -> None:
        for number in range(6):
            put_running(backend, f"job-{number}", tags=["even"] if number % 2 == 0 else [])
        backend.fail_job("job-0", "boom")
        backend.update_job("job-1", tags=["even", "late"])
        for number in range(1, 5):
            backend.complete_job(f"job-{number}")
        backend.delete_jobs(job_ids=["job-4"])
        put(backend, "newest")
        known = [backend.get_job_stats(tags) for tags in ((), ("even",), ("late",), ("even", "late"))]
        assert backend.journal.archive(0).histories == 4
        assert [backend.get_job_stats(each.tags) for each in known] == known
        claim(backend, "job-0")
        backend.complete_job("job-0")
        assert backend.get_job_stats(["even"]).completed_jobs == 3

    def test_a_job_may_be_deleted_after_its_history(self, backend: Backend) -> None:
        end(backend, "a")
        put(backend, "newest")
        backend.journal.archive(0)
        backend.delete_jobs(job_ids=["a"])
        (row,) = rows_of(backend, "a")
        assert (row.seq, row.n, row.verb, row.status) == (5, 4, "delete", _S.COMPLETED)
        assert backend.get_job_stats().total_jobs == 1
        assert_sound(backend)
        put(backend, "newer")
        assert backend.journal.archive(0) == JournalArchive(histories=0, rows=1, upto=5)
        assert backend.journal.get_archive() == JournalArchive(histories=1, rows=4, upto=5)

    def test_a_final_that_goes_on_begins_where_it_was(self, backend: Backend) -> None:
        """Q7, P12: a corrected one and a restarted one."""
        drive(backend, _S.UNKNOWN_STOPPED, "lost")
        drive(backend, _S.STOPPED, "held", held=True)
        put(backend, "newest")
        assert backend.journal.archive(0).histories == 2
        backend.complete_job("lost", b"after all")
        backend.restart_job("held", WORKER)
        assert [(row.n, str(row.verb)) for row in rows_of(backend, "lost")] == [(4, "complete")]
        assert [(row.n, str(row.verb)) for row in rows_of(backend, "held")] == [(4, "restart")]
        assert_sound(backend)
        assert backend.journal.archive(0).rows == 1
        assert rows_of(backend, "held") != []

    def test_an_id_that_is_used_again_has_histories_of_its_own(self, backend: Backend) -> None:
        end(backend, "a")
        backend.delete_jobs(job_ids=["a"])
        put_running(backend, "a")
        assert backend.journal.archive(0) == JournalArchive(histories=1, rows=4, upto=4)
        assert [row.n for row in rows_of(backend, "a")] == [1, 2]
        assert_sound(backend)

    def test_spawned_jobs_outlive_the_history_of_their_parent(self, backend: Backend) -> None:
        put_running(backend, "parent", key="k")
        put(backend, "dependent", key="k", after=["parent"])
        backend.spawn_jobs("parent", [a_job(id="spawned", key="k")])
        backend.complete_job("parent")
        put(backend, "newest")
        assert backend.journal.archive(0).histories == 1
        claim(backend, "spawned")
        backend.complete_job("spawned")
        claim(backend, "dependent")
        assert_sound(backend)

    def test_others_write_meanwhile(self, backend: Backend, second_backend: Backend) -> None:
        ids = [f"job-{number}" for number in range(300)]
        backend.enqueue_jobs([a_job(id=each) for each in ids])
        backend.dequeue_jobs(WORKER, limit=300)
        is_over = threading.Event()
        removed: list[JournalArchive] = []

        def archive() -> None:
            while not is_over.is_set():
                removed.append(second_backend.journal.archive(0))

        thread = threading.Thread(target=archive)
        thread.start()
        try:
            for start in range(0, 300, 20):
                backend.complete_jobs(dict.fromkeys(ids[start : start + 20]))
        finally:
            is_over.set()
            thread.join()
        put(backend, "newest")
        removed.append(backend.journal.archive(0))
        assert sum(each.rows for each in removed) == 900
        assert sum(each.histories for each in removed) == 300
        assert backend.journal.get_archive() == JournalArchive(
            histories=300, rows=900, upto=max(e.upto for e in removed)
        )
        assert backend.get_job_stats().completed_jobs == 300
