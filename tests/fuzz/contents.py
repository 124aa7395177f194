"""What a store holds, compared before and after a call that was refused."""

import contextlib
from typing import Any

from tests.fuzz.values import FEW, VALUES

from penstock import Backend, Job, JobStatus, PenstockError
from penstock.errors import ReportErrors

#: The job that calls are about.
RUNNING = "running-1"


class Contents:
    """Notes what a store holds; a refused call must leave it so, an accepted one is undone as far as the next needs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._is_quick = "memory" in repr(backend).lower()
        self._seq = 0
        self._ids: dict[str, None] = {}
        self.refresh()

    @property
    def hooks(self) -> dict[str, Any]:
        """What `misbehaviour` does with this store."""
        return {
            "after_refusal": self.compare,
            "after_success": self.refresh,
            "values": VALUES if self._is_quick else FEW,
        }

    def refresh(self) -> None:
        """Note what the store holds now, with a running job in it."""
        self._put_back()
        while rows := self._backend.read_journal(after=self._seq, limit=1000):
            self._seq = rows[-1].seq
            self._ids |= dict.fromkeys(row.job_id for row in rows)
        self._held = self._read()

    def compare(self, error: BaseException) -> None:
        """Assert that a call which raised this error changed nothing; a plural verb may have done a part."""
        if isinstance(error, ReportErrors):
            self.refresh()
        else:
            assert self._read() == self._held

    def _read(self) -> tuple[Any, ...]:
        backend = self._backend
        jobs = backend.get_jobs(list(self._ids)[-20:])
        if not self._is_quick:
            return backend.read_journal(after=self._seq, limit=10), jobs
        return (
            backend.read_journal(after=self._seq, limit=10),
            jobs,
            backend.reading.get_output(RUNNING),
            backend.is_blocked(),
            backend.journal.list_consumers(),
            backend.outbox.list_schedules(),
            backend.outbox.list_deliveries(limit=10),
        )

    def _put_back(self) -> None:
        """Have the job running again, and the store open for new ones."""
        backend = self._backend
        backend.set_blocked(False)
        job = backend.get_jobs([RUNNING]).get(RUNNING)
        if job is not None and job.status is JobStatus.RUNNING and job.assignee_id == "w":
            return
        with contextlib.suppress(PenstockError):
            backend.stop_job(RUNNING)
        with contextlib.suppress(PenstockError):
            backend.cancel_jobs(job_ids=[RUNNING])
        with contextlib.suppress(PenstockError):
            backend.delete_jobs(job_ids=[RUNNING])
        backend.enqueue_job(Job(id=RUNNING, type="t", tags=("x",)))
        assert [each.id for each in backend.dequeue_jobs("w", job_ids=[RUNNING])] == [RUNNING]
