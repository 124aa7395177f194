"""What people and machines look at: how many jobs there are, what waits, who works. Frozen data, read in one go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from penstock.job import IN_FLIGHT, JobStatus

__all__ = ["Finding", "Intake", "Level", "MigrationStep", "Overview", "OwnerView", "TypeView", "is_handled"]


class Intake(msgspec.Struct, frozen=True, kw_only=True):
    """What the streams of one process that have the same filter take.

    Attributes:
        types: only these; None is any.
        tags: only jobs that have all of these.
        slots: how many jobs they hold at a time, together; 0 for a process that pulls jobs by hand.
    """

    types: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    slots: int = 0


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
    """

    id: str
    host: str
    pid: int
    opened_at: datetime | None
    beat_at: datetime
    is_alive: bool
    running: int = 0
    intakes: tuple[Intake, ...] = ()

    @property
    def slots(self) -> int:
        """How many jobs it holds at a time, at most."""
        return sum(intake.slots for intake in self.intakes)

    @property
    def free(self) -> int:
        """How many more it could hold now."""
        return max(0, self.slots - self.running)


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
    """

    type: str
    jobs: Mapping[JobStatus, int] = {}
    entered: Mapping[JobStatus, int] = {}
    ready: int = 0
    oldest_ready_at: datetime | None = None

    @property
    def pending(self) -> int:
        """Jobs that have not been taken, or come back: ready, delayed or waiting."""
        return sum(count for status, count in self.jobs.items() if status.is_eligible)

    @property
    def running(self) -> int:
        """Jobs that somebody holds."""
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
    def jobs(self) -> dict[JobStatus, int]:
        """All jobs by status."""
        total: Counter[JobStatus] = Counter()
        for each in self.types:
            total.update(each.jobs)
        return dict(total)

    @property
    def ready(self) -> int:
        """Jobs that could be taken now."""
        return sum(each.ready for each in self.types)

    @property
    def pending(self) -> int:
        """Ready, delayed and waiting ones together; always exact."""
        return sum(each.pending for each in self.types)

    @property
    def running(self) -> int:
        """Jobs that somebody holds."""
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
