from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from penstock.backends.contract.runtime import Runtime
from penstock.backends.contract.values import Change, Claimer, NextStep
from penstock.backends.engine import arguments
from penstock.backends.engine.access import StoreAccess
from penstock.backends.engine.claiming import checked_claims, claim_all
from penstock.backends.engine.rows import micros_of, moment_at
from penstock.backends.engine.store import AfterCommit, State, Transaction
from penstock.durations import duration
from penstock.job import IN_FLIGHT, JobStatus
from penstock.lifecycle import Verb
from penstock.scope import checkpoint

__all__ = ["EngineRuntime"]

logger = logging.getLogger("penstock")

_GONE = State("", -1, "", None, None, None)


class EngineRuntime(Runtime):
    """What queues and workers need while they run, over a `Store`."""

    def __init__(self, access: StoreAccess, *, is_new: bool) -> None:
        self._store = access.store
        self.poll_seconds = access.store.poll_seconds
        self.is_new = is_new
        self._listeners: dict[object, Callable[[Sequence[Change]], None]] = {}
        self._listener_lock = threading.Lock()
        self._pid = os.getpid()

    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        checkpoint()
        handle = object()
        if self._pid != os.getpid():  # a child's listeners are its own
            self._pid, self._listeners, self._listener_lock = os.getpid(), {}, threading.Lock()
        with self._listener_lock:
            self._listeners[handle] = listener
            self._store.on_commit = self._notify

        def stop() -> None:
            with self._listener_lock:
                self._listeners.pop(handle, None)
                if not self._listeners:
                    self._store.on_commit = None

        return stop

    def _notify(self, changes: Sequence[Change]) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(changes)
            except Exception:  # a listener's fault must not turn a commit into a failure
                logger.exception("a listener failed")

    def serve(self, claimer: Claimer) -> Callable[[], None]:
        def claim(tx: Transaction, changes: Sequence[Change]) -> AfterCommit | None:
            requests = claimer.requested(changes)
            if not requests:
                return None
            try:
                jobs = claim_all(tx, checked_claims(requests))
            except BaseException:
                claimer.deliver([])
                raise

            def after_commit(is_committed: bool | None) -> None:
                if is_committed is None:
                    claimer.outcome_unknown()
                else:
                    claimer.deliver(jobs if is_committed else [])

            return after_commit

        self._store.before_commit, self._store.is_wanted = claim, claimer.wants

        def stop() -> None:
            if self._store.before_commit is claim:
                self._store.before_commit = self._store.is_wanted = None

        return stop

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(callback)

    def has_foreign_changes(self) -> bool:
        return self._store.has_foreign_changes()

    def released(self, jobs: Mapping[str, int]) -> dict[str, str]:
        wanted = arguments.attempts(jobs)
        states = self._store.states(list(wanted)) if wanted else {}
        gone: dict[str, str] = {}
        for job_id, attempt in wanted.items():
            status, current, verb, *_ = states.get(job_id, _GONE)
            if current != attempt or status not in IN_FLIGHT:
                is_stopped = verb == Verb.ACKNOWLEDGE and status == JobStatus.STOPPED
                gone[job_id] = verb if current == attempt and not is_stopped else ""
        return gone

    def unresponsive(self, assignee_ids: Collection[str]) -> set[str]:
        wanted = arguments.strings("assignee_ids", assignee_ids, arguments.MAX_ID)
        checkpoint()
        return self._store.unresponsive(wanted) if wanted else set()

    def statuses(self, job_ids: Sequence[str]) -> dict[str, tuple[JobStatus, int]]:
        wanted = arguments.job_ids(job_ids)
        checkpoint()
        states = self._store.states(list(wanted)) if wanted else {}
        return {job_id: (JobStatus(state.status), state.attempt) for job_id, state in states.items()}

    def next_steps(self, job_ids: Sequence[str]) -> dict[str, NextStep]:
        wanted = arguments.job_ids(job_ids)
        checkpoint()
        states = self._store.states(list(wanted)) if wanted else {}
        return {
            job_id: NextStep(
                status=JobStatus(state.status),
                attempt=state.attempt,
                due_at=None if state.due_at is None else moment_at(state.due_at),
                owner=state.owner,
                number=state.seq,
            )
            for job_id, state in states.items()
        }

    def next_due(self) -> float | None:
        due_at = self._store.next_due_at()
        return None if due_at is None else max(0.0, (due_at - self._store.now()) / 1_000_000)

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        return self._store.ready_filters()

    def has_work(self, types: Sequence[str], tags: Sequence[str] = ()) -> bool:
        wanted = arguments.tags(tags)
        wanted_types = arguments.strings("types", types, arguments.MAX_TYPE)
        checkpoint()
        return bool(wanted_types) and self._store.has_work(wanted_types, wanted)

    def take_upkeep(self, interval: timedelta) -> bool:
        return self._store.take_upkeep(micros_of(duration(interval, "interval")))
