from __future__ import annotations

import uuid
from collections.abc import Sequence

from penstock.backends import Owners
from penstock.backends.contract.overview import Intake
from penstock.testing import _checks as check
from penstock.testing.model._state import ModelState


class ModelOwners(Owners):
    """The role in memory."""

    def __init__(self, state: ModelState) -> None:
        self._state = state

    def open(self) -> str:
        with self._state.transaction() as now:
            owner = str(uuid.uuid4())
            self._state.owners[owner] = self._state.opened[owner] = now
            return owner

    def beat(self, owner: str, *, intakes: Sequence[Intake] | None = None) -> bool:
        check.text("owner", owner, check.MAX_ID)
        checked = None if intakes is None else check.intakes("intakes", intakes)
        with self._state.transaction() as now:
            if owner not in self._state.owners:
                return False
            self._state.owners[owner] = now
            if checked is not None:
                self._state.intakes[owner] = checked
            return True

    def has(self, owner: str) -> bool:
        with self._state.transaction():
            return owner in self._state.owners

    def close(self, owner: str) -> None:
        with self._state.transaction():
            self._state.owners.pop(owner, None)
