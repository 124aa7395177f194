"""Slots that jobs lend while they wait for other jobs.

A job that waits for another one (`handle.result()` in a handler) occupies a slot and does nothing. If all slots are
taken by such jobs, the jobs that they wait for would never run. So while a job waits and no slot is idle, the worker
claims the job that is waited for and runs it beside its slots, one at a time for each job that waits. If that job cannot
run yet, one that it depends on, or the first one of its key, is claimed instead.

What is claimed this way is always the precondition of a waiting job, so the number of jobs beside the slots is bounded by the depth
of the waiting, not by the length of the queue; and in any case by `MAX_LENT`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from penstock.errors import PenstockError
from penstock.job import Job, Key
from penstock.queue import Queue
from penstock.worker.run import Run

__all__ = ["Lending", "LendingWorker", "PipeLender", "RunLender"]

logger = logging.getLogger("penstock.worker")

MAX_LENT: Final = 64
#: Between two attempts to find a job that can run in place of one that waits; doubles up to the maximum.
MIN_RETRY_SECONDS: Final = 0.25
MAX_RETRY_SECONDS: Final = 2.0
#: A job that has waited for this long is counted for operators.
LONG_WAIT: Final = 1.0
MAX_EXAMINED: Final = 200
MAX_KEYS: Final = 5
MAX_NAMED: Final = 5


class LendingWorker(Protocol):
    """The part of a worker that lending uses."""

    name: str

    def runs(self) -> list[Run]: ...

    def has_idle_slot(self) -> bool: ...

    def claim_one(self, *, job_ids: Collection[str] | None = None, key: Key | None = None) -> Job | None:
        """Claim a job that this worker could run, beyond its slots."""
        ...

    def run_beside(self, job: Job, on_end: Callable[[], None]) -> None:
        """Run a claimed job beside the slots."""
        ...

    def set_waiting(self, number: int) -> None:
        """Publish how many jobs wait for others."""
        ...


class _Wait:
    """A run that waits: for which jobs, since when, and whether another job runs in its place."""

    __slots__ = ("is_lent", "jobs", "pause", "since", "try_at")

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self.since = time.monotonic()
        self.is_lent = False
        self.pause = MIN_RETRY_SECONDS
        self.try_at = 0.0


class Lending:
    """Keeps the jobs of one worker that wait for others, and runs those beside the slots."""

    def __init__(self, worker: LendingWorker, queue: Queue) -> None:
        self._worker = worker
        self._queue = queue
        self._lock = threading.Lock()
        self._waits: dict[Run, _Wait] = {}
        self._lent = 0
        self._published = 0
        self._is_closed = False
        self._has_warned = False
        self._has_lent = False

    def lender(self, run: Run) -> RunLender:
        """Return what a run calls when it begins or ends to wait."""
        return RunLender(self, run)

    def close(self) -> None:
        """Lend no more: the worker drains."""
        with self._lock:
            self._is_closed = True

    # -- called by runs -----------------------------------------------------------------------------------------

    def begin(self, run: Run, job_id: str, *, may_block: bool) -> None:
        """Note that a run waits for a job; unless this thread must not block, find one to run in its place at once."""
        with self._lock:
            wait = self._waits.setdefault(run, _Wait())
            wait.jobs[job_id] += 1
            wait.try_at, wait.pause = 0.0, MIN_RETRY_SECONDS
        if may_block:
            self._lend(run)

    def end(self, run: Run, job_id: str) -> None:
        """Note that a run does not wait for a job any more."""
        with self._lock:
            wait = self._waits.get(run)
            if wait is None:
                return
            wait.jobs[job_id] -= 1
            if wait.jobs[job_id] <= 0:
                del wait.jobs[job_id]
            if not wait.jobs:
                del self._waits[run]

    # -- called by the watch ------------------------------------------------------------------------------------

    def review(self) -> None:
        """Lend for waiting runs that could not before, and publish how many wait. Called several times a second."""
        if not self._waits and not self._published:
            return
        now = time.monotonic()
        with self._lock:
            due = [run for run, wait in self._waits.items() if not wait.is_lent and wait.try_at <= now]
        for run in due:
            self._lend(run)
        self._publish(now)

    def _publish(self, now: float) -> None:
        with self._lock:
            long = {
                run: list(wait.jobs) for run, wait in self._waits.items() if now - wait.since >= LONG_WAIT
            }
        if len(long) != self._published:
            self._published = len(long)
            self._worker.set_waiting(len(long))
        running = self._worker.runs()
        is_stalled = bool(long) and not self._worker.has_idle_slot() and all(run in long for run in running)
        if is_stalled and not self._has_warned:
            self._warn(long)
        self._has_warned = is_stalled

    def _warn(self, long: dict[Run, list[str]]) -> None:
        """Log that every job here waits, for which jobs, and their statuses."""
        awaited = {job_id for ids in long.values() for job_id in ids}
        statuses = self._queue.backend.runtime.statuses(list(awaited)[:MAX_EXAMINED])
        pairs = [
            f"{run.job.type} {run.job.id} for {job_id} ({statuses[job_id][0] if job_id in statuses else 'unknown'})"
            for run, ids in long.items()
            for job_id in ids
        ]
        logger.warning(
            "all %d jobs of worker %s wait for other jobs, and none of those can run here now: %s%s",
            len(long),
            self._worker.name,
            ", ".join(pairs[:MAX_NAMED]),
            " …" if len(pairs) > MAX_NAMED else "",
            extra={"event": "worker.waiting", "worker": self._worker.name},
        )

    # -- lending ------------------------------------------------------------------------------------------------

    def _lend(self, run: Run) -> None:
        """Run a job in the place of one that waits, if there is one and every slot is busy."""
        with self._lock:
            wait = self._waits.get(run)
            if wait is None or wait.is_lent or self._is_closed or self._lent >= MAX_LENT:
                return
            if self._worker.has_idle_slot():
                return  # it is as good as a lent one
            wait.is_lent = True
            self._lent += 1
            awaited = list(wait.jobs)
        job: Job | None = None
        try:
            job = self._find(awaited)
        except PenstockError as error:
            logger.warning("no job is claimed in the place of job %s, which waits: %s", run.job.id, error)
        finally:
            if job is None:
                self._returned(wait)
        if job is not None:
            self._log_lent(run, awaited, job)
            self._worker.run_beside(job, lambda: self._came_back(run, wait))

    def _log_lent(self, run: Run, awaited: Sequence[str], job: Job) -> None:
        """Log which job runs in place of which; the first time as a warning that explains it."""
        level, why = logging.DEBUG, ""
        if not self._has_lent:
            self._has_lent = True
            level = logging.WARNING
            why = (
                " (logged once). Jobs that wait for others hold slots and processes; a job submitted with after= holds"
                " none until the others have ended"
            )
        logger.log(
            level,
            "every slot is busy, and job %s waits for %s: %s %s runs in its place, beside the slots%s",
            run.job.id,
            ", ".join(awaited[:MAX_NAMED]),
            job.type,
            job.id,
            why,
            extra={"event": "worker.lent", "worker": self._worker.name},
        )

    def _returned(self, wait: _Wait) -> None:
        with self._lock:
            wait.is_lent = False
            wait.try_at = time.monotonic() + wait.pause
            wait.pause = min(2 * wait.pause, MAX_RETRY_SECONDS)
            self._lent -= 1

    def _came_back(self, run: Run, wait: _Wait) -> None:
        """Note that what ran in place of a run has ended; it may wait for more."""
        self._returned(wait)
        with self._lock:
            wait.try_at, wait.pause = 0.0, MIN_RETRY_SECONDS
        self._lend(run)

    def _find(self, awaited: Sequence[str]) -> Job | None:
        """Claim a job that is waited for, or one that must end before it."""
        wanted = self._unfinished(awaited)
        job = self._claim(wanted)
        level, seen = wanted, dict(wanted)
        while job is None and level and len(seen) < MAX_EXAMINED:
            before = {each for one in level.values() for each in (*one.after, *one.after_any)} - seen.keys()
            level = self._unfinished(sorted(before))
            seen |= level
            job = self._claim(level)
        keys = list(dict.fromkeys(one.key for one in seen.values() if one.key is not None))
        for key in keys[:MAX_KEYS]:
            job = job or self._worker.claim_one(key=key)
        return job

    def _unfinished(self, ids: Sequence[str]) -> dict[str, Job]:
        if not ids:
            return {}
        found = self._queue.backend.get_jobs(ids[:MAX_EXAMINED])
        return {job_id: job for job_id, job in found.items() if job.status.is_eligible and not job.held}

    def _claim(self, jobs: Collection[str]) -> Job | None:
        return self._worker.claim_one(job_ids=jobs) if jobs else None


class RunLender:
    """Notifies the lending of a worker that a run waits."""

    def __init__(self, lending: Lending, run: Run) -> None:
        self._lending = lending
        self._run = run

    def begin_wait(self, job_id: str, *, may_block: bool) -> None:
        self._lending.begin(self._run, job_id, may_block=may_block)

    def end_wait(self, job_id: str) -> None:
        self._lending.end(self._run, job_id)


class PipeLender:
    """As `RunLender`, for a job in a process, which asks again and again whether another job has ended."""

    def __init__(self, lender: RunLender) -> None:
        self._lender = lender
        self._jobs: set[str] = set()

    def begin_wait(self, job_id: str, *, may_block: bool) -> None:
        if job_id not in self._jobs:
            self._jobs.add(job_id)
            self._lender.begin_wait(job_id, may_block=may_block)

    def end_wait(self, job_id: str) -> None:
        """Do nothing: the process asks again, unless `settle` is called."""

    def settle(self, job_id: str) -> None:
        """The process has its answer, or asks no more."""
        if job_id in self._jobs:
            self._jobs.discard(job_id)
            self._lender.end_wait(job_id)

    def close(self) -> None:
        """The process has ended."""
        for job_id in list(self._jobs):
            self.settle(job_id)
