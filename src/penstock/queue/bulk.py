"""Actions on all jobs that a selection selects: counted first, then done in portions.

    plan = plan_bulk(queue, "redrive", JobSelection(types=("resize",), error="disk full"))
    print(plan.matched)
    report = plan.run()

A plan fixes the jobs: those that matched when it was made. Running it acts on those of them that still match, each portion
in a transaction of its own, so jobs submitted meanwhile are left alone and no transaction is long.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.backends.contract.selection import JobSelection, status_filter
from penstock.errors import InvalidArgumentError, InvalidTransitionError, JobNotFoundError, shown
from penstock.job import FINAL, JobStatus
from penstock.queue import Queue

__all__ = ["ACTIONS", "BulkAction", "BulkPlan", "BulkReport", "plan_bulk"]

BulkAction = Literal["cancel", "redrive", "delete"]

#: Jobs in one transaction.
PORTION: Final = 500
#: Ids that are read at a time.
PAGE: Final = 20_000
#: The statuses to which each action applies.
ACTIONS: Final[Mapping[str, tuple[JobStatus, ...]]] = {
    "cancel": tuple(each for each in JobStatus if each not in FINAL),
    "redrive": (JobStatus.FAILED, JobStatus.DEAD_LETTER),
    "delete": tuple(each for each in JobStatus if each in FINAL),
}


class BulkReport(NamedTuple):
    """The result of a plan.

    Attributes:
        matched: jobs that the plan had counted.
        done: those to which the action was applied.
        skipped: the others: changed or deleted meanwhile.
    """

    matched: int
    done: int

    @property
    def skipped(self) -> int:
        return self.matched - self.done


class BulkPlan:
    """The jobs to which an action would be applied, counted."""

    def __init__(
        self, queue: Queue, action: BulkAction, selection: JobSelection, numbers: array[int], upto: int
    ) -> None:
        self._queue = queue
        self._numbers = numbers
        self._upto = upto
        self.action = action
        #: The given selection, limited to jobs to which the action applies.
        self.selection = selection

    @property
    def matched(self) -> int:
        """How many jobs the action would be applied to."""
        return len(self._numbers)

    def run(self, on_done: Callable[[list[str]], None] | None = None) -> BulkReport:
        """Apply the action.

        Args:
            on_done: called after each portion with the ids it was done to; of "redrive", with those of the copies.

        Raises:
            QueueBlockedError: the queue is blocked, which stops "redrive"; what was done stays done.
            BackendError: the store failed; likewise.
        """
        done = 0
        for ids in self._portions():
            changed, reported = _DOERS[self.action](self._queue, ids)
            done += changed
            if on_done is not None and reported:
                on_done(reported)
        return BulkReport(self.matched, done)

    def _portions(self) -> Iterator[list[str]]:
        """Yield ids of the planned jobs that still match."""
        # Dependents are newer than their dependencies, and would end with them: so the newest are cancelled first.
        newest = self.action == "cancel"
        for page in _pages(self._queue, self.selection, self._upto, newest=newest):
            planned = [job_id for number, job_id in page if self._is_planned(number)]
            for start in range(0, len(planned), PORTION):
                yield planned[start : start + PORTION]

    def _is_planned(self, number: int) -> bool:
        place = bisect_left(self._numbers, number)
        return place < len(self._numbers) and self._numbers[place] == number


def plan_bulk(
    queue: Queue,
    action: BulkAction,
    selection: JobSelection,
    on_counted: Callable[[int], None] | None = None,
) -> BulkPlan:
    """Count the jobs to which an action would be applied; nothing is changed.

    Args:
        queue: of the store.
        action: "cancel" what has not ended, "redrive" what failed or died (but for jobs that died with one they waited
            for), "delete" what has ended.
        selection: which jobs; others that the action cannot be done to are left out.
        on_counted: called now and then with how many were found so far.

    Raises:
        InvalidArgumentError: an unknown action, or one that cannot be done to any of the statuses asked for.
    """
    narrowed = _narrowed(action, selection)
    upto = queue.backend.reading.jobs_span()[1]
    numbers = array("q")
    for page in _pages(queue, narrowed, upto, newest=False):
        numbers.extend(number for number, _ in page)
        if on_counted is not None:
            on_counted(len(numbers))
    return BulkPlan(queue, action, narrowed, numbers, upto)


def _narrowed(action: BulkAction, selection: JobSelection) -> JobSelection:
    """Return a selection without the jobs to which an action does not apply."""
    if action not in ACTIONS:
        raise InvalidArgumentError(
            f"action must be one of {', '.join(ACTIONS)}, got {shown(action)}", field="action", value=action
        )
    possible = ACTIONS[action]
    for name in selection.statuses:
        wanted = status_filter((name,))
        if wanted is not None and not set(wanted.statuses) <= set(possible):
            raise InvalidArgumentError(
                f"{action} is not possible for {name} jobs, only for those that are {', '.join(possible)}",
                field="status",
                value=name,
            )
    return msgspec.structs.replace(
        selection,
        statuses=selection.statuses or tuple(map(str, possible)),
        spares_propagated=selection.spares_propagated or action == "redrive",
    )


def _pages(
    queue: Queue, selection: JobSelection, upto: int, *, newest: bool
) -> Iterator[list[tuple[int, str]]]:
    after: int | None = None
    while True:
        page = queue.backend.reading.select_jobs(selection, after=after, upto=upto, limit=PAGE, newest=newest)
        if page.jobs:
            yield list(page.jobs)
        if page.next is None:
            return
        after = page.next


# Each returns how many jobs it was applied to, and the ids to report.


def _cancel(queue: Queue, ids: list[str]) -> tuple[int, list[str]]:
    cancelled, _ = queue.cancel_jobs(job_ids=ids)
    return len(cancelled), cancelled


def _redrive(queue: Queue, ids: list[str]) -> tuple[int, list[str]]:
    left = ids
    while left:
        try:
            made = queue.redrive_jobs(job_ids=left)
        except JobNotFoundError as error:  # deleted since they were selected
            left = _without(left, set(error.missing))
        except InvalidTransitionError as error:
            left = _without(left, {job_id for _, job_id, _ in error.failed})
        else:
            return len(left), made
    return 0, []


def _delete(queue: Queue, ids: list[str]) -> tuple[int, list[str]]:
    left = ids
    while left:
        try:
            number = queue.delete_jobs(job_ids=left)
        except InvalidTransitionError as error:  # the truth of an UNKNOWN_STOPPED job was found out
            left = _without(left, {job_id for _, job_id, _ in error.failed})
        else:
            return number, left
    return 0, []


def _without(ids: list[str], refused: set[str]) -> list[str]:
    """Return the ids that were not refused; none if the refusal names none of them, so that trying again ends."""
    left = [each for each in ids if each not in refused]
    return left if len(left) < len(ids) else []


_DOERS: Final[Mapping[str, Callable[[Queue, list[str]], tuple[int, list[str]]]]] = {
    "cancel": _cancel,
    "redrive": _redrive,
    "delete": _delete,
}
