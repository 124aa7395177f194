"""What time does to jobs: lifetimes, lost holders, time limits, due jobs, retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Final

from penstock.backends import _decisions as decisions
from penstock.backends._liveness import gone_owners, is_this_process
from penstock.backends._rows import Row, micros_of
from penstock.backends._settlement import settle
from penstock.backends._store import Reach, Transaction
from penstock.backends.base import Retention
from penstock.backends.engine.changing import ChangeVerbs
from penstock.backends.engine.holders import HolderVerbs
from penstock.job import FINAL, JobStatus, Maintenance
from penstock.lifecycle import Verb
from penstock.policy import duration

__all__ = ["ClockWatch", "UpkeepVerbs"]

UPKEEP_BATCH: Final = 500
EXECUTION_GRACE: Final = micros_of(timedelta(seconds=10))
CLOCK_JUMP: Final = 2.0
ONE_BEAT: Final = 5.0

logger = logging.getLogger("penstock")


class UpkeepVerbs(HolderVerbs, ChangeVerbs):
    """One pass of all upkeep, and its parts."""

    _reclaiming: ClockWatch

    def maintain(self) -> Maintenance:
        expired = self._in_batches(self._expire)
        lost = 0
        if self._reclaiming.is_trusted():
            gone: list[str] = []
            lost = self._in_batches(lambda tx: self._reclaim(tx, gone))
            if gone:
                self._write(lambda tx: tx.drop_owners(self._still_gone(tx, gone)))
        timed_out = self._in_batches(self._time_out)
        due = self._in_batches(lambda tx: tx.promote(UPKEEP_BATCH))
        removed = self._in_batches(self._retire)
        self._write(lambda tx: tx.tidy())
        return Maintenance(expired=expired, lost=lost, timed_out=timed_out, due=due, removed=removed)

    def _in_batches(self, step: Callable[[Transaction], int]) -> int:
        """Repeat a bounded step until it finds less than a batch, each in a transaction of its own."""
        total = 0
        while True:
            done = self._write(step)
            total += done
            if done < UPKEEP_BATCH:
                return total

    def _expire(self, tx: Transaction) -> int:
        tx.expect(Reach.ALL)
        rows = tx.rows_expired(UPKEEP_BATCH)
        for row in rows:
            decisions.expire(row, tx.now)
        self._save(tx, rows)
        tx.drop_edges_of([row.seq for row in rows if row.unmet])
        settle(tx, rows)
        return len(rows)

    def _reclaim(self, tx: Transaction, gone: list[str]) -> int:
        liveness = micros_of(self._options.liveness)
        owners = tx.owners()
        gone[:] = gone_owners(owners, tx.now, liveness)
        spared = [owner.id for owner in owners if is_this_process(owner)]
        tx.expect(Reach.ALL)
        return self._lose(tx, tx.rows_lost(liveness, gone, spared, UPKEEP_BATCH), Verb.LOSE)

    def _still_gone(self, tx: Transaction, gone: Collection[str]) -> list[str]:
        """Return those that have not beaten since: one that was frozen may have come back."""
        return [
            owner
            for owner in gone_owners(tx.owners(), tx.now, micros_of(self._options.liveness))
            if owner in gone
        ]

    def _time_out(self, tx: Transaction) -> int:
        tx.expect(Reach.ALL)
        rows = tx.rows_overdue(EXECUTION_GRACE, UPKEEP_BATCH)
        for row in rows:
            decisions.time_out(row, tx.now)
        self._save(tx, rows)
        settle(tx, rows)
        return len(rows)

    def _retire(self, tx: Transaction) -> int:
        retention = self._options.retention or Retention(completed=None, other=None)
        rows: list[Row] = []
        if retention.completed is not None:
            before = tx.now - micros_of(retention.completed)
            rows += tx.rows_ended([JobStatus.COMPLETED], before, UPKEEP_BATCH)
        if retention.other is not None and len(rows) < UPKEEP_BATCH:
            before = tx.now - micros_of(retention.other)
            rows += tx.rows_ended(FINAL - {JobStatus.COMPLETED}, before, UPKEEP_BATCH - len(rows))
        return self._remove(tx, rows, Verb.CLEANUP)

    def cleanup_expired_jobs(self, ttl: timedelta) -> int:
        age = micros_of(duration(ttl, "ttl", positive=True))

        def step(tx: Transaction) -> int:
            rows = tx.rows_ended([JobStatus.COMPLETED], tx.now - age, UPKEEP_BATCH)
            return self._remove(tx, rows, Verb.CLEANUP)

        return self._in_batches(step)

    def take_upkeep(self, interval: timedelta) -> bool:
        return self._store.take_upkeep(micros_of(interval))


class ClockWatch:
    """Notices when wall time jumps, so that nobody loses jobs to a clock that was set.

    If wall and monotonic time part by more than two seconds between two passes, reclaiming waits one beat.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._last: tuple[float, float] | None = None
        self._distrust_until = 0.0

    def is_trusted(self) -> bool:
        if not self._enabled:
            return True
        wall, steady = time.time(), time.monotonic()
        last, self._last = self._last, (wall, steady)
        if last is not None and abs((wall - last[0]) - (steady - last[1])) > CLOCK_JUMP:
            logger.warning("the wall clock jumped; jobs are not reclaimed for %g s", ONE_BEAT)
            self._distrust_until = steady + ONE_BEAT
        return steady >= self._distrust_until
