"""The life cycle that all background threads share."""

import logging
import os
import signal
import threading
import time

import pytest
from tests.waiting import until

from penstock.errors import BackendError, QueueClosedError
from penstock.service import Backoff, Service, start_together

ROUNDS = 100
DEADLINE = 30


class Counting:
    """A step that counts its calls and how many threads are in it."""

    def __init__(self, *raised: Exception) -> None:
        self.calls = 0
        self.most = 0
        self.at: list[float] = []
        self._inside = 0
        self._lock = threading.Lock()
        self._raised = list(raised)

    def __call__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self.calls += 1
            self.at.append(time.monotonic())
            error = self._raised.pop(0) if self._raised else None
        try:
            if error is not None:
                raise error
        finally:
            with self._lock:
                self._inside -= 1


def threads(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == f"penstock-{name}"]


def test_it_repeats_its_step_until_it_is_stopped():
    step = Counting()
    service = Service("counting", step, seconds=0.001)
    service.start()
    (thread,) = threads("counting")
    assert thread.daemon
    until(lambda: step.calls > 3)
    assert service.is_running
    assert service.stop()
    assert not service.is_running
    calls = step.calls
    assert not thread.is_alive()
    assert step.calls == calls


def test_starting_twice_starts_one_thread_and_stopping_twice_is_harmless():
    service = Service("twice", lambda: None, seconds=60)
    service.start()
    service.start()
    assert len(threads("twice")) == 1
    assert service.stop()
    assert service.stop()


def test_a_service_that_was_never_started_can_be_stopped_and_woken():
    service = Service("never", lambda: None)
    service.wake()
    assert service.stop()
    assert service.is_stopping


def test_waking_ends_the_pause():
    step = Counting()
    service = Service("woken", step, seconds=3600)
    service.start()
    until(lambda: step.calls == 1)
    service.wake()
    until(lambda: step.calls == 2)
    service.stop()


def test_the_first_step_may_come_after_a_pause():
    step = Counting()
    service = Service("late", step, seconds=3600, begins_with_pause=True)
    service.start()
    service.wake()
    until(lambda: step.calls == 1)
    service.stop()
    assert step.calls == 1


def test_a_step_may_say_when_the_next_one_comes():
    pauses = [0.0, 0.0, 3600.0]
    called: list[int] = []

    def step() -> float:
        called.append(1)
        return pauses.pop(0)

    service = Service("saying", step, seconds=3600)
    service.start()
    until(lambda: len(called) == 3)
    service.stop()
    assert len(called) == 3


def test_stopping_interrupts_a_step_that_waits_by_itself():
    changed = threading.Condition()

    def step() -> None:
        with changed:
            changed.wait_for(lambda: service.is_stopping)

    def interrupt() -> None:
        with changed:
            changed.notify_all()

    service = Service("blocking", step, interrupt=interrupt)
    for _ in range(ROUNDS):
        service.start()
        assert service.stop(DEADLINE)


def test_the_previous_thread_learns_that_it_was_stopped_after_another_was_started():
    """`is_stopping` speaks of the thread that asks, so a restart does not revive a thread that was stopped."""
    inside, go_on, answers = threading.Event(), threading.Event(), []

    def step() -> float:
        inside.set()
        go_on.wait(DEADLINE)
        answers.append(service.is_stopping)
        return 3600.0

    service = Service("restarted", step)
    service.start()
    assert inside.wait(DEADLINE)
    assert not service.stop(wait=False)
    service.start()
    go_on.set()
    until(lambda: len(answers) == 2)
    assert answers == [True, False]
    service.stop()


@pytest.mark.parametrize("seconds", [0.0, 0.0005])
def test_starting_and_stopping_from_several_threads(seconds):
    step = Counting()
    service = Service("stressed", step, seconds=seconds)
    errors: list[BaseException] = []

    def stress(number: int) -> None:
        try:
            for _ in range(ROUNDS):
                service.start()
                service.wake()
                if number % 2:
                    service.stop(wait=False)
                else:
                    service.stop()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=stress, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE)
    assert not any(worker.is_alive() for worker in workers)
    assert not errors
    assert service.stop(DEADLINE)
    until(lambda: not threads("stressed"))
    assert step.most <= 1


