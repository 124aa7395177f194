"""Transactions that meet: one is held just before its commit while another runs into it."""

import multiprocessing
import threading
from collections import Counter

import pytest

from penstock.job import Job, JobState, JobStatus, Key
from penstock.testing import check_fold, check_invariants

KEY = Key("k")


def whole(backend):
    """The journal and the jobs, after checking that each explains the other."""
    journal = []
    while page := backend.read_journal(journal[-1].seq if journal else 0):
        journal += page
    assert [entry.seq for entry in journal] == list(range(1, len(journal) + 1))
    assert not list(check_invariants(journal))
    jobs = list(backend.get_jobs({entry.job_id for entry in journal}).values())
    assert not list(check_fold(journal, jobs))
    return journal, jobs


def test_a_head_that_ends_while_its_follower_is_enqueued_passes_its_turn(open_store, gate_of, call):
    """B9, C13: the enqueue waits for the key, then finds nobody before it."""
    ending, adding = open_store(), open_store()
    ending.enqueue_job(Job(id="head", type="t", key=KEY))
    ending.dequeue_jobs("w")
    gate = gate_of(ending)
    end = call(ending.complete_job, "head")
    assert gate.arrived.wait(10)
    add = call(adding.enqueue_job, Job(id="follower", type="t", key=KEY))
    assert add.is_waiting()
    gate.open.set()
    end.result()
    add.result()
    assert [job.id for job in adding.dequeue_jobs("w")] == ["follower"]
    whole(adding)


def test_a_follower_enqueued_while_its_head_ends_is_given_the_turn(open_store, gate_of, call):
    """B9, C13: the other order: the end waits for the key, then finds the follower."""
    ending, adding = open_store(), open_store()
    ending.enqueue_job(Job(id="head", type="t", key=KEY))
    ending.dequeue_jobs("w")
    gate = gate_of(adding)
    add = call(adding.enqueue_job, Job(id="follower", type="t", key=KEY))
    assert gate.arrived.wait(10)
    end = call(ending.complete_job, "head")
    assert end.is_waiting()
    gate.open.set()
    add.result()
    end.result()
    assert [job.id for job in ending.dequeue_jobs("w")] == ["follower"]
    whole(ending)


def test_two_last_dependencies_that_end_together_release_the_job_once(open_store, gate_of, call):
    """G23, C27: the second end waits for the dependent's row and sees what the first one did to it."""
    one, two = open_store(), open_store()
    one.enqueue_jobs(
        [Job(id="a", type="t"), Job(id="b", type="t"), Job(id="c", type="t", after=("a", "b"))]
    )
    one.dequeue_jobs("w", limit=2)
    gate = gate_of(one)
    first = call(one.complete_job, "a")
    assert gate.arrived.wait(10)
    second = call(two.complete_job, "b")
    assert second.is_waiting()
    gate.open.set()
    first.result()
    second.result()
    assert two.get_job("c").state is JobState.SCHEDULED
    assert [job.id for job in two.dequeue_jobs("w")] == ["c"]
    whole(two)


def test_a_dependency_that_ends_while_its_dependent_is_enqueued_is_not_waited_for(open_store, gate_of, call):
    """G22: the enqueue waits for the row of what it depends on."""
    ending, adding = open_store(), open_store()
    ending.enqueue_job(Job(id="a", type="t"))
    ending.dequeue_jobs("w")
    gate = gate_of(ending)
    end = call(ending.complete_job, "a")
    assert gate.arrived.wait(10)
    add = call(adding.enqueue_job, Job(id="b", type="t", after=("a",)))
    assert add.is_waiting()
    gate.open.set()
    end.result()
    add.result()
    assert adding.get_job("b").state is JobState.SCHEDULED


def test_a_dependent_enqueued_while_its_dependency_is_completed_is_released(open_store, gate_of, call):
    """G22: the short way of completion notices that somebody waits by now."""
    ending, adding = open_store(), open_store()
    ending.enqueue_job(Job(id="a", type="t"))
    ending.dequeue_jobs("w")
    gate = gate_of(adding)
    add = call(adding.enqueue_job, Job(id="b", type="t", after=("a",)))
    assert gate.arrived.wait(10)
    end = call(ending.complete_jobs, {"a": None})
    assert end.is_waiting()
    gate.open.set()
    add.result()
    end.result()
    assert adding.get_job("b").state is JobState.SCHEDULED
    whole(adding)


def test_two_enqueues_in_one_key_stand_in_the_order_of_their_commits(open_store, gate_of, call):
    """B9, C13: the second waits, so its insertion number is the later one and it is not the head."""
    one, two = open_store(), open_store()
    gate = gate_of(one)
    first = call(one.enqueue_job, Job(id="first", type="t", key=KEY))
    assert gate.arrived.wait(10)
    second = call(two.enqueue_job, Job(id="second", type="t", key=KEY))
    assert second.is_waiting()
    gate.open.set()
    first.result()
    second.result()
    assert [job.id for job in two.dequeue_jobs("w", limit=5)] == ["first"]
    assert two.get_job("second").state is JobState.PENDING


