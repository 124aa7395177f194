"""The verbs of a queue that call the store's verb of the same name, made out of the contract's.

Each has the signature and the types of the contract's verb, so that editors and type checkers see its arguments, and is
called on the queue's own store. Those that report return None: the queue itself keeps track of the slots they free.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from penstock.backends import Backend, Journal, Reading
from penstock.backends.contract.selection import JobSelection
from penstock.job import Job, Key

__all__ = ["StoreVerbs"]

P = ParamSpec("P")
T = TypeVar("T")

#: Whole jobs that are held at a time while they are iterated over: their payloads may be large.
_PORTION: Final = 200


def _called(
    verb: Callable[Concatenate[Any, P], T], role: str | None = None
) -> Callable[Concatenate[StoreVerbs, P], T]:
    """Make the verb that calls this one of the store, or of one of its roles, and returns its result."""
    find: Callable[[Backend], Callable[P, T]] = attrgetter(
        verb.__name__ if role is None else f"{role}.{verb.__name__}"
    )

    @functools.wraps(verb)
    def called(self: StoreVerbs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(find(self.backend), *args, **kwargs)

    called.__doc__ = f"See `{verb.__qualname__}`."
    return called


def _reported(
    verb: Callable[Concatenate[Backend, P], object], note: str = ""
) -> Callable[Concatenate[StoreVerbs, P], None]:
    """Make the verb that calls this one of the store and returns None."""
    find: Callable[[Backend], Callable[P, object]] = attrgetter(verb.__name__)

    @functools.wraps(verb)
    def reported(self: StoreVerbs, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._run(find(self.backend), *args, **kwargs)

    reported.__doc__ = f"See `{verb.__qualname__}`. {note}".rstrip()
    reported.__annotations__ = {**verb.__annotations__, "return": "None"}
    signature = inspect.signature(verb).replace(return_annotation="None")
    reported.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return reported


class StoreVerbs:
    """The verbs of a queue that call the store's verb of the same name."""

    backend: Backend

    @abstractmethod
    def _run(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a verb of the store."""

    # -- reports ------------------------------------------------------------------------------------------------

    complete_job = _reported(Backend.complete_job)
    complete_jobs = _reported(Backend.complete_jobs)
    fail_job = _reported(Backend.fail_job)
    fail_jobs = _reported(Backend.fail_jobs)
    stop_job = _reported(Backend.stop_job)
    stop_jobs = _reported(Backend.stop_jobs)
    stop_job_with_retry = _reported(Backend.stop_job_with_retry)
    stop_jobs_with_retry = _reported(Backend.stop_jobs_with_retry)
    mark_job_unknown_stopped = _reported(Backend.mark_job_unknown_stopped)
    mark_jobs_unknown_stopped = _reported(Backend.mark_jobs_unknown_stopped)
    update_job_status = _reported(Backend.update_job_status)
    release_jobs = _reported(Backend.release_jobs)
    acknowledge_cancellation = _reported(
        Backend.acknowledge_cancellation, "With `was_executing=False` the stream's slot stays taken."
    )
    acknowledge_cancellations = _reported(Backend.acknowledge_cancellations)
    save_progress = _reported(Backend.save_progress)
    save_checkpoint = _reported(Backend.save_checkpoint)
    save_output = _reported(Backend.save_output)

    # -- changing and repeating ---------------------------------------------------------------------------------

    cancel_jobs = _called(Backend.cancel_jobs)
    update_job = _reported(Backend.update_job)
    redrive_jobs = _called(Backend.redrive_jobs)
    heartbeat = _called(Backend.heartbeat)
    maintain = _called(Backend.maintain)
    cleanup_expired_jobs = _called(Backend.cleanup_expired_jobs)
    delete_jobs = _called(Backend.delete_jobs)

    def restart_job(self, job_id: str, assignee_id: str) -> Job:
        """See `Backend.restart_job`."""
        return self._run(self.backend.restart_job, job_id, assignee_id)

    # -- reading ------------------------------------------------------------------------------------------------

    get_job_stats = _called(Backend.get_job_stats)
    list_jobs = _called(Backend.list_jobs)
    read_journal = _called(Backend.read_journal)
    overview = _called(Reading.overview, "reading")
    count_jobs = _called(Reading.count_jobs, "reading")
    select_jobs = _called(Reading.select_jobs, "reading")
    find_ids = _called(Reading.find_ids, "reading")
    get_output = _called(Reading.get_output, "reading")
    job_history = _called(Journal.history, "journal")

    def iter_jobs(
        self,
        *,
        status: str | Sequence[str] = (),
        type: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        key: Key | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        newest: bool = False,
    ) -> Iterator[Job]:
        """Iterate over all jobs that match, however many there are; what is left out does not limit.

        They are read in portions while you iterate: jobs may change, come and go meanwhile.

            for job in queue.iter_jobs(status=["failed", "dead"], type="resize", error="disk full"):
                print(job.id)

        Args:
            status: one or several, any of which; also the groups that `penstock stats` counts, such as "retrying".
            type: one or several, any of which.
            tags: all of these.
            key: exactly this key.
            since: created at this moment or later.
            until: created before this moment.
            error: text in the error message.
            newest: the other way round: those that were enqueued last come first.

        Raises:
            InvalidArgumentError: one of these is wrong.
        """
        selection = JobSelection(
            statuses=(status,) if isinstance(status, str) else status,
            types=(type,) if isinstance(type, str) else type,
            tags=tags,
            key=Key.of(key),
            since=since,
            until=until,
            error=error,
        )
        return self._iterated(selection, newest=newest)

    def _iterated(self, selection: JobSelection, *, newest: bool) -> Iterator[Job]:
        after: int | None = None
        while True:
            page = self.select_jobs(selection, after=after, limit=_PORTION, newest=newest)
            ids = [each.id for each in page.jobs]
            yield from (self._run(self.backend.get_jobs, ids) if ids else {}).values()
            if page.next is None:
                return
            after = page.next
