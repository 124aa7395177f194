from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from penstock.backends.contract.outbox import Outbox
from penstock.backends.contract.values import CALLBACKS, Delivery, JobEnd, Schedule
from penstock.backends.engine import arguments
from penstock.backends.engine.access import StoreAccess
from penstock.backends.engine.journal import MAX_NAME, advance, known_consumer
from penstock.backends.engine.rows import moment_at
from penstock.backends.engine.store import DeliveryRow, Transaction
from penstock.backends.engine.submission import Submission
from penstock.clock import to_micros
from penstock.errors import invalid
from penstock.job import Job
from penstock.scope import checkpoint

__all__ = ["EngineOutbox", "check_deliveries"]

MAX_BODY: Final = 1_048_576


class EngineOutbox(Outbox):
    """Deliveries and schedules over a `Store`."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    # -- callbacks ----------------------------------------------------------------------------------------------

    def read_ends(
        self, after: int, limit: int = 100, *, max_result: int = 65_536
    ) -> tuple[list[JobEnd], int]:
        check_seqs("after", [after])
        arguments.limit(limit)
        arguments.limit(max_result, field="max_result")
        checkpoint()
        return self._access.store.read_ends(after, limit, max_result)

    def save_deliveries(
        self,
        holder: str,
        deliveries: Sequence[Delivery] = (),
        *,
        done: Sequence[int] = (),
        seq: int | None = None,
    ) -> bool:
        arguments.text("holder", holder, arguments.MAX_ID)
        check_deliveries(deliveries)
        check_seqs("done", done)
        if seq is not None:
            check_seqs("seq", [seq])

        def work(tx: Transaction) -> bool:
            if known_consumer(tx, CALLBACKS).holder != holder:
                return False
            tx.save_deliveries([_row(each, tx.now) for each in deliveries])
            tx.drop_deliveries(done)
            return seq is None or advance(tx, CALLBACKS, seq, holder)

        return self._access.write(work)

    def due_deliveries(self, limit: int = 100, *, per_lane: int = 1) -> list[Delivery]:
        arguments.limit(limit)
        arguments.limit(per_lane, field="per_lane")
        checkpoint()
        return [_delivery(row) for row in self._access.store.due_deliveries(limit, per_lane)]

    def list_deliveries(self, after: int = 0, limit: int = 100) -> list[Delivery]:
        check_seqs("after", [after])
        arguments.limit(limit, most=1000)
        checkpoint()
        return [_delivery(row) for row in self._access.store.deliveries(after, limit)]

    def count_deliveries(self) -> tuple[int, int]:
        checkpoint()
        return self._access.store.count_deliveries()

    def retry_deliveries(self) -> int:
        return self._access.write(lambda tx: tx.retry_deliveries())

    # -- schedules ----------------------------------------------------------------------------------------------

    def tick_schedule(
        self, name: str, tick: datetime, jobs: Sequence[Job] = (), *, after: datetime | None
    ) -> bool:
        arguments.text("name", name, MAX_NAME)
        to = to_micros(arguments.moment("tick", tick))
        since = None if after is None else to_micros(arguments.moment("after", after))
        if isinstance(jobs, str | bytes) or not isinstance(jobs, Sequence):
            raise invalid("jobs", "a sequence of Job", jobs)
        arguments.check_batch(jobs, self._access.options.max_payload)

        def work(tx: Transaction) -> bool:
            if not tx.move_schedule(name, to, since):
                return False
            if jobs:
                Submission(tx, self._access.options, check=False).run_batch(jobs)
            return True

        return self._access.write(work)

    def list_schedules(self) -> list[Schedule]:
        checkpoint()
        return [
            Schedule(name=name, tick=moment_at(tick), updated_at=moment_at(updated_at))
            for name, tick, updated_at in self._access.store.schedules()
        ]

    def forget_schedule(self, name: str) -> bool:
        arguments.text("name", name, MAX_NAME)
        return self._access.write(lambda tx: tx.drop_schedule(name))


def check_deliveries(deliveries: object) -> None:
    """Refuse what is not a sequence of deliveries that can be stored."""
    if isinstance(deliveries, str | bytes) or not isinstance(deliveries, Sequence):
        raise invalid("deliveries", "a sequence of Delivery", deliveries)
    for each in deliveries:
        if not isinstance(each, Delivery):
            raise invalid("deliveries", "a sequence of Delivery only", each)
        check_seqs("seq", [each.seq])
        arguments.text("event_id", each.event_id, arguments.MAX_ID)
        arguments.text("url", each.url, arguments.MAX_CALLBACK_URL)
        arguments.text("lane", each.lane, arguments.MAX_CALLBACK_URL)
        arguments.blob("body", each.body, MAX_BODY)
        arguments.message("error", each.error)
        if each.due_at is not None:
            arguments.moment("due_at", each.due_at)
        if type(each.attempts) is not int or each.attempts < 0:
            raise invalid("attempts", "a whole number of at least 0", each.attempts)


def check_seqs(field: str, values: object) -> None:
    """Refuse what is not a sequence of journal numbers."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise invalid(field, "a sequence of whole numbers", values)
    for value in values:
        if type(value) is not int or value < 0:
            raise invalid(field, "a whole number of at least 0", value)


def _row(delivery: Delivery, now: int) -> DeliveryRow:
    return DeliveryRow(
        seq=delivery.seq,
        event_id=delivery.event_id,
        url=delivery.url,
        lane=delivery.lane,
        body=bytes(delivery.body),
        due_at=None if delivery.due_at is None else to_micros(delivery.due_at),
        attempts=delivery.attempts,
        error=arguments.message("error", delivery.error),
        updated_at=now,
    )


def _delivery(row: DeliveryRow) -> Delivery:
    return Delivery(
        seq=row.seq,
        event_id=row.event_id,
        url=row.url,
        lane=row.lane,
        body=row.body,
        due_at=None if row.due_at is None else moment_at(row.due_at),
        attempts=row.attempts,
        error=row.error,
    )
