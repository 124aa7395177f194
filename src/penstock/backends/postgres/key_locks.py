"""Advisory locks on keys, acquired before the rows of their jobs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.backends.engine.store import Reach
from penstock.backends.postgres.faults import OutOfOrderError
from penstock.backends.postgres.prepared import numbers
from penstock.backends.postgres.statements import NOW
from penstock.backends.postgres.transaction_base import BaseTransaction

__all__ = ["KeyLocksTransaction"]

_LOCK = (
    "SELECT pg_advisory_xact_lock(%(lock_class)s, stripe), " + NOW + ""
    " FROM (SELECT DISTINCT hashtext(each) & %(stripes)s AS stripe FROM unnest(%(texts)s::text[]) AS each"
    " ORDER BY stripe) AS wanted"
)


class KeyLocksTransaction(BaseTransaction):
    """Locks keys, and the keys of the jobs that a change may reach.

    Attributes:
        foreseen: keys that an earlier run of the same work needed too late; locked together with the first ones.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.foreseen: frozenset[str] = frozenset()
        self._reach = Reach.OWN
        self._expected: set[str] = set()
        self._held_keys: set[str] = set()
        self._reached_ids: set[str] = set()
        self._reached_seqs: set[int] = set()

    def expect(self, reach: Reach = Reach.OWN, ids: Collection[str] = ()) -> None:
        self._reach = max(self._reach, reach)
        self._expected.update(ids)

    def lock_reached(
        self, keys: Collection[str] = (), ids: Collection[str] = (), seqs: Collection[int] = ()
    ) -> None:
        """Lock the keys, the keys of the jobs, and what was announced by `expect`, unless all of it is locked already."""
        self._lock_new({*keys}, {*ids, *self._expected}, {*seqs}, self._reach)
        self._expected.clear()

    def _lock_new(self, keys: set[str], ids: set[str], seqs: set[int], reach: Reach) -> None:
        keys, ids, seqs = keys - self._held_keys, ids - self._reached_ids, seqs - self._reached_seqs
        if not (keys or ids or seqs):
            return
        # Once keys or jobs are locked, waiting for another key could deadlock. Work that can be run again gives up instead,
        # and locks that key from the beginning in its next run.
        may_wait = self.is_long or not (self._held_keys or self._reached_ids or self._reached_seqs)
        found = self.execute(
            self.sql["lock_reached"],
            {
                "keys": list(keys | self.foreseen),
                "ids": list(ids),
                "seqs": numbers(seqs),
                "reach": int(reach),
                "may_wait": may_wait,
                **self.shared.key_locks,
            },
        ).fetchone()
        _, missing, reached_keys, reached_seqs, moment = found or (0, (), (), (), 0)
        if missing:
            raise OutOfOrderError(missing)
        self.advance_now(moment)
        self._held_keys.update(reached_keys)
        self._reached_ids |= ids
        self._reached_seqs.update(reached_seqs)

    def lock_keys(self, keys: Collection[str]) -> None:
        if keys:  # else what is expected can wait for the first lock of a job
            self.lock_reached(keys)

    def lock_texts(self, locks: dict[str, Any], texts: Collection[str]) -> None:
        """Lock the stripes of these texts."""
        if texts:
            self.advance_now(self.execute(_LOCK, {**locks, "texts": list(texts)}).fetchall()[-1][1])
