"""Every scenario is a source of one journal, so that Spark is asked once for all of them."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.journals import Journal, entries_of, frame_of_all, memory_store, rows_of
from tests.machine_journals import random_store

from penstock import FailureCategory, Job, RetryPolicy
from penstock.job import JobStatus, JournalEntry
from penstock.spark.transforms import latest

SEEDS = range(4)
SCENARIOS: dict[str, Callable[[], list[JournalEntry]]] = {}


def scenario(make: Callable[[], list[JournalEntry]]) -> Callable[[], list[JournalEntry]]:
    SCENARIOS[make.__name__] = make
    return make


@scenario
def two_attempts():
    backend, clock = memory_store()
    policy = RetryPolicy(max_attempts=2, initial_delay=0)
    backend.enqueue_job(Job(id="a", type="t", tags=("red",), retry=policy))
    backend.enqueue_job(Job(id="b", type="t", after=("a",), parent_id="a"))
    clock.advance(2)
    backend.dequeue_jobs("w1")
    clock.advance(3)
    backend.fail_job("a", "no", attempt=1)
    clock.advance(4)
    backend.dequeue_jobs("w2")
    clock.advance(5)
    backend.complete_job("a", attempt=2)
    return entries_of(backend)


@scenario
def removed_and_used_again():
    backend, clock = memory_store()
    backend.enqueue_job(Job(id="a", type="t"))
    backend.dequeue_jobs("w")
    backend.fail_job("a", "bad", category=FailureCategory.PERMANENT)
    clock.advance(60)
    backend.delete_jobs(job_ids=["a"])
    backend.enqueue_job(Job(id="a", type="again"))
    return entries_of(backend)


@scenario
def came_back_from_its_end():
    backend, _ = memory_store()
    backend.enqueue_job(Job(id="a", type="t"))
    backend.dequeue_jobs("w")
    backend.mark_job_unknown_stopped("a", "lost")
    backend.update_job_status("a", JobStatus.FAILED_RETRY)
    return entries_of(backend)


@scenario
def without_a_beginning():
    journal = Journal()
    journal.healthy("a")
    return journal.entries[1:]


@pytest.fixture(scope="module")
def stores():
    return {f"random-{seed}": random_store(seed) for seed in SEEDS}


@pytest.fixture(scope="module")
def journals(stores):
    made = {name: make() for name, make in SCENARIOS.items()}
    return made | {name: entries_of(backend) for name, backend in stores.items()}


@pytest.fixture(scope="module")
def found(spark, journals) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {name: [] for name in journals}
    for row in latest(frame_of_all(spark, journals)).orderBy("job_id", "history").collect():
        rows[row.source].append(row)
    return rows


def test_a_job_is_what_its_rows_say(found):
    a, b = found["two_attempts"]
    assert (a.status, a.attempt, a.retry_count, a.failures, a.assignee_id) == ("completed", 2, 1, 1, "w2")
    moments = (a.started_at, a.finalized_at, a.updated_at)
    assert [(moment - a.enqueued_at).total_seconds() for moment in moments] == [2, 14, 14]
    assert (a.first_seq, a.last_seq, a.n, a.history, a.removed_at) == (1, 6, 5, 1, None)
    assert (b.status, b.after, b.after_any, b.parent_id) == ("initial_pending", ["a"], [], "a")
    assert (b.started_at, b.finalized_at) == (None, None)


def test_a_removed_job_stays_and_the_next_of_its_id_is_another(found):
    first, second = found["removed_and_used_again"]
    assert (first.history, first.status, first.type) == (1, "failed", "t")
    assert (first.removed_at - first.finalized_at).total_seconds() == 60
    assert (second.history, second.status, second.type) == (2, "initial_pending", "again")
    assert (second.removed_at, second.started_at, second.finalized_at) == (None, None, None)


def test_a_job_that_came_back_from_its_end_has_no_end(found):
    (row,) = found["came_back_from_its_end"]
    assert (row.status, row.finalized_at) == ("failed_retry", None)


def test_a_journal_without_a_beginning_is_folded_all_the_same(found):
    (row,) = found["without_a_beginning"]
    assert (row.status, row.history, row.first_seq, row.enqueued_at) == ("completed", 1, None, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fold_of_a_random_store_is_what_it_stores(found, stores, seed):
    stored = {job.id: job for job in stores[f"random-{seed}"].list_jobs(limit=1000)}
    folded = [row for row in found[f"random-{seed}"] if row.removed_at is None]
    assert {row.job_id for row in folded} == stored.keys()
    for row in folded:
        job = stored[row.job_id]
        counted = (job.status, job.attempt, job.retry_count, job.failures)
        assert (row.status, row.attempt, row.retry_count, row.failures) == counted, row.job_id
        assert (row.tags, row.priority, row.assignee_id) == (list(job.tags), job.priority, job.assignee_id)
        moments = [job.started_at, job.finalized_at, job.updated_at]
        naive = [moment and moment.replace(tzinfo=None) for moment in moments]
        assert [row.started_at, row.finalized_at, row.updated_at] == naive, row.job_id


def test_a_fold_may_go_on_from_an_earlier_one(spark, journals):
    cuts = {name: random.Random(name).randrange(1, len(entries)) for name, entries in journals.items()}
    early = frame_of_all(spark, {name: entries[: cuts[name]] for name, entries in journals.items()})
    late = frame_of_all(spark, {name: entries[cuts[name] :] for name, entries in journals.items()})
    known = latest(early).cache()
    touched = late.select("source", "job_id").distinct()
    changed = known.join(touched, ["source", "job_id"], "left_semi")
    rest = known.join(touched, ["source", "job_id"], "left_anti")
    merged = latest(late, changed).unionByName(rest)
    assert rows_of(merged) == rows_of(latest(frame_of_all(spark, journals)))
