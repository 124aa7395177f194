"""Ambient cancellation, without a store."""

import asyncio
import contextvars
import threading
from datetime import timedelta

import pytest

from penstock.errors import InvalidArgumentError, OperationCancelledError
from penstock.scope import CancelScope, cancel_scope, checkpoint, current_scope


def test_outside_a_scope_nothing_happens():
    assert current_scope() is None
    checkpoint()


def test_a_cancelled_scope_stops_the_next_call():
    with cancel_scope() as scope:
        checkpoint()
        scope.cancel()
        scope.cancel()
        assert scope.cancelled
        with pytest.raises(OperationCancelledError) as caught:
            checkpoint()
    assert caught.value.timed_out is False
    checkpoint()


@pytest.mark.parametrize("over", [0, 0.0, timedelta(0)])
def test_a_scope_without_time_is_over_at_once(over):
    with cancel_scope(over), pytest.raises(OperationCancelledError, match="time limit") as caught:
        checkpoint()
    assert caught.value.timed_out is True


def test_time_counts_from_entering():
    scope = cancel_scope(timeout=100)
    assert scope.remaining() is None
    with scope:
        assert 99 < scope.remaining() <= 100
        assert not scope.cancelled


def test_inner_calls_obey_every_scope_around_them():
    with cancel_scope(50) as outer, cancel_scope(100) as inner:
        assert inner.remaining() <= 50
        outer.cancel()
        assert inner.cancelled
        with pytest.raises(OperationCancelledError):
            checkpoint()
    with cancel_scope(), cancel_scope() as inner:
        inner.cancel()
        with pytest.raises(OperationCancelledError):
            checkpoint()
    with cancel_scope() as outer:
        with cancel_scope() as inner:
            inner.cancel()
        assert current_scope() is outer
        checkpoint()


def test_cancelling_from_another_thread_calls_the_subscribers_once():
    called = []
    with cancel_scope() as outer, cancel_scope() as inner:
        stop = inner.subscribe(lambda: called.append("inner"))
        outer.subscribe(lambda: called.append("outer"))
        thread = threading.Thread(target=outer.cancel)
        thread.start()
        thread.join()
        outer.cancel()
    assert sorted(called) == ["inner", "outer"]
    stop()


def test_a_subscriber_that_comes_late_is_called_at_once_and_one_that_left_is_not():
    called = []
    with cancel_scope() as scope:
        scope.subscribe(lambda: called.append("left"))()
        scope.cancel()
        scope.subscribe(lambda: called.append("late"))
    assert called == ["late"]


def test_a_scope_does_not_reach_threads_started_by_hand_but_copied_contexts():
    found = []
    with cancel_scope() as scope:
        context = contextvars.copy_context()
        for target in (
            lambda: found.append(current_scope()),
            lambda: found.append(context.run(current_scope)),
        ):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    # Newer interpreters may be told to pass the context on; by default they do not.
    assert found[1] is scope
    assert found[0] is None


def test_a_scope_follows_tasks():
    async def inside():
        checkpoint()

    async def main():
        with cancel_scope() as scope:
            task = asyncio.create_task(inside())
            scope.cancel()
            with pytest.raises(OperationCancelledError):
                await task

    asyncio.run(main())


def test_it_is_entered_once_at_a_time():
    scope = cancel_scope()
    with scope, pytest.raises(RuntimeError, match="only once"):
        scope.__enter__()
    with scope:
        assert current_scope() is scope


@pytest.mark.parametrize("wrong", [-1, float("nan"), True, "2", [1]])
def test_a_wrong_time_is_refused(wrong):
    with pytest.raises(InvalidArgumentError) as caught:
        CancelScope(wrong)
    assert caught.value.field == "timeout"
