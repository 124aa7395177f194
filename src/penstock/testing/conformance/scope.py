"""Cancel scopes: every verb honours the one it is called in."""

from __future__ import annotations

import pytest

from penstock.backends import CALLBACKS, Backend
from penstock.errors import OperationCancelledError
from penstock.job import JobStatus
from penstock.scope import cancel_scope
from penstock.testing.conformance._cells import cells
from penstock.testing.conformance._support import VERBS, WORKER, Suite, drive, put, unchanged

_each_verb = cells("verb", [verb for verb in VERBS if verb != "runtime.listen"])


class Scopes(Suite):
    """Q54: the ambient scope."""

    @_each_verb
    def test_a_verb_in_a_cancelled_scope_does_nothing(self, backend: Backend, verb: str) -> None:
        """Q54, C62b: reads too."""
        drive(backend, JobStatus.RUNNING, tags=["dead", "finished"])
        with unchanged(backend), cancel_scope() as scope:
            scope.cancel()
            with pytest.raises(OperationCancelledError) as caught:
                VERBS[verb](backend, "job")
        assert caught.value.timed_out is False

    @_each_verb
    def test_a_verb_in_an_expired_scope_does_nothing(self, backend: Backend, verb: str) -> None:
        """Q54, C36b, C62b."""
        drive(backend, JobStatus.RUNNING, tags=["dead", "finished"])
        with unchanged(backend), cancel_scope(timeout=0), pytest.raises(OperationCancelledError) as caught:
            VERBS[verb](backend, "job")
        assert caught.value.timed_out is True

    @_each_verb
    def test_a_verb_in_an_open_scope_works_as_without_one(self, backend: Backend, verb: str) -> None:
        """Q54."""
        drive(backend, JobStatus.RUNNING, held=True)
        if verb in {"stop_job_with_retry", "stop_jobs_with_retry"} or verb.startswith("acknowledge"):
            backend.cancel_jobs(job_ids=["job"])
        if verb == "restart_job":
            backend.stop_job("job")
        if verb.endswith("_consumer"):
            backend.journal.register_consumer("reader")
        if verb == "outbox.save_deliveries":
            backend.journal.register_consumer(CALLBACKS)
        with cancel_scope(timeout=60):
            VERBS[verb](backend, "job")

    def test_an_outer_scope_counts_inside_an_inner_one(self, backend: Backend) -> None:
        """Q54."""
        with unchanged(backend), cancel_scope() as outer, cancel_scope(timeout=60):
            outer.cancel()
            with pytest.raises(OperationCancelledError):
                put(backend, "job")

    def test_the_store_works_again_after_the_scope(self, backend: Backend) -> None:
        """Q54."""
        with cancel_scope(timeout=0), pytest.raises(OperationCancelledError):
            put(backend, "job")
        put(backend, "job")
        assert len(backend.dequeue_jobs(WORKER)) == 1
