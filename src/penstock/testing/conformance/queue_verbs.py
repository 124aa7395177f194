"""Events, flows, submission with defaults, blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.errors import DependencyError, InvalidArgumentError, QueueBlockedError
from penstock.events import EventKind
from penstock.job import JobState, JobStatus, Key
from penstock.policy import DEFAULT_RETRY, DEFAULT_TIMEOUTS, FailureCategory, RetryPolicy
from penstock.queue import Queue
from penstock.queue.flow import Flow
from penstock.testing.clock import ManualClock
from penstock.testing.conformance.queue_support import SOON, QueueSuite, heard, job


class Events(QueueSuite):
    """The events that a queue emits."""

    def test_each_step_is_told_once_after_it_is_committed(self, queue: Queue) -> None:
        """R4, C46."""
        events = heard(queue)
        queue.events.subscribe(
            EventKind.JOB_AVAILABLE,
            lambda event: events.append((event.kind, queue.get_job(event.job_id).status)),
        )
        queue.enqueue_job(job("a", key=Key("k")))
        assert events == [
            (EventKind.JOB_AVAILABLE, "a"),
            (EventKind.JOB_AVAILABLE, JobStatus.INITIAL_PENDING),
        ]
        events.clear()
        queue.enqueue_job(job("b", key=Key("k")))
        assert events == []
        queue.claim_jobs("w")
        queue.fail_job("a", "oops")
        queue.claim_jobs("w")
        queue.complete_job("a")
        found = [(kind, who) for kind, who in events if not isinstance(who, JobStatus)]
        assert found == [
            (EventKind.JOB_STARTED, "a"),
            (EventKind.JOB_RETRY, "a"),
            (EventKind.JOB_AVAILABLE, "a"),
            (EventKind.JOB_STARTED, "a"),
            (EventKind.JOB_COMPLETED, "a"),
            (EventKind.JOB_AVAILABLE, "b"),
        ]
        events.clear()
        queue.cancel_jobs(job_ids=["b"])
        assert (EventKind.JOB_CANCELLED, "b") in events

    def test_a_subscriber_that_fails_does_not_fail_the_verb(self, queue: Queue) -> None:
        queue.events.subscribe(EventKind.JOB_AVAILABLE, lambda _event: 1 / 0)
        assert queue.enqueue_job(job("a")) == "a"

    def test_a_subscriber_may_call_verbs_and_order_is_kept(self, queue: Queue) -> None:
        events = heard(queue)
        queue.events.subscribe(
            EventKind.JOB_COMPLETED,
            lambda event: queue.enqueue_job(job("next")) if event.job_id == "a" else None,
        )
        queue.enqueue_job(job("a"))
        queue.claim_jobs("w")
        queue.complete_job("a")
        assert events[-2:] == [(EventKind.JOB_COMPLETED, "a"), (EventKind.JOB_AVAILABLE, "next")]


class Flows(QueueSuite):
    """Trees of jobs."""

    def test_a_parent_waits_for_its_whole_tree(self, queue: Queue) -> None:
        """R7, R8, C48: also when all jobs share one key."""
        tree = Flow(
            job("root", key=Key("k")),
            [Flow(job("left", key=Key("k")), [job("leaf", key=Key("k"))]), job("right", key=Key("k"))],
        )
        assert queue.enqueue_flow(tree) == ["leaf", "left", "right", "root"]
        order = []
        while taken := queue.claim_jobs("w"):
            order.append(taken[0].id)
            queue.complete_job(taken[0].id)
        assert order == ["leaf", "left", "right", "root"]
        assert queue.get_job("leaf").parent_id == "left"

    def test_a_child_that_fails_for_good_fails_its_parents(self, queue: Queue) -> None:
        """G26, C47."""
        queue.enqueue_flow(Flow(job("root"), [Flow(job("middle"), [job("leaf")])]))
        queue.claim_jobs("w")
        queue.fail_job("leaf", "broken", category=FailureCategory.PERMANENT)
        assert {queue.get_job(name).status for name in ("leaf", "middle", "root")} == {JobStatus.FAILED}

    def test_a_tree_may_be_100_deep_and_no_deeper(self, queue: Queue) -> None:
        """G25."""
        tree: Flow = Flow(job("0"))
        for depth in range(1, 100):
            tree = Flow(job(str(depth)), [tree])
        assert len(queue.enqueue_flow(tree)) == 100
        with pytest.raises(DependencyError) as caught:
            queue.enqueue_flow(Flow(job("top"), [tree]))
        assert caught.value.reason == "depth"


class Submitting(QueueSuite):
    """`submit` and `submit_many`."""

    def test_submit_applies_the_models_defaults(self, queue: Queue) -> None:
        """G1, G13, G18, C53, C54, C55."""
        stored = queue.submit("mail", {"to": "x"}, tags={"tier": "gold", "a=b": "c"}, key="customer-42")
        assert (stored.retry, stored.timeouts) == (DEFAULT_RETRY, DEFAULT_TIMEOUTS)
        assert stored.payload == b'{"to":"x"}'
        assert stored.tags == ("tier=gold", "a\\=b=c")
        assert stored.key == Key("customer-42")
        assert stored.state is JobState.SCHEDULED
        assert queue.submit("mail", b"raw").payload == b"raw"
        assert queue.submit("mail", retry=None).retry is None
        assert queue.submit("mail", retry=RetryPolicy(max_attempts=7)).retry == RetryPolicy(max_attempts=7)

    def test_a_delay_counts_from_the_stores_clock(self, connect: Callable[..., Queue]) -> None:
        """G4."""
        clock = ManualClock()
        queue = connect(clock=clock)
        stored = queue.submit("mail", delay=60)
        assert stored.run_at == clock.now() + timedelta(seconds=60)
        assert stored.state is JobState.DELAYED
        clock.advance(60)
        assert queue.get_job(stored.id).state is JobState.SCHEDULED
        with pytest.raises(InvalidArgumentError):
            queue.submit("mail", delay=1, run_at=clock.now())
        with pytest.raises(InvalidArgumentError):
            queue.submit("mail", delay=-1)

    def test_the_same_idempotency_key_gives_back_the_same_job(self, queue: Queue) -> None:
        """G2, C32."""
        first = queue.submit("mail", {"n": 1}, idempotency_key="once")
        assert queue.submit("mail", {"n": 2}, idempotency_key="once") == first
        assert queue.submit("post", {"n": 1}, idempotency_key="once").id != first.id
        many = queue.submit_many(
            [{"type": "mail", "idempotency_key": "once"}, {"type": "mail", "payload": [1]}]
        )
        assert many[0].id == first.id
        assert many[1].payload == b"[1]"

    @pytest.mark.parametrize(
        "payload",
        [
            float("nan"),
            float("inf"),
            2**63,
            {1: 2},
            {"a": {1, 2}},
            [object()],
            "a\0b",
            "\ud800",
            {"\ud800": 1},
        ],
    )
    def test_a_payload_that_is_no_json_is_refused_with_its_place(self, queue: Queue, payload: object) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            queue.submit("mail", payload)
        assert caught.value.field == "payload"
        assert queue.get_job_stats().total_jobs == 0

    def test_deep_and_cyclic_payloads_are_refused(self, queue: Queue) -> None:
        cyclic: list[object] = []
        cyclic.append(cyclic)
        with pytest.raises(InvalidArgumentError, match="nested deeper"):
            queue.submit("mail", cyclic)

    def test_wrong_requests_are_refused_and_nothing_is_stored(self, queue: Queue) -> None:
        for requests in (
            [{"payload": 1}],
            [{"type": "mail", "nonsense": 1}],
            ["mail"],
            [{"type": "mail", "id": "x"}],
        ):
            with pytest.raises(InvalidArgumentError):
                queue.submit_many([{"type": "mail"}, *requests])
        for not_requests in (None, 5, {"type": "mail"}):
            with pytest.raises(InvalidArgumentError) as caught:
                queue.submit_many(not_requests)  # type: ignore[arg-type]
            assert caught.value.field == "requests"
        assert queue.get_job_stats().total_jobs == 0


class Draining(QueueSuite):
    """`block`, `unblock` and the call when the queue is drained."""

    def test_a_blocked_queue_takes_no_new_jobs_and_says_when_it_is_drained(self, queue: Queue) -> None:
        """R16, R17, C51."""
        events = heard(queue)
        queue.enqueue_job(job("a"))
        drained = threading.Event()
        queue.block(on_drained=drained.set)
        assert queue.is_blocked()
        for refused in (lambda: queue.submit("mail"), lambda: queue.enqueue_job(job("b"))):
            with pytest.raises(QueueBlockedError):
                refused()
        assert not queue.is_drained()
        queue.claim_jobs("w")
        queue.fail_job("a", "again")  # a retry passes
        queue.claim_jobs("w")
        queue.complete_job("a")
        assert drained.wait(SOON)
        queue.unblock()
        queue.enqueue_job(job("b"))
        kinds = [kind for kind, _ in events]
        assert EventKind.QUEUE_BLOCKED in kinds
        assert EventKind.QUEUE_UNBLOCKED in kinds

    def test_a_drained_queue_calls_back_at_once_and_unblock_drops_the_callback(self, queue: Queue) -> None:
        """R16."""
        calls: list[str] = []
        queue.block(on_drained=lambda: calls.append("now"))
        assert calls == ["now"]
        queue.unblock()
        queue.enqueue_job(job("a"))
        queue.block(on_drained=lambda: calls.append("never"))
        queue.unblock()
        queue.claim_jobs("w")
        queue.complete_job("a")
        assert queue.is_drained()
        assert calls == ["now"]

    def test_the_flag_can_be_set_by_its_verb_too(self, queue: Queue) -> None:
        """R16: as `block` and `unblock` do, with their events."""
        events = heard(queue)
        calls: list[str] = []
        queue.enqueue_job(job("a"))
        queue.block(on_drained=lambda: calls.append("never"))
        queue.set_blocked(False)
        assert queue.is_blocked() is False
        queue.set_blocked(True)
        assert queue.is_blocked() is True
        queue.cancel_jobs(job_ids=["a"])
        assert [kind for kind, _ in events if kind.startswith("queue")] == [
            EventKind.QUEUE_BLOCKED,
            EventKind.QUEUE_UNBLOCKED,
            EventKind.QUEUE_BLOCKED,
        ]
        assert calls == []
        with pytest.raises(InvalidArgumentError):
            queue.set_blocked(1)  # type: ignore[arg-type]

    def test_the_callback_may_be_a_coroutine_function(self, queue: Queue) -> None:
        """R16."""
        drained = threading.Event()

        async def on_drained() -> None:
            drained.set()

        queue.block(on_drained)
        assert drained.is_set()
        queue.unblock()
        drained.clear()
        queue.enqueue_job(job("a"))
        queue.block(on_drained)
        queue.cancel_jobs(job_ids=["a"])
        assert drained.wait(SOON)

    def test_what_is_no_callback_is_refused_before_anything_is_blocked(self, queue: Queue) -> None:
        with pytest.raises(InvalidArgumentError) as caught:
            queue.block("callback")  # type: ignore[arg-type]
        assert caught.value.field == "on_drained"
        assert queue.is_blocked() is False
