"""Closing and reopening a store."""

from __future__ import annotations

import pytest

from penstock.backends import ROLES, Backend
from penstock.errors import QueueClosedError
from penstock.job import JobStatus, Key
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._cells import Walk
from penstock.testing.conformance._support import (
    STATUSES,
    VERBS,
    WORKER,
    MakeBackend,
    Suite,
    a_job,
    all_jobs,
    assert_sound,
    claim,
    drive,
    put,
    retry_policy,
    snapshot,
    time_limits,
)


class Closing(Suite):
    """close."""

    def test_a_closed_store_refuses_every_verb(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        """Q51, C18."""
        backend = make_backend(clock=clock)
        drive(backend, JobStatus.RUNNING)
        backend.close()
        walk = Walk()
        for verb, call in VERBS.items():
            with walk.cell(verb), pytest.raises(QueueClosedError):
                call(backend, "job")
        walk.end()

    def test_closing_twice_is_fine(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        """Q51, B16, C18."""
        backend = make_backend(clock=clock)
        backend.close()
        backend.close()

    def test_a_store_is_a_context_manager(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        """Q51, B16."""
        with make_backend(clock=clock) as backend:
            put(backend, "job")
        with pytest.raises(QueueClosedError):
            backend.get_job("job")

    def test_the_catalogue_of_verbs_is_complete(self) -> None:
        """B1: the suite calls every verb of the contract."""
        wanted = set(Backend.__abstractmethods__)
        wanted |= {f"{role}.{name}" for role, cls in ROLES.items() for name in cls.__abstractmethods__}
        assert set(VERBS) | {"close"} == wanted


class Reopening(Suite):
    """Acknowledged changes are there when the store is opened again."""

    def test_everything_survives_a_close(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        """G1, B20, R1."""
        backend = make_backend(clock=clock)
        if not make_backend.shares_store:
            pytest.skip("the store lives in its object")
        for status in sorted(STATUSES, key=lambda status: status.holds_slot):
            drive(backend, status, str(status), tags=["red"], payload=b"\x00work", key=Key(str(status)))
        put(
            backend,
            "waiting",
            after=["running"],
            retry=retry_policy(jitter=0.5),
            timeouts=time_limits(lifetime=9),
        )
        backend.set_blocked(True)
        before = snapshot(backend)
        backend.close()
        with make_backend(clock=clock) as again:
            assert snapshot(again) == before
            again.set_blocked(False)
            again.complete_job("running", b"later")
            claim(again, "waiting")
            assert_sound(again)

    def test_work_continues_where_it_stopped(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        """G1, G27, R14."""
        first = make_backend(clock=clock)
        if not make_backend.shares_store:
            pytest.skip("the store lives in its object")
        put(first, "a", "b", "c", key="k")
        claim(first, "a")
        first.close()
        with make_backend(clock=clock) as second:
            assert second.complete_job("a", attempt=1) == {WORKER: 1}
            claim(second, "b")
        with make_backend(clock=clock) as third:
            third.reset_running_jobs()
            assert claim(third, "b").attempt == 2
            third.enqueue_jobs([a_job(id="d", type="t", key=Key("k"))])
            assert [row.id for row in all_jobs(third)] == ["a", "b", "c", "d"]
            assert_sound(third)

    def test_idempotency_keys_survive(self, make_backend: MakeBackend, clock: ManualClock) -> None:
        """G2, B20."""
        first = make_backend(clock=clock)
        if not make_backend.shares_store:
            pytest.skip("the store lives in its object")
        put(first, "a", idempotency_key="once")
        first.close()
        with make_backend(clock=clock) as second:
            assert put(second, "b", idempotency_key="once") == ["a"]
