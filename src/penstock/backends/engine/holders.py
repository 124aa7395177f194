"""Who holds jobs: leases, liveness rows, and jobs whose holder is lost."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from penstock.backends import _arguments as arguments
from penstock.backends import _decisions as decisions
from penstock.backends._liveness import this_process
from penstock.backends._overview import encode_intakes
from penstock.backends._rows import Row
from penstock.backends._settlement import settle
from penstock.backends._store import Reach, Transaction
from penstock.backends.engine.core import EngineCore
from penstock.lifecycle import Verb
from penstock.overview import Intake
from penstock.scope import checkpoint

__all__ = ["HolderVerbs"]


class HolderVerbs(EngineCore):
    """The verbs about those who have jobs."""

    def mark_worker_unresponsive(self, assignee_id: str) -> None:
        arguments.assignee(assignee_id)
        self._write(lambda tx: self._lose_held(tx, assignee_id, Verb.UNRESPONSIVE))

    def reset_running_jobs(self) -> None:
        self._write(lambda tx: self._lose_held(tx, None, Verb.RESET))

    def _lose_held(self, tx: Transaction, assignee_id: str | None, verb: Verb) -> int:
        tx.expect(Reach.ALL)
        return self._lose(tx, tx.rows_in_flight(assignee_id), verb)

    def _lose(self, tx: Transaction, rows: list[Row], verb: Verb) -> int:
        for row in rows:
            decisions.lose(row, verb, tx.now)
        self._save(tx, rows)
        settle(tx, rows)
        return len(rows)

    def heartbeat(self, assignee_id: str, *, jobs: Mapping[str, int] | None = None) -> int:
        arguments.assignee(assignee_id)
        attempts = None if jobs is None else dict(arguments.attempts(jobs))
        return self._write(lambda tx: tx.renew(assignee_id, attempts))

    def open_owner(self) -> str:
        host, pid, started = this_process()
        owner = f"{uuid.uuid4()}"
        self._write(lambda tx: tx.put_owner(decisions.owner(owner, host, pid, started, tx.now)))
        return owner

    def beat_owner(self, owner: str, *, intakes: Sequence[Intake] | None = None) -> bool:
        arguments.text("owner", owner, arguments.MAX_ID)
        told = None if intakes is None else encode_intakes(intakes)
        return self._write(lambda tx: tx.beat(owner, told))

    def has_owner(self, owner: str) -> bool:
        arguments.text("owner", owner, arguments.MAX_ID)
        checkpoint()
        return self._store.has_owner(owner)

    def close_owner(self, owner: str) -> None:
        arguments.text("owner", owner, arguments.MAX_ID)
        self._write(lambda tx: tx.drop_owners([owner]))
