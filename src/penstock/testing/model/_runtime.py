from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from penstock.backends import Backend, Change, NextStep, Runtime
from penstock.job import IN_FLIGHT
from penstock.testing import _checks as check
from penstock.testing.model._state import ModelState


class ModelRuntime(Runtime):
    """The role in memory."""

    def __init__(self, backend: Backend, state: ModelState) -> None:
        super().__init__(backend)
        self._state = state

    def listen(self, listener: Callable[[Sequence[Change]], None]) -> Callable[[], None]:
        self._state.check_usable()
        with self._state.lock:
            self._state.listeners.append(listener)

        def end() -> None:
            with self._state.lock:
                if listener in self._state.listeners:
                    self._state.listeners.remove(listener)

        return end

    def unresponsive(self, assignee_ids: Collection[str]) -> set[str]:
        with self._state.transaction():
            return self._state.unresponsive.intersection(assignee_ids)

    def next_steps(self, job_ids: Sequence[str]) -> dict[str, NextStep]:
        wanted = check.ids("job_ids", job_ids)
        self._state.check_usable()
        with self._state.lock:
            return {
                job_id: NextStep(
                    status=row.job.status,
                    attempt=row.job.attempt,
                    due_at=row.due_at if row.is_delayed else None,
                    owner=row.owner if row.job.status in IN_FLIGHT else None,
                    number=row.number,
                )
                for job_id, row in self._state.rows.items()
                if job_id in wanted
            }