def test_work_that_comes_while_it_retires_is_done():
    """Work added under the lock that the step retires under finds a thread, old or new."""
    lock, todo, done = threading.Lock(), [], []

    def step() -> float:
        with lock:
            while todo:
                done.append(todo.pop())
            service.retire()
        return 3600.0

    service = Service("retiring", step)
    for number in range(ROUNDS):
        with lock:
            todo.append(number)
            service.start()
        if number % 3 == 0:
            until(lambda: not todo)
    until(lambda: len(done) == ROUNDS)
    until(lambda: not threads("retiring"))
    assert not service.is_running


def test_a_step_may_stop_its_own_service():
    def step() -> None:
        answers.append(service.stop())

    answers: list[bool] = []
    service = Service("own", step)
    service.start()
    assert service.join(DEADLINE)
    assert answers == [False]
    assert not service.is_current


def test_a_failed_step_is_logged_and_repeated_after_growing_pauses(caplog):
    step = Counting(*[BackendError("away") for _ in range(4)], ValueError("a defect"))
    service = Service("failing", step, seconds=3600, label="counting")
    with caplog.at_level(logging.WARNING, "penstock"):
        service.start()
        until(lambda: step.calls == 6)
        service.stop()
    assert [record.getMessage() for record in caplog.records] == [
        *["counting failed and is retried: away"] * 4,
        "counting failed and is retried",
    ]
    assert caplog.records[-1].exc_info is not None
    gaps = [later - earlier for earlier, later in zip(step.at, step.at[1:], strict=False)]
    assert all(gap >= least for gap, least in zip(gaps, (0.05, 0.1, 0.2, 0.4), strict=False))


def test_pauses_after_failures_are_no_longer_than_the_usual_pause():
    step = Counting(*[BackendError("away")] * 20)
    service = Service("frequent", step, seconds=0.001)
    service.start()
    until(lambda: step.calls > 20)
    service.stop()


def test_waking_does_not_shorten_the_pause_after_a_failure_but_stopping_does():
    step = Counting(BackendError("away"))
    service = Service("held", step)
    service._max_retry = 3600.0
    service.start()
    until(lambda: step.calls == 1)
    for _ in range(5):
        service.wake()
    assert service.stop(DEADLINE)
    assert len(step.at) < 2 or step.at[1] - step.at[0] >= 0.05


def test_a_closed_store_ends_it_in_silence(caplog):
    step = Counting(QueueClosedError("closed"))
    service = Service("closed", step, seconds=0.001)
    service.start()
    assert service.join(DEADLINE)
    assert not service.is_running
    assert not caplog.records


def test_several_start_together_or_not_at_all(monkeypatch):
    steps = [Counting(), Counting(), Counting()]
    services = [Service(f"of-three-{number}", step) for number, step in enumerate(steps)]
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "penstock-of-three-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            start_together(*services)
    until(lambda: not [each for each in threading.enumerate() if "of-three" in each.name])
    assert [step.calls for step in steps] == [0, 0, 0]
    start_together(*services)
    until(lambda: all(step.calls for step in steps))
    for service in services:
        assert service.stop(DEADLINE)


def in_child(run) -> int:
    """Run a function in a forked child, and return its exit status."""
    pid = os.fork()
    if pid == 0:
        code = signal.alarm(DEADLINE) or 1  # a child that hangs is killed
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_no_thread_and_starts_its_own():
    step = Counting()
    service = Service("forked", step, seconds=0.001)
    service.start()
    until(lambda: step.calls)

    def child() -> None:
        assert not service.is_running
        assert service.stop(5)
        step.__init__()
        service.start()
        until(lambda: step.calls)
        assert service.stop(5)

    assert in_child(child) == 0
    assert service.is_running
    service.stop()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_that_the_parent_held_does_not_hang_the_child():
    service = Service("locked", lambda: None, seconds=60)
    service.start()

    def child() -> None:
        starters = [threading.Thread(target=service.start) for _ in range(4)]
        for starter in starters:
            starter.start()
        for starter in starters:
            starter.join(10)
        assert len(threads("locked")) == 1
        assert service.stop(5)

    with service._lock:
        status = in_child(child)
    assert status == 0
    service.stop()


def test_pauses_double_up_to_a_limit():
    backoff = Backoff(0.05, 0.3)
    assert backoff.is_first
    assert [backoff.next() for _ in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]
    assert not backoff.is_first
    backoff.reset()
    assert backoff.next() == 0.05
