from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from penstock.backends.base import CALLBACKS, Delivery, Schedule
from penstock.job import Job
from penstock.testing import _checks as check
from penstock.testing.model._journal import ModelJournal
from penstock.testing.model._rows import utc
from penstock.testing.model._submission import ModelSubmission


class ModelOutbox(ModelJournal, ModelSubmission):
    """See `penstock.backends.contract.outbox`."""

    def save_deliveries(
        self,
        holder: str,
        deliveries: Sequence[Delivery] = (),
        *,
        done: Sequence[int] = (),
        seq: int | None = None,
    ) -> bool:
        check.text("holder", holder, check.MAX_ID)
        check.deliveries(deliveries)
        for each in check.sequence("done", done):
            check.whole("done", each, 0, 2**62)
        if seq is not None:
            check.whole("seq", seq, 0, 2**62)
        with self._transaction() as now:
            found = self._consumer(CALLBACKS)
            if found.holder != holder:
                return False
            if seq is not None and seq > found.seq:
                self._check_reached(seq)
                self._consumers[CALLBACKS] = msgspec.structs.replace(found, seq=seq, updated_at=now)
            for delivery in deliveries:
                self._deliveries[delivery.seq] = delivery
                self._given_up_at[delivery.seq] = now
            for each in done:
                self._deliveries.pop(each, None)
            return True

    def due_deliveries(self, limit: int = 100, *, per_lane: int = 1) -> list[Delivery]:
        check.whole("limit", limit, 1, 2**31)
        check.whole("per_lane", per_lane, 1, 2**31)
        self._check_usable()
        with self._lock:
            now = self._clock.now()
            due = [(each.due_at, each.seq, each) for each in self._deliveries.values() if each.due_at]
        chosen: list[Delivery] = []
        for due_at, _, each in sorted(due, key=lambda entry: entry[:2]):
            if due_at <= now and sum(other.lane == each.lane for other in chosen) < per_lane:
                chosen.append(each)
        return chosen[:limit]

    def list_deliveries(self, after: int = 0, limit: int = 100) -> list[Delivery]:
        check.whole("after", after, 0, 2**62)
        check.whole("limit", limit, 1, 1000)
        self._check_usable()
        with self._lock:
            return [self._deliveries[seq] for seq in sorted(self._deliveries) if seq > after][:limit]

    def count_deliveries(self) -> tuple[int, int]:
        self._check_usable()
        with self._lock:
            given_up = sum(each.due_at is None for each in self._deliveries.values())
            return len(self._deliveries) - given_up, given_up

    def retry_deliveries(self) -> int:
        with self._transaction() as now:
            given_up = [each for each in self._deliveries.values() if each.due_at is None]
            for each in given_up:
                self._deliveries[each.seq] = msgspec.structs.replace(each, due_at=now, attempts=0)
            return len(given_up)

    def _forget_given_up(self, now: datetime) -> None:
        for seq, each in list(self._deliveries.items()):
            if each.due_at is None and self._given_up_at[seq] + timedelta(days=30) <= now:
                del self._deliveries[seq]

    def tick_schedule(
        self, name: str, tick: datetime, jobs: Sequence[Job] = (), *, after: datetime | None
    ) -> bool:
        check.text("name", name, check.MAX_NAME)
        if tick is None:
            raise check.bad("tick", "an aware datetime", tick)
        check.moment("tick", tick)
        if after is not None:
            check.moment("after", after)
        checked = [check.job(job, self._options.max_payload) for job in check.sequence("jobs", jobs)]
        with self._transaction() as now:
            known = self._schedules.get(name)
            if (None if known is None else known.tick) != after:
                return False
            if checked:
                self._take_in(checked, now, is_blocked=self._is_blocked)
            self._schedules[name] = Schedule(name=name, tick=utc(tick), updated_at=now)
            return True

    def list_schedules(self) -> list[Schedule]:
        self._check_usable()
        with self._lock:
            return [self._schedules[name] for name in sorted(self._schedules)]

    def forget_schedule(self, name: str) -> bool:
        check.text("name", name, check.MAX_NAME)
        with self._transaction():
            return self._schedules.pop(name, None) is not None
