"""Every tree is a source of one journal, so that Spark is asked once for all of them."""

import pytest
from tests.journals import Journal, entries_of, frame_of_all, memory_store

from penstock import Job, chain
from penstock.spark.transforms import flows, latest


def run(backend, clock, job_id, seconds):
    backend.dequeue_jobs("w", job_ids=[job_id])
    clock.advance(seconds)
    backend.complete_job(job_id)


def fan_in():
    """`slow` decides when `last` may begin; `quick` does not matter."""
    backend, clock = memory_store()
    backend.enqueue_jobs(
        [
            Job(id="quick", type="q"),
            Job(id="slow", type="s"),
            Job(id="last", type="l", after=("quick", "slow")),
        ]
    )
    run(backend, clock, "quick", 1)
    run(backend, clock, "slow", 10)
    clock.advance(3)
    run(backend, clock, "last", 2)
    return entries_of(backend)


def any_of_two():
    """The first that ends sets it free, and is the path."""
    backend, clock = memory_store()
    backend.enqueue_jobs(
        [
            Job(id="first", type="t"),
            Job(id="second", type="t"),
            Job(id="last", type="t", after_any=("first", "second")),
        ]
    )
    run(backend, clock, "first", 4)
    run(backend, clock, "last", 1)
    run(backend, clock, "second", 50)
    return entries_of(backend)


def diamond():
    backend, clock = memory_store()
    backend.enqueue_jobs(
        [
            Job(id="top", type="t"),
            Job(id="left", type="t", after=("top",)),
            Job(id="right", type="t", after=("top",)),
            Job(id="bottom", type="t", after=("left", "right")),
        ]
    )
    for job_id, seconds in (("top", 1), ("right", 2), ("left", 3), ("bottom", 4)):
        run(backend, clock, job_id, seconds)
    return entries_of(backend)


def long_chain():
    backend, clock = memory_store()
    backend.enqueue_jobs(chain(*(Job(id=f"{number:02d}", type="t") for number in range(6))))
    for number in range(3):
        run(backend, clock, f"{number:02d}", 1)
    return entries_of(backend)


def two_trees_share_a_job():
    backend, clock = memory_store()
    backend.enqueue_jobs(
        [
            Job(id="shared", type="t"),
            Job(id="one", type="t", after=("shared",)),
            Job(id="two", type="t", after=("shared",)),
        ]
    )
    for job_id in ("shared", "one", "two"):
        run(backend, clock, job_id, 1)
    return entries_of(backend)


def alone():
    journal = Journal()
    journal.healthy("a")
    return journal.entries


@pytest.fixture(scope="module")
def found(spark):
    made = {
        each.__name__: each()
        for each in (fan_in, any_of_two, diamond, long_chain, two_trees_share_a_job, alone)
    }
    trees = {}
    for row in flows(latest(frame_of_all(spark, made))).collect():
        trees.setdefault(row.source, {})[row.flow_id] = row
    return trees


def path_of(row):
    return [step.job_id for step in row.critical_path]


def test_the_path_goes_through_what_each_job_waited_for_last(found):
    (row,) = found["fan_in"].values()
    assert (row.flow_id, row.type, row.status, row.jobs, row.depth) == ("last", "l", "completed", 3, 2)
    assert row.job_ids == ["last", "quick", "slow"]
    assert path_of(row) == ["slow", "last"]
    assert [(step.wait_seconds, step.run_seconds) for step in row.critical_path] == [(1.0, 10.0), (3.0, 2.0)]
    assert (row.seconds, row.critical_wait_seconds, row.critical_run_seconds) == (16.0, 4.0, 12.0)


def test_of_after_any_the_first_to_end_is_the_path(found):
    assert path_of(found["any_of_two"]["last"]) == ["first", "last"]


def test_a_job_that_is_reached_twice_is_one(found):
    (row,) = found["diamond"].values()
    assert (row.jobs, row.depth, path_of(row)) == (4, 3, ["top", "left", "bottom"])


def test_a_tree_that_has_not_ended_has_no_end(found):
    (row,) = found["long_chain"].values()
    assert (row.flow_id, row.depth, row.status) == ("05", 6, "initial_pending")
    assert (row.ended_at, row.seconds) == (None, None)
    assert path_of(row) == [f"{number:02d}" for number in range(6)]


def test_every_last_job_names_a_tree(found):
    shared = found["two_trees_share_a_job"]
    assert {name: path_of(row) for name, row in shared.items()} == {
        "one": ["shared", "one"],
        "two": ["shared", "two"],
    }


def test_a_job_without_dependencies_is_no_tree(found):
    assert "alone" not in found
