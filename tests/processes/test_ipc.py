"""The shared state: one lock a job, whole reads, and a lock that outlives nobody."""

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
        ("command", 9),
        ("progress", 101),
        ("description", 7),
        ("result", {1}),
    ]:
        with pytest.raises(ValueError):
            state[name].value = wrong
    assert state["progress"].value == 40
    with pytest.raises(InvalidArgumentError):
        ipc.create_job_shared_state(None)


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


def test_a_state_gives_its_memory_back():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        ipc.create_job_shared_state(ipc.get_manager())
    import gc

    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
