"""Claiming, running and reporting waves."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, islice
from typing import Any, Final, Self

from penstock.backends import Failure
from penstock.backends.options import StoreOptions
from penstock.errors import PenstockError, ReportErrors, shown
from penstock.job import Job
from penstock.policy import FailureCategory
from penstock.queue import Queue
from penstock.spark.frames._transform import FrameRunner, ResultRow, TasksFailedError
from penstock.spark.transforms.rows import FRAMES_ASSIGNEE

__all__ = ["Waves"]

logger = logging.getLogger("penstock")

_MAX_PAYLOAD: Final = 256_000_000
_MAX_SUB_BATCHES: Final = 64
_MAX_NAMED: Final = 10
_CHUNK: Final = 5_000
_POLL_SECONDS: Final = 0.2


class Waves:
    """Claims, runs and reports waves of one type. The calling thread uses Spark, a thread of the object the store."""

    def __init__(self, queue: Queue, runner: FrameRunner, type_: str, jobs_per_wave: int) -> None:
        self._queue = queue
        self._runner = runner
        self._type = type_
        self._jobs_per_wave = jobs_per_wave
        self._is_type_known = False
        self._assignee = f"{FRAMES_ASSIGNEE}{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._max_result = StoreOptions().max_payload
        self._store = ThreadPoolExecutor(1, "penstock-frames")
        self._ahead: Future[dict[str, Job]] | None = None
        self._reports: list[tuple[dict[str, Job], Future[None]]] = []
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._store:
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead.exception() is None:
                self._release(ahead.result())
            try:
                self._settle()
            except PenstockError as error:
                if kind is None:
                    raise
                logger.warning("jobs could not be reported: %s", error)

    def run_one(self) -> bool:
        """Run one wave; return whether there was a job."""
        ahead, self._ahead = self._ahead, None
        held = (ahead or self._store.submit(self._claim, _MAX_PAYLOAD)).result()
        try:
            if not held:
                self._settle()
                return False
            room = _MAX_PAYLOAD - sum(len(job.payload) for job in held.values())
            if len(held) == self._jobs_per_wave and room >= _MAX_PAYLOAD // 2:
                self._ahead = self._store.submit(self._claim, room)
            self.counts["waves"] += 1
            self._work(held)
        except BaseException:
            self._reports.append((held, self._store.submit(self._release, held)))
            raise
        return True

    def _settle(self) -> None:
        """Wait until all reports are made; release the jobs if one failed."""
        reports, self._reports = self._reports, []
        errors = [error for _, future in reports if (error := future.exception()) is not None]
        if errors:
            for held, _ in reports:
                self._release(held)
            raise errors[0]

    def warn_of_unknown_type(self) -> None:
        """Log, once, if no job has the type: its name may be misspelled."""
        if self._is_type_known or self.counts["waves"]:
            return
        self._is_type_known = True
        types = self._queue.backend.reading.overview().types
        if any(each.type == self._type for each in types):
            return
        ready = [shown(each.type) for each in types if each.ready]
        others = (
            f"jobs of these types are ready: {', '.join(ready[:_MAX_NAMED])}" if ready else "no job is ready"
        )
        more = f" and {len(ready) - _MAX_NAMED} more" if len(ready) > _MAX_NAMED else ""
        logger.warning("no job has the type %s; %s%s", shown(self._type), others, more)

    def wait(self) -> None:
        """Wait until a job may have become ready."""
        due = self._queue.backend.runtime.next_due()
        threading.Event().wait(_POLL_SECONDS if due is None else min(max(due, 0.01), _POLL_SECONDS))

    def _claim(self, room: int) -> dict[str, Job]:
        """Return the jobs of the next wave."""
        held: dict[str, Job] = {}
        try:
            for jobs in self._claimed(room):
                held.update((job.id, job) for job in jobs)
        except BaseException:
            self._release(held)
            raise
        return held

    def _claimed(self, room: int) -> Iterator[list[Job]]:
        left = self._jobs_per_wave
        size = self._max_result  # the largest payload allowed, until some are known
        while left > 0 and room > 0:
            wanted = min(left, _CHUNK, max(1, room // size))
            jobs = self._queue.claim_jobs(self._assignee, wanted, types=[self._type])
            total = list(accumulate(len(job.payload) for job in jobs))
            fitting = bisect_right(total, room)
            yield jobs[:fitting]
            if len(jobs) < wanted or fitting < len(jobs):
                self._release({job.id: job for job in jobs[fitting:]})
                return
            left -= len(jobs)
            room -= total[-1]
            size = min(self._max_result, max(1024, 4 * max(len(job.payload) for job in jobs)))

    def _work(self, held: dict[str, Job]) -> None:
        """Run a wave, in halves if tasks fail, and report its jobs. Reported jobs are removed from `held`."""
        batches = deque([list(held.values())])
        tries = 0
        while batches:
            batch = batches.popleft()
            if tries > _MAX_SUB_BATCHES:
                why = (
                    f"the batch failed and was halved {_MAX_SUB_BATCHES} times; this job may not be the cause"
                )
                self._report_later(held, {}, {job.id: Failure(message=why) for job in batch})
                continue
            tries += 1
            try:
                rows, repeated = self._runner.run(batch)
            except TasksFailedError as error:
                if len(batch) == 1:
                    self._report_later(held, {}, {batch[0].id: Failure(message=str(error))})
                else:
                    half = len(batch) // 2
                    batches += (batch[:half], batch[half:])
                continue
            self._report_later(held, *self._split_by_outcome(batch, rows, repeated))

    def _split_by_outcome(
        self, batch: Sequence[Job], rows: Mapping[str, ResultRow], repeated: set[str]
    ) -> tuple[dict[str, bytes | None], dict[str, Failure]]:
        done: dict[str, bytes | None] = {}
        failed: dict[str, Failure] = {}
        for job in batch:
            row = rows.get(job.id)
            if job.id in repeated:
                failed[job.id] = _permanent("more than one row came back")
            elif row is None:
                failed[job.id] = Failure(message="no row came back")
            elif row.error is not None:
                failed[job.id] = Failure(
                    message=row.error or "(no message)", category=_category(row.category)
                )
            elif row.result is not None and len(row.result) > self._max_result:
                failed[job.id] = _permanent(
                    f"the result has {len(row.result)} bytes; the limit is {self._max_result}"
                )
            else:
                done[job.id] = row.result
        return done, failed

    def _report_later(
        self, held: dict[str, Job], done: Mapping[str, bytes | None], failed: Mapping[str, Failure]
    ) -> None:
        """Report jobs on the store's thread. An error of an earlier report is raised here, or at the end."""
        unfinished = []
        for each in self._reports:
            if each[1].done():
                each[1].result()
            else:
                unfinished.append(each)
        self._reports = [*unfinished, (held, self._store.submit(self._report, held, done, failed))]

    def _report(
        self, held: dict[str, Job], done: Mapping[str, bytes | None], failed: Mapping[str, Failure]
    ) -> None:
        """Report jobs, count the accepted reports, and remove the jobs from `held`."""
        self.counts["completed"] += self._report_chunks(held, done, self._queue.complete_jobs)
        self.counts["failed"] += self._report_chunks(held, failed, self._queue.fail_jobs)

    @staticmethod
    def _report_chunks(held: dict[str, Job], values: Mapping[str, Any], verb: Callable[..., None]) -> int:
        count = 0
        source = iter(values.items())
        while chunk := dict(islice(source, _CHUNK)):
            refused: Sequence[Exception] = ()
            try:
                verb(chunk, attempts={job_id: held[job_id].attempt for job_id in chunk})
            except ReportErrors as errors:
                refused = errors.exceptions
                logger.warning("%d of %d reports came too late: %s", len(refused), len(chunk), refused[0])
            count += len(chunk) - len(refused)
            for job_id in chunk:
                del held[job_id]
        return count

    def _release(self, held: Mapping[str, Job]) -> None:
        source = iter(held.values())
        try:
            while chunk := list(islice(source, _CHUNK)):
                self._queue.release_jobs(
                    {job.id: "the wave was given up" for job in chunk},
                    attempts={job.id: job.attempt for job in chunk},
                )
        except PenstockError as error:  # they are reclaimed when the heartbeats of this queue end
            logger.warning("jobs could not be released: %s", error)


def _permanent(message: str) -> Failure:
    return Failure(message=message, category=FailureCategory.PERMANENT)


def _category(name: str | None) -> FailureCategory:
    try:
        return FailureCategory.TEMPORARY if name is None else FailureCategory(name.lower())
    except ValueError:
        return FailureCategory.TEMPORARY
