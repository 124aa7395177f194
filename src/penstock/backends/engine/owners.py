from __future__ import annotations

import uuid
from collections.abc import Sequence

from penstock.backends.contract.overview import Intake
from penstock.backends.contract.owners import Owners
from penstock.backends.engine import arguments, decisions
from penstock.backends.engine.access import StoreAccess
from penstock.backends.engine.liveness import this_process
from penstock.backends.engine.overview import encode_intakes
from penstock.backends.engine.store import Transaction
from penstock.scope import checkpoint

__all__ = ["EngineOwners"]


class EngineOwners(Owners):
    """Liveness rows over a `Store`."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    def open(self) -> str:
        host, pid, started = this_process()
        owner = f"{uuid.uuid4()}"

        def work(tx: Transaction) -> None:
            tx.put_owner(decisions.owner(owner, host, pid, started, tx.now))
            if not self._access.has_own_clock:
                tx.begin_passes()  # an outage may come before the first pass of upkeep

        self._access.write(work)
        return owner

    def beat(self, owner: str, *, intakes: Sequence[Intake] | None = None) -> bool:
        arguments.text("owner", owner, arguments.MAX_ID)
        encoded = None if intakes is None else encode_intakes(intakes)
        return self._access.write(lambda tx: tx.beat(owner, encoded))

    def has(self, owner: str) -> bool:
        arguments.text("owner", owner, arguments.MAX_ID)
        checkpoint()
        return self._access.store.has_owner(owner)

    def close(self, owner: str) -> None:
        arguments.text("owner", owner, arguments.MAX_ID)
        self._access.write(lambda tx: tx.drop_owners([owner]))
