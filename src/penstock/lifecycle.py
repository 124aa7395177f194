"""The legal moves of a job, as one table.

Guards, error texts, the conformance suite, the documentation's diagram and the journal's audit derive from `MOVES` and
`LATE_MOVES`. A verb that is not in the table for a status is refused with InvalidTransitionError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from penstock.errors import InvalidTransitionError, shown
from penstock.job import FINAL, JobStatus

__all__ = [
    "ENQUEUES",
    "INVARIANTS",
    "LATE_MOVES",
    "LOST_BY_SILENCE",
    "MOVES",
    "LateMove",
    "Move",
    "Verb",
    "allows",
    "allows_late",
    "refusal",
    "sources",
    "targets",
]


class Verb(StrEnum):
    """The verbs that change a job, as in the `verb` of a journal row."""

    ENQUEUE = "enqueue"
    ENQUEUE_UNIQUE = "enqueue_unique"
    CLAIM = "claim"
    RESTART = "restart"
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"
    STOP_WITH_RETRY = "stop_with_retry"
    MARK_UNKNOWN_STOPPED = "mark_unknown_stopped"
    UPDATE_STATUS = "update_status"
    CANCEL = "cancel"
    ACKNOWLEDGE = "acknowledge_cancellation"
    UNRESPONSIVE = "mark_worker_unresponsive"
    RESET = "reset_running"
    RELEASE = "release"
    LOSE = "lose"
    TIME_OUT = "time_out"
    EXPIRE = "expire"
    PROPAGATE = "propagate"
    UPDATE = "update"
    DELETE = "delete"
    CLEANUP = "cleanup"


#: The verbs that store a new job, each of which begins a history.
ENQUEUES: Final = (Verb.ENQUEUE, Verb.ENQUEUE_UNIQUE)


class Move(NamedTuple):
    """One legal step: `verb` leads from `source` (None: the job did not exist) to `target`."""

    verb: Verb
    source: JobStatus | None
    target: JobStatus
    effect: str


class LateMove(NamedTuple):
    """A move that only the job's last attempt may make, and only if one of the verbs `after` led to `source`."""

    verb: Verb
    source: JobStatus
    target: JobStatus
    effect: str
    after: frozenset[Verb]


#: The verb by which upkeep reclaims a job because its owner or its lease fell silent; its process may still live.
LOST_BY_SILENCE: Final = frozenset({Verb.LOSE})

_S = JobStatus

_EFFECTS = {
    Verb.ENQUEUE: "stored; its idempotency key is reserved for the store's window",
    Verb.ENQUEUE_UNIQUE: "stored; its idempotency key is reserved while the job is unfinished",
    Verb.CLAIM: "attempt + 1; assignee and times set",
    Verb.RESTART: "held jobs only; attempt + 1; progress 0; finalized_at cleared",
    Verb.COMPLETE: "result stored; finalized_at = now; slot freed",
    Verb.FAIL: "retry_count + 1; failures + 1; last_retry_at = now; error stored; slot freed",
    Verb.STOP: "error stored; finalized_at; slot freed",
    Verb.STOP_WITH_RETRY: "retry_count + 1; last_retry_at = now; finalized_at; slot freed",
    Verb.MARK_UNKNOWN_STOPPED: "error stored; finalized_at; slot freed",
    Verb.UPDATE_STATUS: "result and error if given; counters untouched",
    Verb.CANCEL: "waiting jobs end; running ones are asked to stop",
    Verb.ACKNOWLEDGE: "finalized_at; slot freed if it was executing",
    Verb.UNRESPONSIVE: "the attempt counts if there is a policy; slot freed",
    Verb.RESET: "the attempt counts if there is a policy; slot freed",
    Verb.RELEASE: "retry_count + 1; not counted against the policy; due at once; slot freed",
    Verb.LOSE: "owner or lease gone; the attempt counts if there is a policy; slot freed",
    Verb.TIME_OUT: "as a failure of category timeout; slot freed",
    Verb.EXPIRE: "lifetime over; finalized_at; slot freed",
    Verb.PROPAGATE: "ended because a dependency did not complete",
}


