"""Events, flows, submission and blocking (R4, R7, R8, R16, R17, G2, G13, G24-G26, C46, C47, C54)."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.waiting import pass_time, until

import penstock
from penstock import (
    DependencyError,
    Event,
    EventBus,
    EventKind,
    Flow,
    InvalidArgumentError,
    Job,
    Key,
    Queue,
    chain,
    fan_in,
    fan_out,
)
from penstock.queue import emitter
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


def test_an_event_is_made_of_its_fields_in_their_order() -> None:
    at = ManualClock().now()
    event = Event(EventKind.JOB_STARTED, "a", "mail", Key("k"), ("t",), at, 7)
    assert event == Event(
        kind=EventKind.JOB_STARTED, job_id="a", type="mail", key=Key("k"), tags=("t",), at=at, seq=7
    )
    assert Event(EventKind.QUEUE_BLOCKED).at.utcoffset() is not None


def test_what_is_no_event_is_not_told() -> None:
    for wrong in (None, EventKind.JOB_STARTED, {"kind": "job_started"}):
        with pytest.raises(InvalidArgumentError) as caught:
            EventBus().emit(wrong)
        assert caught.value.field == "event"


def test_a_tree_is_checked_when_it_is_made() -> None:
    for wrong in (lambda: Flow(None), lambda: Flow(job("a"), [None]), lambda: Flow(job("a"), job("b"))):
        with pytest.raises(InvalidArgumentError):
            wrong()
    assert len(Flow(job("a"), (each for each in [job("b"), job("c")])).children) == 2


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


# -- who is told, and when ----------------------------------------------------------------------------------------


def listeners(queue: Queue) -> int:
    return len(queue.backend.runtime._listeners)  # type: ignore[attr-defined]


def test_verbs_of_the_backend_are_told_too(queue: Queue) -> None:
    events = heard(queue)
    for number in range(5):
        queue.backend.enqueue_job(job(f"job{number}"))
    until(lambda: events == [(EventKind.JOB_AVAILABLE, f"job{number}") for number in range(5)])
    assert not queue._emitter.pending


def test_the_store_is_listened_to_only_while_somebody_is_subscribed(queue: Queue) -> None:
    assert queue.events.has_subscribers() is False
    assert listeners(queue) == 0
    ends = [queue.events.subscribe(kind, lambda _: None) for kind in EventKind]
    assert listeners(queue) == 1
    for end in ends:
        end()
        end()
    assert listeners(queue) == 0
    for number in range(5):
        queue.backend.enqueue_job(job(f"job{number}"))
    queue.block()
    assert not queue._emitter.pending
    until(lambda: "penstock-events" not in {each.name for each in threading.enumerate()})


def test_who_subscribes_at_the_same_time_is_told_once(connect: Callable[..., Queue]) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        queue = connect()
        for _ in range(100):
            barrier = threading.Barrier(4)

            def subscribe(barrier: threading.Barrier = barrier) -> Callable[[], None]:
                barrier.wait()
                return queue.events.subscribe(EventKind.JOB_AVAILABLE, lambda _: None)

            with ThreadPoolExecutor(4) as pool:
                ends = [each.result() for each in [pool.submit(subscribe) for _ in range(4)]]
            assert listeners(queue) == 1
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda end: end(), ends))
            assert listeners(queue) == 0
    finally:
        sys.setswitchinterval(interval)


def test_a_subscriber_that_hangs_does_not_fill_the_memory(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(emitter, "MAX_PENDING", 10)
    told: list[str | None] = []
    hanging, go = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        hanging.set()
        assert go.wait(SOON)
        told.append(event.job_id)

    queue.events.subscribe(EventKind.JOB_AVAILABLE, hang)
    queue.backend.enqueue_job(job("first"))
    assert hanging.wait(SOON)
    for number in range(30):
        queue.backend.enqueue_job(job(f"job{number}"))
    assert len(queue._emitter.pending) == 10
    go.set()
    until(lambda: told == ["first", *(f"job{number}" for number in range(20, 30))])
    assert "20 commits were dropped" in caplog.text


def test_a_subscriber_may_close_the_queue_while_streams_are_busy(connect: Callable[..., Queue]) -> None:
    """Whoever waits for its turn to tell must not keep the close waiting that the teller waits for."""
    queue = connect()
    closed = threading.Event()

    def close(_event: Event) -> None:
        pass_time(0.2)  # meanwhile the streams come to wait for their turn
        queue.close()
        closed.set()

    queue.stream_jobs("worker", max_assigned_jobs=100)
    queue.events.subscribe(EventKind.JOB_AVAILABLE, close)
    queue.backend.enqueue_jobs([job(f"job{number}") for number in range(40)])
    assert closed.wait(SOON)


def test_events_go_on_in_a_child(shared_url: str) -> None:
    """F9: for the subscribers it has from its parent, and for its own."""
    with penstock.connect(shared_url) as queue:
        told: list[str | None] = []
        queue.events.subscribe(EventKind.JOB_AVAILABLE, lambda event: told.append(event.job_id))
        queue.enqueue_job(job("parent"))
        emitter = queue._emitter
        with emitter._turn, emitter._mutex, emitter._switching, queue.events._lock:
            child = os.fork()
        if child == 0:
            status = 1
            try:
                queue.enqueue_job(job("child"))
                own: list[str | None] = []
                queue.events.subscribe(EventKind.JOB_AVAILABLE, lambda event: own.append(event.job_id))
                queue.enqueue_job(job("again"))
                status = 0 if (told, own) == (["parent", "child", "again"], ["again"]) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        queue.enqueue_job(job("after"))
        assert told == ["parent", "after"]


def test_the_fault_of_a_listener_is_logged(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    end = queue.backend.runtime.listen(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    queue.enqueue_job(job("a"))
    end()
    assert "a listener failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_store_may_allow_deeper_trees():
    """G25: the limit is an option of the store."""
    with penstock.connect("memory:", max_depth=120) as queue:
        tree = Flow(Job.new("t"))
        for _ in range(119):
            tree = Flow(Job.new("t"), [tree])
        assert len(queue.enqueue_flow(tree)) == 120
        with pytest.raises(DependencyError, match="120"):
            queue.enqueue_flow(Flow(Job.new("t"), [tree]))
