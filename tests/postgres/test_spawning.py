"""Spawning that meets other transactions: one is held just before its commit while another runs into it."""

import pytest

from penstock.errors import DependencyError, StaleAttemptError
from penstock.job import Job


def job(name, **fields):
    return Job(id=name, type="t", **fields)


def is_takeable(backend, name):
    return bool(backend.dequeue_jobs("w", job_ids=[name]))


@pytest.fixture
def two(open_store):
    """Two objects on a store with a running parent."""
    first, second = open_store(), open_store()
    first.enqueue_job(job("parent"))
    first.dequeue_jobs("w")
    return first, second


def test_a_job_that_is_enqueued_meanwhile_finds_the_spawned(two, gate_of, call):
    """C33."""
    spawning, adding = two
    gate = gate_of(spawning)
    spawn = call(spawning.spawn_jobs, "parent", [job("child")])
    assert gate.arrived.wait(10)
    add = call(adding.enqueue_job, job("last", after=("parent",)))
    assert add.is_waiting()
    gate.open.set()
    spawn.result()
    add.result()
    adding.complete_job("parent")
    assert not is_takeable(adding, "last")
    adding.dequeue_jobs("w", job_ids=["child"])
    adding.complete_job("child")
    assert is_takeable(adding, "last")


def test_a_job_that_is_enqueued_meanwhile_finds_what_the_spawned_spawn(two, gate_of, call):
    """C33: it has read who was spawned, and must look again after waiting for them."""
    spawning, adding = two
    spawning.spawn_jobs("parent", [job("child")])
    spawning.complete_job("parent")
    spawning.dequeue_jobs("w")
    gate = gate_of(spawning)
    spawn = call(spawning.spawn_jobs, "child", [job("grandchild")])
    assert gate.arrived.wait(10)
    add = call(adding.enqueue_job, job("last", after=("parent",)))
    assert add.is_waiting()
    gate.open.set()
    spawn.result()
    add.result()
    adding.complete_job("child")
    assert not is_takeable(adding, "last")
    adding.dequeue_jobs("w", job_ids=["grandchild"])
    adding.complete_job("grandchild")
    assert is_takeable(adding, "last")


def test_two_that_spawn_after_each_other_make_no_cycle(open_store, gate_of, call):
    """G25: each alone is legal; the second one must see the first."""
    left, right = open_store(), open_store()
    for name in ("left", "right"):
        left.enqueue_job(job(name))
        left.enqueue_jobs([job(f"next {name}", after=(name,)), job(f"last {name}", after=(f"next {name}",))])
    left.dequeue_jobs("w", job_ids=["left", "right"], limit=2)
    gate = gate_of(left)
    first = call(left.spawn_jobs, "left", [job("by left", after=("last right",))])
    assert gate.arrived.wait(10)
    second = call(right.spawn_jobs, "right", [job("by right", after=("last left",))])
    assert second.is_waiting()
    gate.open.set()
    first.result()
    with pytest.raises(DependencyError) as caught:
        second.result()
    assert caught.value.reason == "cycle"


def test_the_parents_end_and_its_spawning_come_one_after_the_other(two, gate_of, call):
    spawning, ending = two
    gate = gate_of(ending)
    end = call(ending.complete_job, "parent")
    assert gate.arrived.wait(10)
    spawn = call(spawning.spawn_jobs, "parent", [job("child")], attempt=1)
    assert spawn.is_waiting()
    gate.open.set()
    end.result()
    with pytest.raises(StaleAttemptError):
        spawn.result()
