"""Events, flows, submission and blocking (R4, R7, R8, R16, R17, G2, G13, G24-G26, C46, C47, C54)."""

from collections.abc import Callable

import pytest

from penstock import (
    Event,
    EventBus,
    EventKind,
    InvalidArgumentError,
    Job,
    Queue,
    chain,
    fan_in,
    fan_out,
)
from penstock.testing import ManualClock

SOON = 10.0


def job(name: str, **fields: object) -> Job:
    return Job(id=name, type="work", **fields)


def heard(queue: Queue) -> list[tuple[EventKind, str | None]]:
    events: list[tuple[EventKind, str | None]] = []
    for kind in EventKind:
        queue.events.subscribe(kind, lambda event: events.append((event.kind, event.job_id)))
    return events


def test_one_failing_subscriber_does_not_stop_the_rest() -> None:
    bus = EventBus()
    seen: list[str] = []

    def fail(_event: Event) -> None:
        raise ValueError("mine")

    async def later(event: Event) -> None:
        seen.append(f"async {event.job_id}")

    bus.subscribe(EventKind.JOB_FAILED, fail)
    bus.subscribe(EventKind.JOB_FAILED, later)
    unsubscribe = bus.subscribe(EventKind.JOB_FAILED, lambda event: seen.append(f"plain {event.job_id}"))
    event = Event(kind=EventKind.JOB_FAILED, at=ManualClock().now(), job_id="a")
    with pytest.raises(ExceptionGroup) as caught:
        bus.emit(event)
    assert [str(error) for error in caught.value.exceptions] == ["mine"]
    assert seen == ["async a", "plain a"]
    unsubscribe()
    unsubscribe()
    with pytest.raises(ExceptionGroup):
        bus.emit(event)
    assert seen == ["async a", "plain a", "async a"]


def test_who_unsubscribes_during_an_event_is_still_told_of_it() -> None:
    bus = EventBus()
    seen: list[str] = []
    enders: list[Callable[[], None]] = []
    bus.subscribe(EventKind.JOB_STARTED, lambda _event: enders[0]())
    enders.append(bus.subscribe(EventKind.JOB_STARTED, lambda _event: seen.append("told")))
    event = Event(kind=EventKind.JOB_STARTED, at=ManualClock().now())
    bus.emit(event)
    bus.emit(event)
    assert seen == ["told"]


def test_chain_and_fans_are_plain_lists_with_after_filled_in() -> None:
    """G24."""
    assert [each.after for each in chain(job("a"), job("b"), job("c"))] == [(), ("a",), ("b",)]
    assert [each.after for each in fan_out(job("a"), [job("b"), job("c")])] == [(), ("a",), ("a",)]
    assert [each.after for each in fan_in([job("a"), job("b")], job("c"))] == [(), (), ("a", "b")]
    with pytest.raises(InvalidArgumentError):
        chain("a")
    with pytest.raises(InvalidArgumentError):
        fan_out(job("a"), "bc")


def test_only_postgresql_can_join_a_transaction(queue: Queue, url: str) -> None:
    if url.startswith("postgres"):
        pytest.skip("this one can")
    with pytest.raises(InvalidArgumentError, match="only PostgreSQL"):
        queue.joined(object())
