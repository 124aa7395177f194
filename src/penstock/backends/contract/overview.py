"""What people and machines look at: how many jobs there are, what waits, who works. Frozen data, read in one go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from penstock.backends.contract.selection import STATUS_GROUPS
from penstock.job import IN_FLIGHT, Job, JobStatus

__all__ = [
    "MAX_RELEASED",
    "Finding",
    "Intake",
    "JobCounts",
    "Level",
    "MigrationStep",
    "NamedIntake",
    "Overview",
    "OwnerView",
    "TypeView",
    "is_claimed",
    "is_handled",
]


#: Released jobs are counted one by one, up to here: an index holds no others, so that is quick.
MAX_RELEASED: Final = 200_000


class Intake(msgspec.Struct, frozen=True, kw_only=True):
    """What the streams of one process that have the same filter take.

    Attributes:
        types: only these; None is any.
        tags: only jobs that have all of these.
        slots: how many jobs they hold at a time, together; 0 for a process that pulls jobs by hand.
        waiting: how many of the jobs they hold have waited for other jobs for a second or longer.
    """

    types: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    slots: int = 0
    waiting: int = 0


class NamedIntake(Intake, frozen=True, kw_only=True):
    """An intake as a process reports it.

    Attributes:
        names: under which its streams claim (`Job.assignee_id`); the first few, if there are many.
    """

    names: tuple[str, ...] = ()


class OwnerView(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds jobs, or may: its liveness row.

    Attributes:
        id: the name under which it claims.
        host: where it runs.
        pid: its process there.
        opened_at: when it began; None if a version before this field wrote the row.
        beat_at: when it last said that it lives.
        is_alive: whether it counts as living: its beat is fresh, and it is not known to be gone.
        running: jobs it holds.
        intakes: what its streams take.
        names: under which its streams claim (`Job.assignee_id`, the name of a worker); the first few, if there are many.
    """

    id: str
    host: str
    pid: int
    opened_at: datetime | None
    beat_at: datetime
    is_alive: bool
    running: int = 0
    intakes: tuple[Intake, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What jobs, logs and the journal call it; host and process if it claims under no name of its own."""
        if not self.names:
            return f"{self.host}:{self.pid}"
        return self.names[0] + (f" (+{len(self.names) - 1})" if len(self.names) > 1 else "")

    @property
    def slots(self) -> int:
        """How many jobs it holds at a time, at most."""
        return sum(intake.slots for intake in self.intakes)

    @property
    def free(self) -> int:
        """How many more it could hold now."""
        return max(0, self.slots - self.running)

    @property
    def waiting(self) -> int:
        """How many of the jobs it holds wait for other jobs, by its last heartbeat."""
        return sum(intake.waiting for intake in self.intakes)

    @property
    def is_stalled(self) -> bool:
        """Whether every job it holds waits for another one, and it can claim none beside them."""
        return self.slots > 0 and self.slots <= self.running <= self.waiting


class JobCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs there are of each kind that people distinguish; together they are all jobs, each once.

    `penstock.backends.contract.selection.STATUS_GROUPS` says which statuses each of them has.

    Attributes:
        tags: only jobs that have all of these.
        pending: never claimed yet.
        running: claimed and not ended, those that are being cancelled included.
        retrying: failed or lost, and waiting for their next attempt.
        handed_back: returned by a worker that was stopped, and waiting for their next attempt; counted up to
            `most_counted` (200,000), beyond which the others are counted as `retrying`.
        completed: ended with success.
        failed: ended by a permanent failure.
        dead: ended because no attempt, or no time, was left.
        cancelled: ended because they were stopped, or what they waited for did not succeed.
        most_counted: where counting of `handed_back` ends.
    """

    tags: tuple[str, ...] = ()
    pending: int = 0
    running: int = 0
    retrying: int = 0
    handed_back: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    most_counted: int = MAX_RELEASED

    @classmethod
    def of(cls, jobs: Mapping[JobStatus, int], *, handed_back: int, tags: tuple[str, ...] = ()) -> JobCounts:
        """Return counts by status as counts by kind.

        Args:
            jobs: how many jobs have each status.
            handed_back: how many of those in FAILED_RETRY were handed back.
            tags: which jobs were counted.
        """
        found = {
            name: sum(jobs.get(status, 0) for status in statuses) for name, statuses in STATUS_GROUPS.items()
        }
        found["handed_back"] = min(handed_back, found["retrying"])
        found["retrying"] -= found["handed_back"]
        return cls(tags=tags, **found)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in STATUS_GROUPS)


