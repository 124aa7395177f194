"""What the writer caches between its transactions, to read the file less. Clearing it is always correct, only slower.

Nothing of a transaction that was not committed is remembered: claims are added after the commit, and the facts of
submissions, which change inside a transaction, are cleared when one is rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import apsw

from penstock.job import Job

__all__ = ["Held", "SubmissionFacts", "WriterCache"]

_MAX_HELD: Final = 100_000


#: A job as its first claim, made by this process, left it (running, in attempt 1, its `n` at 2):
#: insertion number, assignee, type, tags. A plain tuple, because one is made for every claim.
Held: TypeAlias = tuple[int, str | None, str, tuple[str, ...]]


class SubmissionFacts:
    """What every submission reads, cached while no other process writes: most stores mostly have one writer."""

    __slots__ = ("blocked", "last_seq", "version")

    def __init__(self) -> None:
        self.version = -1
        self.clear()

    def clear(self) -> None:
        """Clear: the transaction, or a part of it, was rolled back, or another process has written."""
        self.blocked = False
        self.last_seq = -1

    def check(self, connection: apsw.Connection) -> bool:
        """Clear if others have written since `keep`, and return whether they have; called as a transaction begins."""
        if connection.data_version() == self.version:
            return False
        self.clear()
        return True

    def keep(self, connection: apsw.Connection) -> None:
        """Record the state of the file; called right after a commit."""
        try:
            self.version = connection.data_version()
        except apsw.Error:  # the commit stands, whatever this says
            self.clear()


class WriterCache:
    """The facts of submissions, and the jobs that were claimed here and are not completed yet.

    A claim stays cached when others write: its user checks that the job's row is unchanged.
    """

    __slots__ = ("facts", "held")

    def __init__(self) -> None:
        self.facts = SubmissionFacts()
        self.held: dict[str, Held] = {}

    def hold(self, jobs: Mapping[int, Job]) -> None:
        """Remember first claims that were committed, by insertion number."""
        if len(self.held) + len(jobs) > _MAX_HELD:
            self.held.clear()
        self.held |= {
            job.id: (seq, job.assignee_id, job.type, job.tags) for seq, job in jobs.items() if job.key is None
        }
