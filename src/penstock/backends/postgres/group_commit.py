"""Group commit of single plain jobs: the jobs of several threads share one statement and one flush.

The leader first waits for its followers, then stores all their jobs: unlike on SQLite, it has no transaction open meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.backends.engine.group_commit import Call, GroupCommit
from penstock.errors import BackendError
from penstock.job import Job

__all__ = ["PlainGroups"]


class PlainGroups(GroupCommit[Job]):
    """The plain jobs that the threads of one store object submit.

    Args:
        store: stores jobs together; returns per job the error, or the time at which it was stored, None if unknown. An
            error that it raises concerns the whole group.
        timeout: seconds that a call may take.
    """

    max_group = 200

    def __init__(
        self, store: Callable[[Sequence[Job]], Sequence[BaseException | int | None]], timeout: float
    ) -> None:
        super().__init__(timeout)
        self._store = store

    def _commit(self, group: list[Call[Job]]) -> None:
        if self._waiting or max(self._recent) > 1:
            for _ in self._followers(group):
                pass
        outcomes = self._store([call.work for call in group])
        for call, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                call.error = outcome
            else:
                call.result = outcome
        self._is_committed = True

    def _interrupted(self) -> BackendError:
        return BackendError("the thread that stored the job was interrupted", outcome_unknown=True)
