"""Values that pass between the engine and a database beside jobs: as they are stored, times in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.job import Job

__all__ = [
    "AFTER",
    "AFTER_ANY",
    "GIVEN_UP_KEPT",
    "NEVER",
    "SPAWNED",
    "UNRESPONSIVE_KEPT",
    "Archived",
    "Blobs",
    "Claim",
    "Consumer",
    "Counted",
    "DeliveryRow",
    "Edge",
    "KeyHolder",
    "Owner",
    "Reach",
    "State",
    "UpkeepPass",
]

#: Microseconds for which a given-up delivery is kept.
GIVEN_UP_KEPT: Final = 30 * 24 * 3600 * 1_000_000

#: When the key of a job with `unique="while_unfinished"` expires by itself: it ends with the job.
NEVER: Final = 2**62

#: Microseconds for which an assignee that gives no sign of life is remembered as unresponsive.
UNRESPONSIVE_KEPT: Final = 30 * 24 * 3600 * 1_000_000

#: The kinds of an `Edge`.
AFTER = "after"
AFTER_ANY = "any"
SPAWNED = "spawned"


class Edge(NamedTuple):
    """Job `job_seq` waits for job `on_seq`; or, if `kind` is SPAWNED, has spawned it (see `spawning`)."""

    on_seq: int
    job_seq: int
    kind: str


class KeyHolder(NamedTuple):
    """The job that has an idempotency key.

    Attributes:
        job_id: the job.
        is_final: whether it has ended.
        ends_with_job: whether it was stored with `unique="while_unfinished"`, so that the key is free once it has ended.
    """

    job_id: str
    is_final: bool
    ends_with_job: bool

    def keeps_out(self, job: Job) -> bool:
        """Whether a job with the same key is a duplicate of this one."""
        return not self.is_final or not (self.ends_with_job or job.unique is not None)


class Reach(IntEnum):
    """How far what is done to jobs may go."""

    OWN = 0  # no other job is touched
    NEXT = 1  # jobs that wait for them may be released
    ALL = 2  # a bad end goes on to those that wait for these in turn


class Blobs(NamedTuple):
    """What lies outside the row that status changes rewrite."""

    payload: bytes = b""
    result: bytes | None = None
    checkpoint: bytes | None = None


class Owner(NamedTuple):
    """A process that holds jobs while its row is fresh."""

    id: str
    host: str
    pid: int
    started: str
    beat_at: int
    opened_at: int | None
    intakes: str


class UpkeepPass(NamedTuple):
    """The last pass of upkeep that a store has recorded.

    Attributes:
        passed_at: when it was; None if there was none.
        gap: how long after the pass before it.
        judges_from: when the silence of owners counts again.
    """

    passed_at: int | None
    gap: int
    judges_from: int


class Consumer(NamedTuple):
    """A registered reader of the journal."""

    name: str
    seq: int
    holder: str | None
    held_until: int | None
    updated_at: int


class Archived(NamedTuple):
    """What one portion of archiving did: looked at rows up to `reached`, the oldest of them written at `oldest_at`."""

    histories: int
    rows: int
    upto: int
    reached: int
    oldest_at: int


class DeliveryRow(NamedTuple):
    """A `Delivery` as it is stored."""

    seq: int
    event_id: str
    url: str
    lane: str
    body: bytes
    due_at: int | None
    attempts: int
    error: str
    updated_at: int


class Counted(NamedTuple):
    """What a store read at one moment.

    Attributes:
        now: its time.
        version: of its schema.
        is_blocked: whether it refuses new jobs.
        by_type: type, status, jobs stored, and how often that status was entered.
        ready: type, ready jobs up to the most counted, and since when the first in line is.
        delayed: up to the most counted.
        owners: every liveness row.
        held: jobs in flight by owner.
        deliveries: waiting and given up, each up to the most counted.
        released: jobs that were released, by type; up to the most counted together.
    """

    now: int
    version: int
    is_blocked: bool
    by_type: Sequence[tuple[str, str, int, int]]
    ready: Sequence[tuple[str, int, int | None]]
    delayed: int
    owners: Sequence[Owner]
    held: dict[str, int]
    deliveries: tuple[int, int]
    released: dict[str, int]


class State(NamedTuple):
    """What a store says about a job without reading it whole."""

    status: str
    attempt: int
    verb: str
    due_at: int | None
    owner: str | None
    seq: int | None


class Claim(NamedTuple):
    """A checked `ClaimRequest`."""

    assignee_id: str
    tags: tuple[str, ...]
    limit: int
    types: tuple[str, ...] | None
    key: str | None
    job_ids: tuple[str, ...] | None
    owner: str | None
    pushed: bool = False
    revives: bool = False
