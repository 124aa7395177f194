"""Listening: the notifications about commits that a process gets from its store object."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from penstock.backends import Backend, Change
from penstock.errors import JobExistsError
from penstock.job import JobStatus, Key
from penstock.testing.clock import ManualClock
from penstock.testing.conformance._support import (
    MISSING,
    WORKER,
    Suite,
    a_job,
    claim,
    put,
    put_running,
)

_S = JobStatus


class Listener:
    """A listener that keeps the changes it gets."""

    def __init__(self, backend: Backend) -> None:
        self.changes: list[Change] = []
        self.end = backend.runtime.listen(self._add)

    def _add(self, changes: Sequence[Change]) -> None:
        self.changes += changes

    def take(self) -> list[Change]:
        """Return the changes since the last call."""
        found, self.changes = self.changes, []
        return found

    def steps(self) -> list[tuple[str, str, bool]]:
        """Return (job, verb, available) of the changes since the last call."""
        return [(change.job_id, str(change.verb), change.available) for change in self.take()]


class Listening(Suite):
    """listen."""

    def test_a_change_is_told_before_the_verb_returns(self, backend: Backend) -> None:
        """Q13, R4."""
        listener = Listener(backend)
        put(backend, "job", tags=["red"], key=Key("k"), type="mail")
        (change,) = listener.take()
        assert change == Change(
            job_id="job",
            type="mail",
            key=Key("k"),
            tags=("red",),
            verb="enqueue",
            from_status=None,
            status=_S.INITIAL_PENDING,
            attempt=0,
            assignee_id=None,
            at=backend.now(),
            available=True,
        )
        claim(backend, "job")
        (change,) = listener.take()
        assert (change.verb, change.from_status, change.status) == ("claim", _S.INITIAL_PENDING, _S.RUNNING)
        assert (change.attempt, change.assignee_id, change.available) == (1, WORKER, False)

    def test_a_life_is_told_step_by_step(self, backend: Backend) -> None:
        """Q34."""
        listener = Listener(backend)
        put_running(backend, "job")
        backend.fail_job("job", "boom")
        claim(backend, "job")
        backend.mark_worker_unresponsive(WORKER)
        claim(backend, "job")
        backend.cancel_jobs(job_ids=["job"])
        backend.acknowledge_cancellation("job", True)
        assert listener.steps() == [
            ("job", "enqueue", True),
            ("job", "claim", False),
            ("job", "fail", True),
            ("job", "claim", False),
            ("job", "mark_worker_unresponsive", True),
            ("job", "claim", False),
            ("job", "cancel", False),
            ("job", "acknowledge_cancellation", False),
        ]

    def test_a_met_dependency_makes_its_dependent_available(self, backend: Backend) -> None:
        """C46, R4, Q34."""
        listener = Listener(backend)
        put_running(backend, "first")
        put(backend, "second", after=["first"])
        assert listener.steps()[-1] == ("second", "enqueue", False)
        backend.complete_job("first")
        assert sorted(listener.steps()) == [("first", "complete", False), ("second", "available", True)]

    def test_a_key_whose_turn_moves_on_makes_the_next_one_available(self, backend: Backend) -> None:
        """C46, R4, Q34."""
        listener = Listener(backend)
        put_running(backend, "head", key="k")
        put(backend, "next", "third", key="k")
        assert listener.steps()[-2:] == [("next", "enqueue", False), ("third", "enqueue", False)]
        backend.stop_job("head")
        assert sorted(listener.steps()) == [("head", "stop", False), ("next", "available", True)]

    def test_a_delayed_job_is_available_when_upkeep_finds_it_due(
        self, backend: Backend, clock: ManualClock
    ) -> None:
        """C46, G4."""
        listener = Listener(backend)
        put(backend, "job", run_at=clock.now() + timedelta(seconds=5))
        assert listener.steps() == [("job", "enqueue", False)]
        backend.maintain()
        assert listener.steps() == []
        clock.advance(5)
        backend.maintain()
        assert listener.steps() == [("job", "available", True)]
        backend.maintain()
        assert listener.steps() == []

    def test_a_batch_is_told_whole(self, backend: Backend) -> None:
        """Q17."""
        found: list[int] = []
        backend.runtime.listen(lambda changes: found.append(len(changes)))
        backend.enqueue_jobs([a_job(id=f"job-{number}", type="t") for number in range(50)])
        assert sum(found) == 50

    def test_propagation_is_told(self, backend: Backend) -> None:
        """G26."""
        put(backend, "first")
        put(backend, "second", after=["first"])
        listener = Listener(backend)
        backend.cancel_jobs(job_ids=["first"])
        assert sorted(listener.steps()) == [("first", "cancel", False), ("second", "propagate", False)]

    @pytest.mark.parametrize("how", ["acknowledged", "unresponsive", "reset"])
    def test_verbs_without_a_freed_map_tell_whose_jobs_moved(self, backend: Backend, how: str) -> None:
        """C8: so that a queue can give the slot back to the stream that held the job."""
        put_running(backend, "job")
        if how == "acknowledged":
            backend.cancel_jobs(job_ids=["job"])
        before = backend.get_job("job").status
        listener = Listener(backend)
        if how == "acknowledged":
            backend.acknowledge_cancellation("job", True)
        elif how == "unresponsive":
            backend.mark_worker_unresponsive(WORKER)
        else:
            backend.reset_running_jobs()
        (change,) = listener.take()
        assert (change.job_id, change.from_status, change.assignee_id) == ("job", before, WORKER)
        assert not change.status.holds_slot

    def test_refused_calls_and_reads_tell_nothing(self, backend: Backend) -> None:
        put(backend, "job")
        listener = Listener(backend)
        with pytest.raises(JobExistsError):
            put(backend, "job")
        with pytest.raises(LookupError):
            backend.complete_job(MISSING)
        backend.get_job("job")
        backend.get_job_stats()
        backend.read_journal()
        assert listener.take() == []

    def test_a_listener_that_has_ended_hears_nothing(self, backend: Backend) -> None:
        first, second = Listener(backend), Listener(backend)
        put(backend, "a")
        first.end()
        first.end()
        put(backend, "b")
        assert [change.job_id for change in first.take()] == ["a"]
        assert [change.job_id for change in second.take()] == ["a", "b"]

    def test_only_the_accepted_part_of_a_plural_is_told(self, backend: Backend) -> None:
        put_running(backend, "a", "b")
        listener = Listener(backend)
        with pytest.raises(ExceptionGroup):
            backend.complete_jobs({"a": None, MISSING: None})
        assert listener.steps() == [("a", "complete", False)]