class TypeView(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one type.

    Attributes:
        type: its name.
        jobs: how many are stored, by status; statuses without any are left out.
        entered: how often a job came into each status, ever; removing jobs takes nothing away. A store that is older
            than these counts began with the jobs it had.
        ready: how many could be taken now; counted up to `Overview.most_counted`.
        oldest_ready_at: since when the one that has waited longest could be taken, of those that come next in their
            priority; None if none is ready.
        handed_back: how many wait because a worker that was stopped handed them back; of all types together, counted
            up to 200,000.
    """

    type: str
    jobs: Mapping[JobStatus, int] = {}
    entered: Mapping[JobStatus, int] = {}
    ready: int = 0
    oldest_ready_at: datetime | None = None
    handed_back: int = 0

    @property
    def counts(self) -> JobCounts:
        """The jobs stored, as `stats` and `top` show them."""
        return JobCounts.of(self.jobs, handed_back=self.handed_back)

    @property
    def pending(self) -> int:
        """Jobs that have not been taken, or come back: ready, delayed or waiting."""
        return sum(count for status, count in self.jobs.items() if status.is_eligible)

    @property
    def running(self) -> int:
        """Jobs that are claimed and not ended."""
        return sum(self.jobs.get(status, 0) for status in IN_FLIGHT)


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A store at one moment.

    Attributes:
        at: the store's time.
        schema_version: of the tables, or whatever the store has.
        is_blocked: whether new jobs are refused.
        types: every type that has, or had, jobs; by name.
        delayed: jobs whose time has not come, though nothing else is missing; counted up to `most_counted`.
        waiting: jobs that wait for others, for their key's turn, or to be claimed by their id; None if `ready` of some
            type or `delayed` was not counted to its end.
        owners: processes that hold jobs or may, the living and the dead that are not cleared away yet.
        undelivered: callbacks that are still to be delivered; counted up to `most_counted`.
        given_up: callbacks that were given up; likewise.
        most_counted: where counting of what is not counted beforehand ends.
    """

    at: datetime
    schema_version: int
    is_blocked: bool
    types: tuple[TypeView, ...] = ()
    delayed: int = 0
    waiting: int | None = 0
    owners: tuple[OwnerView, ...] = ()
    undelivered: int = 0
    given_up: int = 0
    most_counted: int = 10_000

    @property
    def counts(self) -> JobCounts:
        """All jobs, as `stats` and `top` show them."""
        return JobCounts.of(self.jobs, handed_back=sum(each.handed_back for each in self.types))

    @property
    def jobs(self) -> dict[JobStatus, int]:
        """All jobs by status."""
        total: Counter[JobStatus] = Counter()
        for each in self.types:
            total.update(each.jobs)
        return dict(total)

    @property
    def ready(self) -> int:
        """Jobs that could be claimed now."""
        return sum(each.ready for each in self.types)

    @property
    def pending(self) -> int:
        """Ready, delayed and waiting ones together; always exact."""
        return sum(each.pending for each in self.types)

    @property
    def running(self) -> int:
        """Jobs that are claimed and not ended."""
        return sum(each.running for each in self.types)

    @property
    def oldest_ready(self) -> timedelta | None:
        """How long the job that has waited longest could have been taken; None if none is ready."""
        since = min((each.oldest_ready_at for each in self.types if each.oldest_ready_at), default=None)
        return None if since is None else max(self.at - since, timedelta())

    @property
    def living(self) -> tuple[OwnerView, ...]:
        """The processes that live."""
        return tuple(owner for owner in self.owners if owner.is_alive)

    @property
    def unhandled(self) -> tuple[str, ...]:
        """Types with ready jobs that no living process takes."""
        return tuple(
            each.type for each in self.types if each.ready and not is_handled(each.type, self.living)
        )


class Level(StrEnum):
    """How bad a finding is.

    Attributes:
        OK: as it should be.
        WARNING: it works, but may harm you one day.
        PROBLEM: it does harm, or will soon.
    """

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check of a store or its surroundings has found.

    Attributes:
        check: what was looked at, in a word or two.
        level: how bad it is.
        message: what was found.
        advice: what to do next; empty if there is nothing to do.
    """

    check: str
    level: Level
    message: str
    advice: str = ""

    @classmethod
    def ok(cls, check: str, message: str) -> Finding:
        """Return that all is well."""
        return cls(check=check, level=Level.OK, message=message)

    @classmethod
    def warning(cls, check: str, message: str, advice: str) -> Finding:
        """Return what should be seen to."""
        return cls(check=check, level=Level.WARNING, message=message, advice=advice)

    @classmethod
    def problem(cls, check: str, message: str, advice: str) -> Finding:
        """Return what must be seen to."""
        return cls(check=check, level=Level.PROBLEM, message=message, advice=advice)


def is_handled(type: str, owners: tuple[OwnerView, ...]) -> bool:
    """Whether one of these processes takes jobs of a type, with whatever tags."""
    return any(intake.types is None or type in intake.types for intake in _intakes(owners))


def is_claimed(job: Job, owners: tuple[OwnerView, ...]) -> bool:
    """Whether one of these processes claims jobs of this type with these tags."""
    return any(
        (intake.types is None or job.type in intake.types) and set(intake.tags) <= set(job.tags)
        for intake in _intakes(owners)
    )


def _intakes(owners: tuple[OwnerView, ...]) -> Iterator[Intake]:
    for owner in owners:
        yield from owner.intakes


class MigrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered step of a store's schema.

    Attributes:
        number: its number; the highest one applied is the schema's version.
        name: what it is about.
        oldest_code: the oldest schema version whose code may run on the result.
        applied_at: when it was applied; None if it was not yet.
        is_known: whether this code knows it; a store that newer code has migrated has steps that it does not.
    """

    number: int
    name: str
    oldest_code: int
    applied_at: datetime | None = None
    is_known: bool = True
