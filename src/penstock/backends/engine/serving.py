"""Serving streams: who listens to commits, who takes jobs inside them, what is asked between looks."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from penstock.backends import _arguments as arguments
from penstock.backends._store import HandedOut, Transaction
from penstock.backends.base import Change, Taker
from penstock.backends.engine.claiming import ClaimVerbs, claim_of
from penstock.job import IN_FLIGHT, JobStatus
from penstock.scope import checkpoint

__all__ = ["ServingVerbs"]

logger = logging.getLogger("penstock")


class ServingVerbs(ClaimVerbs):
    """The verbs that the dispatcher of streams needs."""

    _listeners: dict[object, Callable[[Sequence[Change]], None]]
    _listener_lock: threading.Lock
    _taker: Taker | None
    _pid: int

    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        checkpoint()
        handle = object()
        if self._pid != os.getpid():  # a child's listeners are its own
            self._pid, self._listeners, self._listener_lock = os.getpid(), {}, threading.Lock()
        with self._listener_lock:
            self._listeners[handle] = listener
            self._store.on_commit = self._tell_listeners

        def stop() -> None:
            with self._listener_lock:
                self._listeners.pop(handle, None)
                if not self._listeners:
                    self._store.on_commit = None

        return stop

    def _tell_listeners(self, changes: Sequence[Change]) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(changes)
            except Exception:  # a listener's fault must not turn a commit into a failure
                logger.exception("a listener failed")

    def serve(self, taker: Taker) -> Callable[[], None]:
        def claim(tx: Transaction, changes: Sequence[Change]) -> HandedOut | None:
            wishes = taker.wishes(changes)
            if not wishes:
                return None
            try:
                jobs = [self._claim(tx, claim_of(each)) for each in wishes]
            except BaseException:
                taker.receive([])
                raise

            def tell(is_committed: bool | None) -> None:
                if is_committed is None:
                    taker.doubt()
                else:
                    taker.receive(jobs if is_committed else [])

            return tell

        self._store.before_commit = claim
        self._taker = taker

        def stop() -> None:
            if self._store.before_commit is claim:
                self._store.before_commit = self._taker = None

        return stop

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(callback)

    def has_foreign_changes(self) -> bool:
        return self._store.has_foreign_changes()

    def released(self, jobs: Mapping[str, int]) -> dict[str, str]:
        states = self._store.states(list(jobs)) if jobs else {}
        gone: dict[str, str] = {}
        for job_id, attempt in jobs.items():
            status, current, verb = states.get(job_id, ("", -1, ""))
            if current != attempt or status not in IN_FLIGHT:
                gone[job_id] = verb if current == attempt else ""
        return gone

    def statuses(self, job_ids: Sequence[str]) -> dict[str, tuple[JobStatus, int]]:
        wanted = arguments.job_ids(job_ids)
        checkpoint()
        states = self._store.states(list(wanted)) if wanted else {}
        return {job_id: (JobStatus(status), attempt) for job_id, (status, attempt, _) in states.items()}

    def next_due(self) -> float | None:
        due_at = self._store.next_due_at()
        return None if due_at is None else max(0.0, (due_at - self._store.now()) / 1_000_000)

    def ready_filters(self) -> tuple[frozenset[str], frozenset[str]] | None:
        return self._store.ready_filters()

    def has_work(self, types: Sequence[str], tags: Sequence[str] = ()) -> bool:
        wanted = arguments.tags(tags)
        for each in types:
            arguments.optional_text("types", each, arguments.MAX_TYPE)
        checkpoint()
        return bool(types) and self._store.has_work(tuple(dict.fromkeys(types)), wanted)
