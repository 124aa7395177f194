"""Taking jobs in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from penstock.backends import _arguments as arguments
from penstock.backends._spawning import adopted, spawn
from penstock.backends._store import Transaction
from penstock.backends._submission import PlainSubmission, Submission
from penstock.backends.engine.core import EngineCore, written_while_iterated
from penstock.errors import InvalidArgumentError, shown
from penstock.job import Job
from penstock.scope import checkpoint

__all__ = ["SubmissionVerbs"]

T = TypeVar("T")


class SubmissionVerbs(EngineCore):
    """The verbs that store new jobs."""

    def enqueue_job(self, job: Job) -> str:
        arguments.check_job(job, self._options.max_payload)
        if job.is_plain and self._options.max_pending is None:
            return self._write(PlainSubmission(job))
        return self._write(lambda tx: Submission(tx, self._options, check=False).run([job])[0])

    def enqueue_jobs(self, jobs: Iterable[Job]) -> list[str]:
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
            raise InvalidArgumentError(
                f"jobs must be an iterable of Job, got {shown(jobs)}", field="jobs", value=jobs
            )
        if not isinstance(jobs, list | tuple):
            return self._enqueue_from(jobs)
        arguments.check_batch(jobs, self._options.max_payload)
        if not jobs:
            checkpoint()
        return self._write(lambda tx: Submission(tx, self._options, check=False).run_batch(jobs))

    def _enqueue_from(self, jobs: Iterable[Job]) -> list[str]:
        return self._write_iterated(lambda tx: Submission(tx, self._options).run_batch(jobs))

    def publish_jobs(
        self, jobs: Iterable[Job], *, writer: str | None = None, batch: int | None = None
    ) -> int:
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
            raise InvalidArgumentError(
                f"jobs must be an iterable of Job, got {shown(jobs)}", field="jobs", value=jobs
            )
        publication = arguments.publication(writer, batch)

        def work(tx: Transaction) -> int:
            if publication is not None and not tx.note_publication(*publication):
                return 0
            submission = Submission(tx, self._options, skips_stored=True)
            submission.run_batch(jobs)
            return submission.stored

        return self._write(work) if isinstance(jobs, list | tuple) else self._write_iterated(work)

    def _write_iterated(self, work: Callable[[Transaction], T]) -> T:
        """Run work that reads an iterator. That can be read once, so its transaction is run once, and by itself."""
        if self._is_iterated():
            raise written_while_iterated()
        me = threading.get_ident()
        self._iterating.add(me)
        try:
            return self._write_alone(work)
        finally:
            self._iterating.discard(me)

    def spawn_jobs(self, parent_id: str, jobs: Iterable[Job], *, attempt: int | None = None) -> list[str]:
        arguments.job_id(parent_id)
        arguments.attempt(attempt)
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
            raise InvalidArgumentError(
                f"jobs must be an iterable of Job, got {shown(jobs)}", field="jobs", value=jobs
            )
        checked = adopted(parent_id, [arguments.check_job(job, self._options.max_payload) for job in jobs])
        return self._write(lambda tx: spawn(tx, self._options, parent_id, checked, attempt))
