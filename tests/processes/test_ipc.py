"""The shared state: one lock per job, whole reads, and a lock that ends with its holder."""

import gc
import multiprocessing
import os
import signal
import threading

import pytest

from penstock import InvalidArgumentError, ProcessControlError
from penstock.processes import JobCommand, JobStatus, ipc

pytestmark = pytest.mark.process

ROUNDS = 300


@pytest.fixture
def state():
    return ipc.create_job_shared_state(ipc.get_manager())


@pytest.mark.requirement("P6", "P2")
def test_a_state_has_five_variables_and_a_mutex(state):
    assert list(state) == ["status", "command", "progress", "description", "result", "mutex"]
    values = {name: variable.value for name, variable in state.items() if name != "mutex"}
    assert values == {
        "status": JobStatus.PENDING, "command": JobCommand.NONE, "progress": 0, "description": None, "result": None,
    }  # fmt: skip
    assert ipc.get_manager() is ipc.get_manager()


@pytest.mark.requirement("P6")
def test_variables_hold_what_was_written_and_refuse_what_is_wrong(state):
    with ipc.with_job_lock(state) as locked:
        locked["status"].value = 1
        locked["progress"].set(40)
        locked["description"].value = "half"
        locked["result"].value = {"large": "x" * 500_000}
    assert state["status"].value is JobStatus.RUNNING
    assert (state["progress"].get(), state["description"].value) == (40, "half")
    assert len(state["result"].value["large"]) == 500_000
    for name, wrong in [
        ("status", 9),
        ("status", "RUNNING"),
        ("command", 9),
        ("command", True),
        ("progress", 101),
        ("description", 7),
        ("description", "\ud800"),
        ("result", {1}),
        ("result", "\ud800"),
    ]:
        with pytest.raises(InvalidArgumentError) as caught:
            state[name].value = wrong
        assert caught.value.field == name
    assert (state["progress"].value, state["description"].value) == (40, "half")


@pytest.mark.requirement("P13")
def test_a_lower_progress_changes_nothing(state):
    for wanted, then in [(60, 60), (10, 60), (60, 60), (61, 61), (0, 61), (100, 100)]:
        state["progress"].value = wanted
        assert state["progress"].value == then
        with ipc.with_job_lock(state):
            state["progress"].set(5)
            assert state["progress"].get() == then


@pytest.mark.requirement("P6")
@pytest.mark.parametrize("wrong", [{}, {"mutex": None}, {"mutex": 5}, None, 5, []])
def test_a_lock_of_something_else_is_refused_at_once(wrong):
    with pytest.raises(InvalidArgumentError) as caught:
        ipc.with_job_lock(wrong)
    assert caught.value.field == "shared_state"


@pytest.mark.requirement("P6")
@pytest.mark.parametrize("wrong", [None, 5, multiprocessing.Manager, object()])
def test_a_manager_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidArgumentError) as caught:
        ipc.create_job_shared_state(wrong)
    assert caught.value.field == "manager"


def _report(state):
    with ipc.with_job_lock(state):
        state["progress"].value = 50
        state["result"].value = {"pid": os.getpid()}


@pytest.mark.requirement("P6")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_manager_of_multiprocessing_makes_a_state_that_outlives_it(method):
    context = multiprocessing.get_context(method)
    with context.Manager() as manager:
        state = ipc.create_job_shared_state(manager)
        assert list(state) == ["status", "command", "progress", "description", "result", "mutex"]
    child = context.Process(target=_report, args=(state,))
    child.start()
    child.join(60)
    assert (state["progress"].value, state["result"].value) == (50, {"pid": child.pid})


def _count_up(state, rounds):
    for _ in range(rounds):
        with ipc.with_job_lock(state):
            number = (state["result"].value or 0) + 1
            state["result"].value = number
            state["description"].value = str(number)


@pytest.mark.requirement("P6", "P8")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_update_is_lost_and_no_read_is_torn_between_processes(state, method):
    context = multiprocessing.get_context(method)
    rounds = ROUNDS if method == "fork" else 20
    number = 2 if method == "fork" else 1
    writers = [context.Process(target=_count_up, args=(state, rounds)) for _ in range(number)]
    thread = threading.Thread(target=_count_up, args=(state, rounds))
    for writer in (*writers, thread):
        writer.start()
    torn = 0
    while any(writer.is_alive() for writer in writers):
        with ipc.with_job_lock(state):
            torn += str(state["result"].value or None) != str(state["description"].value)
    for writer in (*writers, thread):
        writer.join(60)
    assert torn == 0
    assert state["result"].value == (number + 1) * rounds


def _die_with_the_lock(state, ready):
    state["mutex"].acquire()
    ready.send("locked")
    signal.pause()


@pytest.mark.requirement("P6")
def test_a_killed_holder_frees_the_lock(state):
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_die_with_the_lock, args=(state, theirs))
    child.start()
    assert ours.recv() == "locked"
    assert state["mutex"].acquire(timeout=0.05) is False
    os.kill(child.pid, signal.SIGKILL)
    child.join(10)
    with ipc.with_job_lock(state):
        state["progress"].value = 7
    assert state["progress"].value == 7


def test_a_stopped_holder_is_an_error_and_not_for_ever(state, monkeypatch):
    monkeypatch.setattr(ipc, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(ipc.JobLock.acquire, "__defaults__", (0.05,))
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_die_with_the_lock, args=(state, theirs))
    child.start()
    assert ours.recv() == "locked"
    with pytest.raises(ProcessControlError, match="was not free"), ipc.with_job_lock(state):
        pass
    child.kill()
    child.join(10)


def test_the_lock_is_reentrant_and_between_threads(state):
    inside = threading.Event()
    order = []

    def second():
        inside.wait(10)
        with ipc.with_job_lock(state):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with ipc.with_job_lock(state), ipc.with_job_lock(state):
        inside.set()
        state["progress"].value = 1
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_state_gives_its_memory_back_without_the_garbage_collector():
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            ipc.create_job_shared_state(ipc.get_manager())
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_a_state_that_is_no_longer_shared_keeps_its_values_and_can_be_shared_again(state):
    memory = state["mutex"].state
    state["result"].value = {"n": [1]}
    state["progress"].value = 40
    seen = memory.generation()
    memory.unshare()
    memory.unshare()
    state["result"].value["n"].append(2)
    assert (state["result"].value, state["progress"].value) == ({"n": [1]}, 40)
    state["description"].value = "alone"
    with ipc.with_job_lock(state):
        memory.share()
        state["progress"].value = 41
        child = multiprocessing.get_context("fork").Process(target=_report, args=(state,))
        child.start()
    child.join(60)
    assert (state["progress"].value, state["description"].value) == (50, "alone")
    assert memory.generation() > seen