def test_two_enqueues_with_one_idempotency_key_store_one_job(open_store, gate_of, call):
    """G30: the second waits for the first and gets its id."""
    one, two = open_store(), open_store()
    gate = gate_of(one)
    first = call(one.enqueue_job, Job(id="first", type="t", idempotency_key="i"))
    assert gate.arrived.wait(10)
    second = call(two.enqueue_job, Job(id="second", type="t", idempotency_key="i"))
    assert second.is_waiting()
    gate.open.set()
    assert [first.result(), second.result()] == ["first", "first"]


def test_a_claim_passes_over_what_another_claim_holds(open_store, gate_of, call):
    """B3: nobody waits for another worker's claim, and no job is given twice."""
    one, two = open_store(), open_store()
    one.enqueue_jobs([Job(id=str(number), type="t") for number in range(5)])
    gate = gate_of(one)
    held = call(one.dequeue_jobs, "w1", limit=2)
    assert gate.arrived.wait(10)
    assert [job.id for job in two.dequeue_jobs("w2", limit=2)] == ["2", "3"]
    gate.open.set()
    assert [job.id for job in held.result()] == ["0", "1"]


def test_a_claim_that_was_undone_leaves_its_jobs_to_the_next(open_store, admin):
    """B3: also when the next claim has already gone past their place."""
    one, two = open_store(), open_store()
    one.enqueue_jobs([Job(id=str(number), type="t") for number in range(6)])
    two.dequeue_jobs("w", limit=1)
    with admin.transaction(force_rollback=True):
        admin.execute("SELECT FROM job WHERE id = '1' FOR UPDATE")
        assert [job.id for job in two.dequeue_jobs("w", limit=2)] == ["2", "3"]
    rest = [job.id for _ in range(3) for job in two.dequeue_jobs("w", limit=2)]
    assert sorted(rest) == ["1", "4", "5"]


def test_deadlocked_work_is_run_again(open_store, gate_of, call, admin):
    """C13: two batches that take the same ids in opposite order both come to an end."""
    one, two = open_store(), open_store()
    ids = [f"job-{number}" for number in range(60)]
    jobs = [Job(id=each, type="t") for each in ids]
    outcomes = []
    for _ in range(5):
        calls = [call(one.enqueue_jobs, jobs), call(two.enqueue_jobs, jobs[::-1])]
        for each in calls:
            try:
                outcomes.append(len(each.result()))
            except Exception as error:
                outcomes.append(error.code)
        assert sorted(map(str, outcomes[-2:])) == ["60", "job_exists"]
        one.cancel_jobs(job_ids=ids)
        one.delete_jobs(job_ids=ids)


@pytest.mark.parametrize("filters", [{}, {"types": ["t"]}, {"types": ["t", "u"]}, {"tags": ["a"]}, {"tags": ["a", "b"]}])
def test_claims_of_many_threads_give_each_job_once_and_never_too_many(open_store, filters):
    """B3, C9: Q12."""
    backend = open_store()
    backend.enqueue_jobs(
        [Job(id=f"{number}", type="tu"[number % 2 if len(filters.get("types", [])) == 2 else 0], tags=("a", "b")) for number in range(400)]
    )
    taken, most = Counter(), [0]
    lock = threading.Lock()

    def work(name):
        while jobs := backend.dequeue_jobs(name, limit=7, **filters):
            with lock:
                taken.update(job.id for job in jobs)
                most[0] = max(most[0], len(jobs))

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    # A claim beside others may come out empty although jobs are left; then one more look takes them.
    while jobs := backend.dequeue_jobs("last", limit=7, **filters):
        taken.update(job.id for job in jobs)
    assert len(taken) == 400
    assert set(taken.values()) == {1}
    assert most[0] <= 7
    whole(backend)


def claim_all(url, schema, name, results):
    from penstock.backends.postgres import open_postgres

    with open_postgres(url, clock=None, options={"schema": schema}) as backend:
        ids = []
        while jobs := backend.dequeue_jobs(name, limit=5):
            assert len(jobs) <= 5
            ids += [job.id for job in jobs]
            backend.complete_jobs({job.id: b"r" for job in jobs}, attempts={job.id: job.attempt for job in jobs})
        results.put(ids)


@pytest.mark.process
@pytest.mark.slow
def test_claims_of_several_processes_give_each_job_once(postgres_url, schema, open_store):
    """B3, C9: Q12."""
    backend = open_store()
    backend.enqueue_jobs([Job(id=str(number), type="t") for number in range(300)])
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [
        context.Process(target=claim_all, args=(postgres_url, schema, f"p{number}", results)) for number in range(3)
    ]
    for child in children:
        child.start()
    found = Counter(job_id for _ in children for job_id in results.get(timeout=60))
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    while jobs := backend.dequeue_jobs("last", limit=50):
        found.update(job.id for job in jobs)
        backend.complete_jobs({job.id: None for job in jobs})
    assert len(found) == 300
    assert set(found.values()) == {1}
    _, jobs = whole(backend)
    assert {job.status for job in jobs} == {JobStatus.COMPLETED}
