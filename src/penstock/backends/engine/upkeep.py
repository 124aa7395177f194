"""Upkeep: lifetimes, lost owners and leases, time limits, due jobs, retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Final

from penstock.backends.contract.runtime import PASSES_PER_LIVENESS
from penstock.backends.contract.values import Retention
from penstock.backends.engine import decisions
from penstock.backends.engine.access import StoreAccess
from penstock.backends.engine.changing import remove
from penstock.backends.engine.liveness import gone_owners, is_this_process, next_pass
from penstock.backends.engine.rows import Row, micros_of
from penstock.backends.engine.settlement import settle
from penstock.backends.engine.store import Reach, Transaction, save_rows
from penstock.backends.engine.upkeep_log import UpkeepLog
from penstock.job import FINAL, JobStatus, Maintenance
from penstock.lifecycle import Verb

__all__ = ["Upkeep"]

UPKEEP_BATCH: Final = 500
EXECUTION_GRACE: Final = micros_of(timedelta(seconds=10))
CLOCK_JUMP: Final = 2.0
ONE_BEAT: Final = 5.0

logger = logging.getLogger("penstock")


class Upkeep:
    """One pass of all upkeep, and its parts."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access
        self._options = access.options
        self._clock_watch = ClockWatch(enabled=not access.has_own_clock)

    def maintain(self) -> Maintenance:
        """See `Backend.maintain`."""
        log = UpkeepLog()
        try:
            expired = self._in_batches(lambda tx: self._expire(tx, log), log)
            recorded_at = time.monotonic()
            lost = self._reclaim_all(log)
            timed_out = self._in_batches(lambda tx: self._time_out(tx, log), log)
        finally:
            log.close()
        due = self._in_batches(lambda tx: tx.promote(UPKEEP_BATCH))
        removed = self._in_batches(self._retire)
        self._access.write(lambda tx: tx.tidy())
        if (time.monotonic() - recorded_at) * PASSES_PER_LIVENESS > self._options.liveness.total_seconds():
            # A pass that takes long must not look like an outage to the next one.
            self._access.write(lambda tx: self._record_pass(tx, begins=False))
        return Maintenance(expired=expired, lost=lost, timed_out=timed_out, due=due, removed=removed)

    def _in_batches(self, step: Callable[[Transaction], int], log: UpkeepLog | None = None) -> int:
        """Repeat a bounded step until it finds less than a batch, each in a transaction of its own."""
        total = 0
        while True:
            done = self._access.write(step)
            if log is not None:
                log.committed()
            total += done
            if done < UPKEEP_BATCH:
                return total

    def _expire(self, tx: Transaction, log: UpkeepLog) -> int:
        tx.expect(Reach.ALL)
        rows = tx.rows_expired(UPKEEP_BATCH)
        log.noting(rows, lambda row: decisions.expire(row, tx.now))
        save_rows(tx, rows)
        tx.drop_edges_of([row.seq for row in rows if row.unmet])
        settle(tx, rows)
        return len(rows)

    def _reclaim_all(self, log: UpkeepLog) -> int:
        """Reclaim the jobs of lost owners and leases, and remove those owners; return how many jobs."""
        trusts_clock = self._clock_watch.is_trusted()
        gone: list[str] = []
        total = self._access.write(
            lambda tx: self._reclaim(tx, gone, log, begins=True, trusts_clock=trusts_clock)
        )
        log.committed()
        if total == UPKEEP_BATCH:
            total += self._in_batches(
                lambda tx: self._reclaim(tx, gone, log, begins=False, trusts_clock=trusts_clock), log
            )
        if gone:
            self._access.write(lambda tx: tx.drop_owners(self._still_gone(tx, gone)))
        return total

    def _reclaim(
        self, tx: Transaction, gone: list[str], log: UpkeepLog, *, begins: bool, trusts_clock: bool
    ) -> int:
        counts_silence = self._record_pass(tx, begins=begins)
        gone.clear()
        if not trusts_clock:
            return 0
        liveness = micros_of(self._options.liveness)
        owners = tx.owners()
        gone += gone_owners(owners, tx.now, liveness, counts_silence=counts_silence)
        spared = [owner.id for owner in owners if is_this_process(owner) or not counts_silence]
        tx.expect(Reach.ALL)
        rows = tx.rows_lost(liveness, gone, spared, UPKEEP_BATCH)
        log.noting(rows, lambda row: decisions.lose(row, Verb.LOSE, tx.now))
        save_rows(tx, rows)
        settle(tx, rows)
        return len(rows)

    def _record_pass(self, tx: Transaction, *, begins: bool) -> bool:
        """Record that upkeep runs; return whether the silence of owners counts now."""
        record = next_pass(tx.last_pass(), tx.now, micros_of(self._options.liveness), begins=begins)
        tx.record_pass(record)
        return record.judges_from <= tx.now

    def _still_gone(self, tx: Transaction, gone: Collection[str]) -> list[str]:
        """Return those that have not beaten since: one that was frozen may have come back."""
        liveness = micros_of(self._options.liveness)
        return [owner for owner in gone_owners(tx.owners(), tx.now, liveness) if owner in gone]

    def _time_out(self, tx: Transaction, log: UpkeepLog) -> int:
        """Fail attempts without an owner that ran too long.

        With an owner, the owner bounds them by a clock that cannot jump (`penstock.queue._execution_limits`); if it stops
        beating, they are reclaimed.
        """
        tx.expect(Reach.ALL)
        rows = tx.rows_overdue(EXECUTION_GRACE, UPKEEP_BATCH)
        log.noting(rows, lambda row: decisions.time_out(row, tx.now))
        save_rows(tx, rows)
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
        return remove(tx, rows, Verb.CLEANUP)

    def clean_up(self, age: int) -> int:
        """Remove COMPLETED jobs that ended `age` microseconds ago or earlier; return how many."""

        def step(tx: Transaction) -> int:
            rows = tx.rows_ended([JobStatus.COMPLETED], tx.now - age, UPKEEP_BATCH)
            return remove(tx, rows, Verb.CLEANUP)

        return self._in_batches(step)


class ClockWatch:
    """Notices when wall time jumps, so that no job is reclaimed because a clock was set.

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
