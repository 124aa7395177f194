"""Assignees that were declared unresponsive: streams deliver nothing to them until a sign of life.

The store decides: it remembers the declaration and refuses claims of streams for such an assignee. This is what the
dispatcher of one queue knows of it, so that it serves other streams instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.backends import Change
from penstock.job import IN_FLIGHT
from penstock.lifecycle import Verb
from penstock.queue._groups import Group, Groups
from penstock.queue.stream import JobStream

__all__ = ["Withholding"]

#: Reports that are accepted for a reclaimed job come from the assignee that it was reclaimed from.
_REPORTS: Final = frozenset({Verb.COMPLETE, Verb.FAIL, Verb.STOP, Verb.MARK_UNKNOWN_STOPPED})


class Withholding:
    """The unresponsive assignees of a queue's streams. Guarded by the dispatcher's lock."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        #: By assignee: the jobs that were reclaimed from its streams, and their attempts.
        self._reclaimed: dict[str, dict[str, int]] = {}

    @property
    def assignees(self) -> set[str]:
        """The assignees that are not served, as far as this process knows."""
        return set(self._reclaimed)

    def __contains__(self, assignee_id: str) -> bool:
        return assignee_id in self._reclaimed

    def withhold(self, assignee_id: str, *, is_now: bool = False) -> None:
        """Deliver nothing more to an assignee.

        Args:
            is_now: it is declared unresponsive now. Otherwise that was earlier, and a stream without any claim so far is a
                sign of life.
        """
        for _, stream in self._streams(assignee_id):
            if is_now or not stream.is_new:
                stream.is_withheld, stream.is_new = True, False
                self._reclaimed.setdefault(assignee_id, {})

    def reclaim(self, assignee_id: str, job_id: str, attempt: int, *, is_now: bool = False) -> None:
        """Note that a job was reclaimed from an assignee that was declared unresponsive; see `withhold`."""
        self.withhold(assignee_id, is_now=is_now)
        if assignee_id in self._reclaimed:
            self._reclaimed[assignee_id][job_id] = attempt

    def revive(self, assignee_id: str) -> list[Group]:
        """Serve an assignee again; return the groups of its streams."""
        if self._reclaimed.pop(assignee_id, None) is None:
            return []
        groups = []
        for group, stream in self._streams(assignee_id):
            stream.is_withheld = False
            groups.append(group)
        return groups

    def is_sign_of_life(self, change: Change) -> bool:
        """Whether a change is the late report of an assignee that is not served."""
        return (
            change.assignee_id in self._reclaimed
            and change.verb in _REPORTS
            and change.from_status not in IN_FLIGHT
        )

    def reporter_of(self, job_id: str, attempt: int) -> str | None:
        """Return the assignee of a refused report: the one that the attempt was reclaimed from."""
        for assignee_id, reclaimed in self._reclaimed.items():
            if reclaimed.get(job_id) == attempt:
                return assignee_id
        return None

    def _streams(self, assignee_id: str) -> Iterator[tuple[Group, JobStream]]:
        for group in self._groups:
            for stream in group.streams:
                if stream.assignee_id == assignee_id:
                    yield group, stream
