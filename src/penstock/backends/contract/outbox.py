from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.backends.contract.values import Delivery, JobEnd, Schedule
from penstock.errors import invalid
from penstock.job import Job, JobStatus, JournalEntry

if TYPE_CHECKING:
    from penstock.backends.contract.backend import Backend

__all__ = ["Outbox"]


class Outbox(ABC):
    """Callbacks to deliver, and where periodic schedules stand."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def read_ends(
        self, after: int, limit: int = 100, *, max_result: int = 65_536
    ) -> tuple[list[JobEnd], int]:
        """Return ends of jobs that have a callback url, from the journal rows above `after`, and how far it looked.

        An end is a row whose status is final and was not before, or was another. A job that was deleted meanwhile
        is left out. Call again from where it looked to, until that stays the same.

        Args:
            after: the last row that was looked at before.
            limit: at most so many ends.
            max_result: larger results are left out.
        """
        for field, value in (("limit", limit), ("max_result", max_result)):
            if type(value) is not int or value < 1:
                raise invalid(field, "a whole number of at least 1", value)
        rows = self._backend.read_journal(after, 1000)
        ended = [row for row in rows if row.status.is_final and row.from_status is not row.status]
        jobs = self._backend.get_jobs({row.job_id for row in ended})
        ends = [
            _end_of(row, jobs[row.job_id], max_result)
            for row in ended
            if row.job_id in jobs and jobs[row.job_id].callback_url is not None
        ]
        if len(ends) > limit:
            return ends[:limit], ends[limit - 1].entry.seq
        return ends, rows[-1].seq if rows else after

    @abstractmethod
    def save_deliveries(
        self,
        holder: str,
        deliveries: Sequence[Delivery] = (),
        *,
        done: Sequence[int] = (),
        seq: int | None = None,
    ) -> bool:
        """Write deliveries, remove those that are `done` (by their `seq`), and advance the consumer CALLBACKS to `seq`.

        False, and nothing is changed, unless `holder` holds that consumer.

        Raises:
            InvalidArgumentError: the consumer is not registered, or the journal has no such `seq` yet.
        """

    @abstractmethod
    def due_deliveries(self, limit: int = 100, *, per_lane: int = 1) -> list[Delivery]:
        """Return deliveries that are due now, longest due first, at most `per_lane` per lane."""

    @abstractmethod
    def list_deliveries(self, after: int = 0, limit: int = 100) -> list[Delivery]:
        """Return a page of what is not delivered, given up or not, by `seq`, from above `after`; limit 1 to 1000."""

    @abstractmethod
    def count_deliveries(self) -> tuple[int, int]:
        """Return how many deliveries wait, and how many were given up."""

    @abstractmethod
    def retry_deliveries(self) -> int:
        """Make due again what was given up, as if it had never been tried. Returns how many.

        `maintain` forgets what was given up 30 days ago.
        """

    @abstractmethod
    def tick_schedule(
        self, name: str, tick: datetime, jobs: Sequence[Job] = (), *, after: datetime | None
    ) -> bool:
        """Store the jobs of a schedule's ticks up to `tick`, if its last tick is `after` (None: it never ticked).

        False, and nothing is stored, if its last tick is another: another process was first. So each tick is stored
        once over all processes.

        Raises:
            PenstockError: those of `enqueue_jobs`; the schedule does not move.
        """

    @abstractmethod
    def list_schedules(self) -> list[Schedule]:
        """Return all schedules that ever ticked, by name."""

    @abstractmethod
    def forget_schedule(self, name: str) -> bool:
        """Remove a schedule; if it ticks again, it begins anew. False if there is none of this name."""


def _end_of(row: JournalEntry, job: Job, max_result: int) -> JobEnd:
    result = job.result if row.status is JobStatus.COMPLETED else None
    size = None if result is None else len(result)
    return JobEnd(
        entry=row,
        callback_url=job.callback_url or "",
        correlation_id=job.correlation_id,
        created_at=job.created_at or row.recorded_at,
        result=None if size is not None and size > max_result else result,
        result_size=size,
    )
