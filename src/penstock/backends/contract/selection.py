"""Which jobs are meant: one filter for lists, counts and bulk actions, of every face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import invalid
from penstock.job import JobStatus, Key, distinct

__all__ = ["STATUS_GROUPS", "JobPage", "JobSelection", "NumberedJob", "StatusFilter", "status_filter"]

_S = JobStatus
#: What `stats`, `top` and `--status` call groups of statuses. Together they are all jobs, each once.
STATUS_GROUPS: Final[Mapping[str, tuple[JobStatus, ...]]] = MappingProxyType(
    {
        "pending": (_S.INITIAL_PENDING,),
        "running": (_S.RUNNING, _S.CANCELLING),
        "retrying": (_S.FAILED_RETRY, _S.UNKNOWN_RETRY),
        "handed_back": (_S.FAILED_RETRY,),
        "completed": (_S.COMPLETED,),
        "failed": (_S.FAILED,),
        "dead": (_S.DEAD_LETTER,),
        "cancelled": (_S.STOPPED, _S.UNSCHEDULED, _S.UNKNOWN_STOPPED),
    }
)
MAX_ERROR: Final = 1_000


class StatusFilter(NamedTuple):
    """Statuses as stores know them.

    Attributes:
        statuses: any of these.
        released: of FAILED_RETRY jobs only those that were handed back (True), or only the others (False); None is both.
    """

    statuses: tuple[JobStatus, ...]
    released: bool | None = None


class JobSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects jobs; what is left out does not limit. All that is given must hold of a job.

    Attributes:
        statuses: any of these: statuses, or the groups that `stats` counts ("pending", "retrying", "dead" …).
        types: any of these.
        tags: all of these.
        key: exactly this key.
        since: created at this moment or later.
        until: created before this moment.
        error: text in the error message; upper and lower case of ASCII letters are the same.
        spares_propagated: leave out jobs that ended only because one they waited for did.

    Raises:
        InvalidArgumentError: one of these is wrong.
    """

    statuses: Sequence[str] = ()
    types: Sequence[str] = ()
    tags: Sequence[str] = ()
    key: Key | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    spares_propagated: bool = False

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        for field in ("statuses", "types", "tags"):
            force(self, field, distinct(field, getattr(self, field)))
        status_filter(self.statuses)
        force(self, "key", Key.of(self.key))
        for field in ("since", "until"):
            _check_moment(field, getattr(self, field))
        if self.error is not None and (type(self.error) is not str or not 0 < len(self.error) <= MAX_ERROR):
            raise invalid("error", f"a text of 1 to {MAX_ERROR} characters", self.error)
        if type(self.spares_propagated) is not bool:
            raise invalid("spares_propagated", "True or False", self.spares_propagated)

    @property
    def is_everything(self) -> bool:
        """Whether it leaves out no job."""
        return self == JobSelection(spares_propagated=self.spares_propagated)


class NumberedJob(NamedTuple):
    """A selected job: its insertion number, which never changes, and its id."""

    number: int
    id: str


class JobPage(NamedTuple):
    """Some of the jobs that a selection selects.

    Attributes:
        jobs: in the order asked for; there may be none although others follow.
        next: where to go on (`after`); None if there is no more.
    """

    jobs: list[NumberedJob]
    next: int | None


def status_filter(names: Sequence[str]) -> StatusFilter | None:
    """Return the statuses that names and groups stand for; None for no names: any status.

    Raises:
        InvalidArgumentError: a name is neither a status nor a group.
    """
    if not names:
        return None
    statuses: set[JobStatus] = set()
    kinds: set[bool] = set()
    for name in names:
        group = STATUS_GROUPS.get(name)
        if group is None and name not in _STATUSES:
            known = ", ".join(dict.fromkeys([*STATUS_GROUPS, *_STATUSES]))
            raise invalid("status", f"one of {known}", name)
        statuses.update(group or (_STATUSES[name],))
        kinds |= _KINDS.get(name, {True, False} if name == _S.FAILED_RETRY else set())
    released = kinds.pop() if len(kinds) == 1 else None
    return StatusFilter(tuple(each for each in _S if each in statuses), released)


_STATUSES: Final[Mapping[str, JobStatus]] = {str(each): each for each in _S}
#: Which of the FAILED_RETRY jobs a group has: those that were handed back, or the others.
_KINDS: Final[Mapping[str, set[bool]]] = {"retrying": {False}, "handed_back": {True}}


def _check_moment(field: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise invalid(field, "a datetime with its zone", value)
