"""What the writer remembers between its transactions, to ask the file less. Forgetting is always right, only slower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import apsw

from penstock.job import Job

__all__ = ["Held", "SubmissionFacts", "WriterMemory"]

_MOST_HELD: Final = 100_000


#: A job as its first claim, made by this process, left it (running, in attempt 1, its `n` at 2):
#: insertion number, assignee, type, tags. A plain tuple, because one is made for every claim.
Held: TypeAlias = tuple[int, str | None, str, tuple[str, ...]]


class SubmissionFacts:
    """What every submission asks for, kept while nobody else writes: most stores have one writer most of the time."""

    __slots__ = ("blocked", "last_seq", "version")

    def __init__(self) -> None:
        self.version = -1
        self.clear()

    def clear(self) -> None:
        """Forget: a part of the transaction was undone, or somebody else has written."""
        self.blocked = False
        self.last_seq = -1

    def check(self, connection: apsw.Connection) -> bool:
        """Forget if others have written since `keep`, and return whether they have; at the beginning of a transaction."""
        if connection.data_version() == self.version:
            return False
        self.clear()
        return True

    def keep(self, connection: apsw.Connection) -> None:
        """Remember the state of the file; right after a commit."""
        self.version = connection.data_version()


class WriterMemory:
    """The facts of submissions, and the jobs that were claimed here and are not completed yet.

    What is held needs no check when others write: whoever uses it asks the file whether the job is still like that.
    """

    __slots__ = ("facts", "held")

    def __init__(self) -> None:
        self.facts = SubmissionFacts()
        self.held: dict[str, Held] = {}

    def hold(self, jobs: Mapping[int, Job]) -> None:
        """Remember first claims, by insertion number."""
        if len(self.held) + len(jobs) > _MOST_HELD:
            self.held.clear()
        self.held |= {
            job.id: (seq, job.assignee_id, job.type, job.tags) for seq, job in jobs.items() if job.key is None
        }
