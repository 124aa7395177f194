from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from penstock.errors import InvalidTransitionError
from penstock.job import GIVEN, Job, Priority
from penstock.lifecycle import Verb
from penstock.testing.model._rows import Row, S
from penstock.testing.model._state import ModelState

CANCEL_TO = {
    S.INITIAL_PENDING: S.UNSCHEDULED,
    S.RUNNING: S.CANCELLING,
    S.FAILED_RETRY: S.STOPPED,
    S.UNKNOWN_RETRY: S.STOPPED,
}


def raise_dependents(state: ModelState, job_id: str, priority: Priority, now: datetime) -> None:
    """Raise every unfinished job that waits for this one, directly or not; none is lowered."""
    behind, reached = [job_id], {job_id}
    while behind:
        first = behind.pop(0)
        for row in list(state.rows.values()):
            waits = first in row.open_after or (row.waits_for_any and first in row.job.after_any)
            if not waits or row.job.id in reached or row.job.status.is_final:
                continue
            reached.add(row.job.id)
            behind.append(row.job.id)
            if row.job.priority > priority:
                state.write(row, Verb.UPDATE, now, source=row.job.status, priority=priority)


def check_all(rows: Sequence[Row], is_allowed: Callable[[Job], bool], *, rule: str, verb: str) -> None:
    refused = [
        (index, row.job.id, str(row.job.status)) for index, row in enumerate(rows) if not is_allowed(row.job)
    ]
    if refused:
        raise InvalidTransitionError.of_several(refused, rule=rule, verb=verb)


def copy_of(job: Job, new_id: str) -> Job:
    own = {"id", "redrive_of", "idempotency_key", "unique", "run_at", "after", "after_any"}
    copied = {name: getattr(job, name) for name in GIVEN if name not in own}
    return Job(id=new_id, redrive_of=job.id, **copied)
