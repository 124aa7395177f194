from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from penstock.backends import CALLBACKS, Backend, Delivery, Outbox, Schedule
from penstock.errors import invalid
from penstock.job import Job
from penstock.testing import _checks as check
from penstock.testing.model._journal import check_reached, consumer
from penstock.testing.model._rows import utc
from penstock.testing.model._state import ModelState
from penstock.testing.model._submission import take_in


class ModelOutbox(Outbox):
    """The role in memory."""

    def __init__(self, backend: Backend, state: ModelState) -> None:
        super().__init__(backend)
        self._state = state

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
        with self._state.transaction() as now:
            found = consumer(self._state, CALLBACKS)
            if found.holder != holder:
                return False
            if seq is not None and seq > found.seq:
                check_reached(self._state, seq)
                self._state.consumers[CALLBACKS] = msgspec.structs.replace(found, seq=seq, updated_at=now)
            for delivery in deliveries:
                self._state.deliveries[delivery.seq] = delivery
                self._state.given_up_at[delivery.seq] = now
            for each in done:
                self._state.deliveries.pop(each, None)
            return True

    def due_deliveries(self, limit: int = 100, *, per_lane: int = 1) -> list[Delivery]:
        check.whole("limit", limit, 1, 2**31 - 1)
        check.whole("per_lane", per_lane, 1, 2**31)
        self._state.check_usable()
        with self._state.lock:
            now = self._state.clock.now()
            due = [(each.due_at, each.seq, each) for each in self._state.deliveries.values() if each.due_at]
        chosen: list[Delivery] = []
        for due_at, _, each in sorted(due, key=lambda entry: entry[:2]):
            if due_at <= now and sum(other.lane == each.lane for other in chosen) < per_lane:
                chosen.append(each)
        return chosen[:limit]

    def list_deliveries(self, after: int = 0, limit: int = 100) -> list[Delivery]:
        check.whole("after", after, 0, 2**62)
        check.whole("limit", limit, 1, 1000)
        self._state.check_usable()
        with self._state.lock:
            return [self._state.deliveries[seq] for seq in sorted(self._state.deliveries) if seq > after][
                :limit
            ]

    def count_deliveries(self) -> tuple[int, int]:
        self._state.check_usable()
        with self._state.lock:
            given_up = sum(each.due_at is None for each in self._state.deliveries.values())
            return len(self._state.deliveries) - given_up, given_up

    def retry_deliveries(self) -> int:
        with self._state.transaction() as now:
            given_up = [each for each in self._state.deliveries.values() if each.due_at is None]
            for each in given_up:
                self._state.deliveries[each.seq] = msgspec.structs.replace(each, due_at=now, attempts=0)
            return len(given_up)

    def tick_schedule(
        self, name: str, tick: datetime, jobs: Sequence[Job] = (), *, after: datetime | None
    ) -> bool:
        check.text("name", name, check.MAX_NAME)
        if tick is None:
            raise invalid("tick", "an aware datetime", tick)
        check.moment("tick", tick)
        if after is not None:
            check.moment("after", after)
        checked = [check.job(job, self._state.options.max_payload) for job in check.sequence("jobs", jobs)]
        with self._state.transaction() as now:
            known = self._state.schedules.get(name)
            if (None if known is None else known.tick) != after:
                return False
            if checked:
                take_in(self._state, checked, now, is_blocked=self._state.is_blocked)
            self._state.schedules[name] = Schedule(name=name, tick=utc(tick), updated_at=now)
            return True

    def list_schedules(self) -> list[Schedule]:
        self._state.check_usable()
        with self._state.lock:
            return [self._state.schedules[name] for name in sorted(self._state.schedules)]

    def forget_schedule(self, name: str) -> bool:
        check.text("name", name, check.MAX_NAME)
        with self._state.transaction():
            return self._state.schedules.pop(name, None) is not None


def forget_given_up(state: ModelState, now: datetime) -> None:
    for seq, each in list(state.deliveries.items()):
        if each.due_at is None and state.given_up_at[seq] + timedelta(days=30) <= now:
            del state.deliveries[seq]