def _table() -> Iterator[tuple[Verb, JobStatus | None, tuple[JobStatus, ...]]]:
    for storing in ENQUEUES:
        yield storing, None, (_S.INITIAL_PENDING,)
    for waiting in (_S.INITIAL_PENDING, _S.FAILED_RETRY, _S.UNKNOWN_RETRY):
        yield Verb.CLAIM, waiting, (_S.RUNNING,)
    yield Verb.RESTART, _S.STOPPED, (_S.RUNNING,)
    for open_end in (_S.RUNNING, _S.CANCELLING, _S.UNKNOWN_RETRY, _S.UNKNOWN_STOPPED):
        yield Verb.COMPLETE, open_end, (_S.COMPLETED,)
    for reporting in (_S.RUNNING, _S.UNKNOWN_RETRY):
        yield Verb.FAIL, reporting, (_S.FAILED_RETRY, _S.FAILED, _S.DEAD_LETTER, _S.STOPPED)
    for stoppable in (_S.RUNNING, _S.CANCELLING, _S.UNKNOWN_RETRY):
        yield Verb.STOP, stoppable, (_S.STOPPED,)
        yield Verb.MARK_UNKNOWN_STOPPED, stoppable, (_S.UNKNOWN_STOPPED,)
    yield Verb.STOP_WITH_RETRY, _S.CANCELLING, (_S.STOPPED,)
    yield Verb.CANCEL, _S.INITIAL_PENDING, (_S.UNSCHEDULED,)
    yield Verb.CANCEL, _S.RUNNING, (_S.CANCELLING,)
    yield Verb.CANCEL, _S.FAILED_RETRY, (_S.STOPPED,)
    yield Verb.CANCEL, _S.UNKNOWN_RETRY, (_S.STOPPED,)
    yield Verb.ACKNOWLEDGE, _S.CANCELLING, (_S.STOPPED, _S.UNKNOWN_STOPPED)
    for loss in (Verb.UNRESPONSIVE, Verb.RESET, Verb.LOSE):
        yield loss, _S.RUNNING, (_S.UNKNOWN_RETRY, _S.DEAD_LETTER)
        yield loss, _S.CANCELLING, (_S.UNKNOWN_STOPPED,)
    yield Verb.RELEASE, _S.RUNNING, (_S.FAILED_RETRY,)
    yield Verb.RELEASE, _S.CANCELLING, (_S.STOPPED,)
    yield Verb.TIME_OUT, _S.RUNNING, (_S.FAILED_RETRY, _S.DEAD_LETTER)
    for unfinished in _S:
        if unfinished not in FINAL:
            yield Verb.EXPIRE, unfinished, (_S.DEAD_LETTER,)
    yield Verb.PROPAGATE, _S.INITIAL_PENDING, (_S.FAILED, _S.DEAD_LETTER, _S.UNSCHEDULED)
    yield Verb.UPDATE_STATUS, _S.INITIAL_PENDING, (_S.UNSCHEDULED,)
    yield (
        Verb.UPDATE_STATUS,
        _S.RUNNING,
        (_S.CANCELLING, _S.COMPLETED, _S.FAILED_RETRY, _S.STOPPED, _S.UNKNOWN_RETRY, _S.UNKNOWN_STOPPED),
    )
    yield Verb.UPDATE_STATUS, _S.CANCELLING, (_S.COMPLETED, _S.STOPPED, _S.UNKNOWN_STOPPED)
    yield Verb.UPDATE_STATUS, _S.FAILED_RETRY, (_S.STOPPED,)
    # The outcome of an UNKNOWN_* job is unknown, so it may be corrected to any status but INITIAL_PENDING; RUNNING,
    # FAILED and DEAD_LETTER have verbs of their own.
    corrections = (_S.CANCELLING, _S.COMPLETED, _S.FAILED_RETRY, _S.STOPPED, _S.UNSCHEDULED)
    yield Verb.UPDATE_STATUS, _S.UNKNOWN_RETRY, (*corrections, _S.UNKNOWN_STOPPED)
    yield Verb.UPDATE_STATUS, _S.UNKNOWN_STOPPED, (*corrections, _S.UNKNOWN_RETRY)


MOVES: tuple[Move, ...] = tuple(
    Move(verb, source, target, _EFFECTS[verb]) for verb, source, ends in _table() for target in ends
)

#: A lost attempt that was the last allowed one leaves the job DEAD_LETTER, though its worker may live and have a result.
LATE_MOVES: tuple[LateMove, ...] = (
    LateMove(
        Verb.COMPLETE,
        _S.DEAD_LETTER,
        _S.COMPLETED,
        "with attempt=, after upkeep reclaimed the last allowed attempt; result stored; finalized_at = now",
        LOST_BY_SILENCE,
    ),
)

_TARGETS: dict[tuple[Verb, JobStatus | None], tuple[JobStatus, ...]] = {}
for _move in MOVES:
    _TARGETS[_move.verb, _move.source] = (*_TARGETS.get((_move.verb, _move.source), ()), _move.target)


def targets(verb: Verb, source: JobStatus | None) -> tuple[JobStatus, ...]:
    """Return the statuses to which `verb` may move a job from `source`; empty if the verb is not allowed there."""
    return _TARGETS.get((verb, source), ())


def sources(verb: Verb) -> tuple[JobStatus, ...]:
    """Return the statuses from which `verb` is allowed, in the table's order."""
    return tuple(
        dict.fromkeys(move.source for move in MOVES if move.verb is verb and move.source is not None)
    )


def allows(verb: Verb, source: JobStatus, target: JobStatus | None = None) -> bool:
    """Whether the table has such a move (to `target`, if one is given)."""
    ends = _TARGETS.get((verb, source), ())
    return bool(ends) if target is None else target in ends


def allows_late(verb: Verb, source: JobStatus, after: str, target: JobStatus | None = None) -> bool:
    """Whether the last attempt may still make such a move (to `target`, if one is given) after the verb `after`."""
    return any(
        move.verb is verb and move.source is source and after in move.after and target in (None, move.target)
        for move in LATE_MOVES
    )


def refusal(
    verb: Verb, job_id: str, status: JobStatus, target: JobStatus | None = None
) -> InvalidTransitionError:
    """Return the error for a verb that the table does not allow."""
    if target is None:
        legal = ", ".join(sources(verb)) or "no status"
        text = f"{verb} of job {shown(job_id)} is not possible: it is {status}, allowed from {legal}"
    else:
        legal = ", ".join(targets(verb, status)) or "none"
        text = f"job {shown(job_id)} cannot go from {status} to {target}; legal targets: {legal}"
    return InvalidTransitionError(text, job_id=job_id, status=str(status), verb=str(verb))


#: The invariants of every journal, by number, as the checker for tests and the Spark audit name them.
INVARIANTS: Final = {
    1: "origin",
    2: "no hole",
    3: "machine",
    4: "terminal stays",
    5: "fence grows",
    6: "one holder",
    7: "no late effect",
    8: "one success",
    9: "nothing lost",
    11: "bounded retries",
    12: "never early",
    13: "unique",
    14: "group limit",
    23: "state is the fold",
    25: "time sane",
}
