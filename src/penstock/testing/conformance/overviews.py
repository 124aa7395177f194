"""Overviews for operators: jobs by type, waiting jobs and their reasons, owners and their jobs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from penstock.backends import Backend, Delivery
from penstock.backends.contract.overview import Intake, Overview, TypeView
from penstock.errors import InvalidArgumentError
from penstock.job import JobStatus, Key
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import (
    STATUSES,
    WORKER,
    Suite,
    a_job,
    claim,
    drive,
    put,
    refused,
    unchanged,
)

_S = JobStatus


def type_of(overview: Overview, name: str) -> TypeView:
    """Return one type's part of an overview."""
    (found,) = [each for each in overview.types if each.type == name]
    return found


class Overviews(Suite):
    """overview."""

    def test_an_empty_store_has_nothing_to_show(self, backend: Backend, clock: ManualClock) -> None:
        """Issue 7."""
        found = backend.reading.overview()
        assert found.at == clock.now()
        assert found.schema_version >= 1
        assert not found.is_blocked
        assert (found.types, found.owners) == ((), ())
        assert (found.ready, found.delayed, found.waiting, found.running) == (0, 0, 0, 0)
        assert found.oldest_ready is None
        assert (found.undelivered, found.given_up) == (0, 0)

    @cells("status", STATUSES)
    def test_jobs_are_counted_by_type_and_status(self, backend: Backend, status: JobStatus) -> None:
        """Issue 7."""
        job = drive(backend, status)
        (found,) = backend.reading.overview().types
        assert found.type == job.type
        assert dict(found.jobs) == {status: 1}
        assert backend.reading.overview().jobs == {status: 1}

    def test_types_are_told_apart_and_come_by_name(self, backend: Backend) -> None:
        """Issue 7."""
        backend.enqueue_jobs([a_job(id=f"job-{n}", type="ab"[n % 2]) for n in range(10)])
        done = backend.dequeue_jobs(WORKER, types=["b"], limit=3)
        backend.complete_jobs({job.id: None for job in done[:2]})
        found = backend.reading.overview()
        assert [each.type for each in found.types] == ["a", "b"]
        assert dict(type_of(found, "a").jobs) == {_S.INITIAL_PENDING: 5}
        assert dict(type_of(found, "b").jobs) == {_S.INITIAL_PENDING: 2, _S.RUNNING: 1, _S.COMPLETED: 2}
        assert (found.pending, found.running, found.ready) == (7, 1, 7)
        assert found.jobs == {_S.INITIAL_PENDING: 7, _S.RUNNING: 1, _S.COMPLETED: 2}

    def test_counts_are_the_same_before_and_after_upkeep(self, backend: Backend) -> None:
        """A store may fold its counts in the background."""
        for status in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, status, str(status))
        backend.update_job("running", tags=["red"])
        before = backend.reading.overview().types
        backend.maintain()
        assert backend.reading.overview().types == before
        put(backend, "later")
        assert backend.reading.overview().pending == 1 + sum(each.pending for each in before)

    def test_removed_jobs_are_no_longer_stored_but_were_entered(self, backend: Backend) -> None:
        """Counters of entries only grow, so that a rate can be computed."""
        job = drive(backend, _S.COMPLETED)
        backend.delete_jobs(job_ids=[job.id])
        for _ in range(2):
            (found,) = backend.reading.overview().types
            assert dict(found.jobs) == {}
            assert dict(found.entered) == {_S.INITIAL_PENDING: 1, _S.RUNNING: 1, _S.COMPLETED: 1}
            backend.maintain()

    def test_each_entry_into_a_status_counts(self, backend: Backend) -> None:
        """Issue 7."""
        put(backend, "job")
        for _ in range(3):
            claim(backend, "job")
            backend.fail_job("job", "boom")
        backend.update_job("job", priority=1)  # which enters nothing
        (found,) = backend.reading.overview().types
        assert dict(found.entered) == {_S.INITIAL_PENDING: 1, _S.RUNNING: 3, _S.FAILED_RETRY: 3}

    def test_what_is_archived_stays_counted(self, backend: Backend, clock: ManualClock) -> None:
        """Issue 7."""
        drive(backend, _S.COMPLETED)
        put(backend, "newest")
        before = backend.reading.overview().types
        clock.advance(10)
        assert backend.journal.archive(timedelta(seconds=1)).rows > 0
        assert backend.reading.overview().types == before

    def test_what_waits_is_told_apart_by_what_it_waits_for(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Ready, delayed, and waiting for others, a key's turn or a claim by id."""
        put(backend, "ready")
        put(backend, "delayed", run_at=clock.now() + timedelta(seconds=60))
        put(backend, "dependent", after=("ready",))
        put(backend, "first", key=Key("k"))
        put(backend, "second", key=Key("k"))
        put(backend, "held", held=True)
        found = backend.reading.overview()
        assert (found.ready, found.delayed, found.waiting) == (2, 1, 3)
        clock.advance(60)  # without upkeep or a claim
        found = backend.reading.overview()
        assert (found.ready, found.delayed, found.waiting) == (3, 0, 3)
        backend.maintain()
        assert backend.reading.overview() == found

    def test_the_oldest_ready_job_tells_how_long_it_waits(self, backend: Backend, clock: ManualClock) -> None:
        """Issue 7."""
        put(backend, "urgent", priority=0)
        clock.advance(5)
        backend.enqueue_job(a_job(id="other", type="other"))
        clock.advance(5)
        found = backend.reading.overview()
        assert found.oldest_ready == timedelta(seconds=10)
        assert type_of(found, "other").oldest_ready_at == clock.now() - timedelta(seconds=5)
        claim(backend, "urgent")
        assert backend.reading.overview().oldest_ready == timedelta(seconds=5)
        claim(backend, "other")
        assert backend.reading.overview().oldest_ready is None

    def test_a_delayed_job_waits_from_the_moment_it_is_due(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """Issue 7."""
        put(backend, "job", run_at=clock.now() + timedelta(seconds=60))
        assert backend.reading.overview().oldest_ready is None
        clock.advance(67)
        assert backend.reading.overview().oldest_ready == timedelta(seconds=7)
        backend.maintain()
        assert backend.reading.overview().oldest_ready == timedelta(seconds=7)

    def test_the_block_is_shown(self, backend: Backend) -> None:
        """Issue 7."""
        backend.set_blocked(True)
        assert backend.reading.overview().is_blocked

    def test_undelivered_callbacks_are_counted(self, backend: Backend, clock: ManualClock) -> None:
        """Issue 7."""
        backend.journal.register_consumer("callbacks")
        backend.journal.hold_consumer("callbacks", "me", 60)
        waiting = Delivery(seq=1, event_id="e1", url="https://x/", lane="x", body=b"{}", due_at=clock.now())
        given_up = Delivery(seq=2, event_id="e2", url="https://x/", lane="x", body=b"{}", due_at=None)
        backend.outbox.save_deliveries("me", [waiting, given_up])
        found = backend.reading.overview()
        assert (found.undelivered, found.given_up) == (1, 1)

    def test_looking_changes_nothing(self, backend: Backend) -> None:
        """Issue 7."""
        drive(backend, _S.RUNNING)
        with unchanged(backend):
            backend.reading.overview()


class Intakes(Suite):
    """The intakes that owners publish."""

    def test_an_owner_is_shown_with_its_process(self, backend: Backend, clock: ManualClock) -> None:
        """Issue 7."""
        began = clock.now()
        owner = backend.owners.open()
        clock.advance(3)
        backend.owners.beat(owner)
        (found,) = backend.reading.overview().owners
        assert (found.id, found.pid, found.is_alive) == (owner, os.getpid(), True)
        assert found.host
        assert (found.opened_at, found.beat_at) == (began, clock.now())
        assert (found.intakes, found.slots, found.running) == ((), 0, 0)
        backend.owners.close(owner)
        assert backend.reading.overview().owners == ()

    def test_an_owner_is_shown_with_the_jobs_it_holds(self, backend: Backend) -> None:
        """Issue 7."""
        put(backend, "a", "b", "c")
        owner, idle = backend.owners.open(), backend.owners.open()
        backend.dequeue_jobs(WORKER, limit=2, owner=owner)
        backend.cancel_jobs(job_ids=["a"])
        running = {each.id: each.running for each in backend.reading.overview().owners}
        assert running == {owner: 2, idle: 0}
        backend.complete_jobs({"a": None, "b": None})
        assert all(not each.running for each in backend.reading.overview().owners)

    def test_what_it_takes_is_told_with_a_beat_and_stays(self, backend: Backend) -> None:
        """DESIGN 2: the store knows which types living workers handle."""
        owner = backend.owners.open()
        takes = [Intake(types=("a", "b"), tags=("gpu",), slots=4, waiting=3), Intake(slots=2)]
        assert backend.owners.beat(owner, intakes=takes)
        backend.owners.beat(owner)
        (found,) = backend.reading.overview().owners
        assert found.intakes == tuple(takes)
        assert (found.slots, found.free, found.waiting) == (6, 6, 3)
        backend.owners.beat(owner, intakes=[])
        assert backend.reading.overview().owners[0].intakes == ()

    def test_an_owner_whose_jobs_all_wait_for_others_is_stalled(self, backend: Backend) -> None:
        """DESIGN 2: only if it has no slot for another job."""
        owner = backend.owners.open()
        backend.enqueue_jobs([a_job(id=name) for name in ("a", "b")])
        backend.dequeue_jobs("w", limit=2, owner=owner)
        for slots, waiting, is_stalled in [
            (2, 2, True),
            (2, 1, False),
            (3, 2, False),
            (1, 2, True),
            (0, 0, False),
        ]:
            backend.owners.beat(owner, intakes=[Intake(slots=slots, waiting=waiting)])
            (found,) = backend.reading.overview().owners
            assert (found.waiting, found.is_stalled) == (waiting, is_stalled)

    def test_a_type_that_nobody_takes_is_named(self, backend: Backend) -> None:
        """DESIGN 2."""
        backend.enqueue_jobs([a_job(id=name, type=name) for name in ("handled", "lonely")])
        backend.enqueue_job(a_job(id="waiting", type="waiting", after=("lonely",)))
        assert backend.reading.overview().unhandled == ("handled", "lonely")
        owner = backend.owners.open()
        backend.owners.beat(owner, intakes=[Intake(types=("handled",), slots=1)])
        assert backend.reading.overview().unhandled == ("lonely",)
        backend.owners.beat(owner, intakes=[Intake(slots=1)])  # takes any type
        assert backend.reading.overview().unhandled == ()
        backend.owners.close(owner)
        assert backend.reading.overview().unhandled == ("handled", "lonely")

    def test_an_owner_that_is_not_known_tells_nothing(self, backend: Backend) -> None:
        """Issue 7."""
        assert backend.owners.beat("missing", intakes=[Intake(slots=1)]) is False
        assert backend.reading.overview().owners == ()

    def test_another_object_on_the_store_sees_the_same(
        self, backend: Backend, second_backend: Backend
    ) -> None:
        """Issue 7."""
        put(backend, "a", "b")
        owner = backend.owners.open()
        backend.owners.beat(owner, intakes=[Intake(types=("x",), slots=3)])
        backend.dequeue_jobs(WORKER, owner=owner)
        assert second_backend.reading.overview() == backend.reading.overview()

    @cells(
        "intakes",
        [
            "text",
            5,
            [5],
            [Intake(slots=-1)],
            [Intake(slots=True)],
            [Intake(types=("",))],
            [Intake(tags=("a\x00",))],
            [Intake()] * 1001,
        ],
        ids=lambda value: repr(value)[:40],
    )
    def test_wrong_intakes_are_refused(self, backend: Backend, intakes: Any) -> None:
        """Q55."""
        owner = backend.owners.open()
        with refused(backend, InvalidArgumentError):
            backend.owners.beat(owner, intakes=intakes)
