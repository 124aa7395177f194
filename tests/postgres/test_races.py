"""Transactions that meet: one is held just before its commit while another runs into it."""

import contextlib
import multiprocessing
import random
import threading
import time
from collections import Counter
from functools import partial

import pytest

import penstock
from penstock.backends.engine import submission
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
    """R3, B18: the enqueue waits for the key, then finds nobody before it."""
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
    """R3, B18: the other order: the end waits for the key, then finds the follower."""
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
    """G24, B18: the second end waits for the dependent's row and sees what the first one did to it."""
    one, two = open_store(), open_store()
    one.enqueue_jobs([Job(id="a", type="t"), Job(id="b", type="t"), Job(id="c", type="t", after=("a", "b"))])
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
    """G24, B18: the enqueue waits for the row of what it depends on."""
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
    """G24, B18: the short way of completion notices that somebody waits by now."""
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
    """R3, B18: the second waits, so its insertion number is the later one and it is not the head."""
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
    """G2, C32: the second waits for the first and gets its id."""
    one, two = open_store(), open_store()
    gate = gate_of(one)
    first = call(one.enqueue_job, Job(id="first", type="t", idempotency_key="i"))
    assert gate.arrived.wait(10)
    second = call(two.enqueue_job, Job(id="second", type="t", idempotency_key="i"))
    assert second.is_waiting()
    gate.open.set()
    assert [first.result(), second.result()] == ["first", "first"]


def test_a_claim_passes_over_what_another_claim_holds(open_store, gate_of, call):
    """B5, Q33: nobody waits for another worker's claim, and no job is given twice."""
    one, two = open_store(), open_store()
    one.enqueue_jobs([Job(id=str(number), type="t") for number in range(5)])
    gate = gate_of(one)
    held = call(one.dequeue_jobs, "w1", limit=2)
    assert gate.arrived.wait(10)
    assert [job.id for job in two.dequeue_jobs("w2", limit=2)] == ["2", "3"]
    gate.open.set()
    assert [job.id for job in held.result()] == ["0", "1"]


def test_a_claim_that_was_undone_leaves_its_jobs_to_the_next(open_store, admin):
    """B5: also when the next claim has already gone past their place."""
    one, two = open_store(), open_store()
    one.enqueue_jobs([Job(id=str(number), type="t") for number in range(6)])
    two.dequeue_jobs("w", limit=1)
    with admin.transaction(force_rollback=True):
        admin.execute("SELECT FROM job WHERE id = '1' FOR UPDATE")
        assert [job.id for job in two.dequeue_jobs("w", limit=2)] == ["2", "3"]
    rest = [job.id for _ in range(3) for job in two.dequeue_jobs("w", limit=2)]
    assert sorted(rest) == ["1", "4", "5"]


def test_deadlocked_work_is_run_again(open_store, gate_of, call, admin):
    """B18, Q15: two batches that take the same ids in opposite order both come to an end."""
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


@pytest.mark.parametrize(
    "filters", [{}, {"types": ["t"]}, {"types": ["t", "u"]}, {"tags": ["a"]}, {"tags": ["a", "b"]}]
)
def test_claims_of_many_threads_give_each_job_once_and_never_too_many(open_store, filters):
    """B5, B18, Q33, C62."""
    backend = open_store()
    backend.enqueue_jobs(
        [
            Job(
                id=f"{number}",
                type="tu"[number % 2 if len(filters.get("types", [])) == 2 else 0],
                tags=("a", "b"),
            )
            for number in range(400)
        ]
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
            backend.complete_jobs(
                {job.id: b"r" for job in jobs}, attempts={job.id: job.attempt for job in jobs}
            )
        results.put(ids)


@pytest.mark.process
@pytest.mark.slow
def test_claims_of_several_processes_give_each_job_once(postgres_url, schema, open_store):
    """B5, B18, Q33, C62."""
    backend = open_store()
    backend.enqueue_jobs([Job(id=str(number), type="t") for number in range(300)])
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [
        context.Process(target=claim_all, args=(postgres_url, schema, f"p{number}", results))
        for number in range(3)
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


def deadlocks(connection):
    """How many the server has met in this database."""
    if connection.info.server_version >= 150000:  # before, the server counted within half a second
        connection.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    return connection.execute(query).fetchone()[0]


def at_once(*works):
    """Run each of the works in a thread of its own; what one raises is raised here."""
    barrier = threading.Barrier(len(works))
    failed = []

    def run(work):
        barrier.wait(10)
        try:
            work()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    if failed:
        raise failed[0]


ENDS = {
    "complete": lambda backend, job_id: backend.complete_job(job_id),
    "complete many": lambda backend, job_id: backend.complete_jobs({job_id: b"r"}),
    "fail": lambda backend, job_id: backend.fail_job(
        job_id, "no", category=penstock.FailureCategory.PERMANENT
    ),
    "stop": lambda backend, job_id: backend.stop_job(job_id, "no"),
    "update": lambda backend, job_id: backend.update_job_status(job_id, JobStatus.STOPPED),
    "cancel by tag": lambda backend, job_id: backend.cancel_jobs(
        [f"waiting-{job_id}"], [f"p{job_id}"], waiting_only=True
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_flows_across_keys_lock_them_in_one_order(open_store, admin, end):
    """B18: two ends at once, each with followers in the other one's key, directly and behind those."""
    backend = open_store()
    first, second = Key("one"), Key("two")
    turns = 8
    before = deadlocks(admin)
    for turn in range(turns):
        heads = {f"a{turn}": (first, second), f"b{turn}": (second, first)}
        flows = [Job(id=head, type="t", key=own) for head, (own, _) in heads.items()]
        for head, (own, other) in heads.items():
            flows += [
                Job(id=f"p{head}", type="t", key=other, after=(head,), tags=(f"waiting-{head}",)),
                Job(id=f"q{head}", type="t", key=own, after=(f"p{head}",)),
            ]
        backend.enqueue_jobs(flows)
        backend.dequeue_jobs("w", limit=2)
        at_once(*(partial(end, backend, head) for head in heads))
        rest = [job.id for job in flows]
        backend.cancel_jobs(job_ids=rest)
        for job in backend.get_jobs(rest).values():
            if job.status is JobStatus.CANCELLING:
                backend.acknowledge_cancellation(job.id, True)
    assert deadlocks(admin) == before
    whole(backend)


def test_a_mixed_load_across_keys_meets_no_deadlock(open_store, admin):
    """B18: enqueues, claims and ends on two objects; times in the journal do not go back either."""
    stores = [open_store(), open_store()]
    keys = [Key(f"k{number}") for number in range(5)]
    before = deadlocks(admin)

    def work(number):
        def run():
            backend, draw, known = stores[number % 2], random.Random(number), []
            for turn in range(25):
                after = tuple(draw.sample(known, min(len(known), draw.randrange(3))))
                known = [*known[-4:], f"{number}-{turn}"]
                backend.enqueue_job(Job(id=known[-1], type="t", key=draw.choice(keys), after=after))
                for job in backend.dequeue_jobs(f"w{number}", limit=2):
                    if draw.random() < 0.8:
                        backend.complete_job(job.id)
                    else:
                        backend.stop_job(job.id, "no")

        return run

    started = time.monotonic()
    at_once(*(work(number) for number in range(6)))
    assert deadlocks(admin) == before
    assert time.monotonic() - started < 30
    whole(stores[0])


@contextlib.contextmanager
def gated_chunks(size):
    """Let iterators be read in chunks of this size."""
    before, submission.CHUNK = submission.CHUNK, size
    try:
        yield
    finally:
        submission.CHUNK = before


class TestTime:
    """RELIABILITY's invariant 25: what had to wait for a lock carries the time at which it got it."""

    def test_of_reports_that_waited_for_a_row(self, open_store, admin, call):
        """B18, G31: others went on meanwhile; a job does not end before it began."""
        backend = open_store()
        backend.enqueue_jobs([Job(id="a", type="t"), Job(id="b", type="t"), Job(id="c", type="t")])
        backend.dequeue_jobs("w", job_ids=["c"])
        with admin.transaction():
            admin.execute("SELECT FROM job WHERE id IN ('a', 'c') FOR UPDATE")
            cancel = call(backend.cancel_jobs, job_ids=["a", "b"])
            complete = call(backend.complete_job, "c")
            assert cancel.is_waiting(1.2)
            assert complete.is_waiting(0)
            backend.dequeue_jobs("w", job_ids=["b"])
        cancel.result()
        complete.result()
        whole(backend)
        job = backend.get_job("b")
        assert job.updated_at >= job.assigned_at
        last = backend.read_journal()[-3:]
        assert {entry.job_id for entry in last} == {"a", "b", "c"}
        assert backend.get_job("c").finalized_at >= job.assigned_at

    def test_of_a_simple_job_that_ends_together_with_one_of_a_key(self, open_store, gate_of, call):
        """B18: it is not locked, and its time not read, before the key is there; else both might wait for ever."""
        backend, other = open_store(), open_store()
        backend.enqueue_jobs([Job(id="plain", type="t"), Job(id="head", type="t", key=KEY)])
        backend.dequeue_jobs("w", limit=2)
        gate = gate_of(other)
        add = call(other.enqueue_job, Job(id="behind", type="t", key=KEY))
        assert gate.arrived.wait(10)
        end = call(backend.complete_jobs, {"plain": b"r", "head": None})
        assert end.is_waiting()
        backend.save_progress("plain", 50)
        until = backend.now()
        gate.open.set()
        add.result()
        assert end.result() == {"w": 2}
        assert backend.get_job("plain").finalized_at >= until
        assert backend.get_job("plain").result == b"r"
        whole(backend)

    def test_of_an_end_whose_dependent_was_locked(self, open_store, admin, call):
        """B18: all is locked before the time is read."""
        backend = open_store()
        backend.enqueue_jobs([Job(id="a", type="t"), Job(id="b", type="t", after=("a",))])
        backend.dequeue_jobs("w")
        with admin.transaction():
            admin.execute("SELECT FROM job WHERE id = 'b' FOR UPDATE")
            end = call(backend.complete_job, "a")
            assert end.is_waiting(0.5)
            until = backend.now()
        end.result()
        assert backend.get_job("a").finalized_at >= until

    def test_of_what_waits_for_a_slow_iterator(self, open_store, call):
        """B18: an end and an enqueue in its key; and the iterator's own jobs are as old as their chunk."""
        backend = open_store()
        backend.enqueue_job(Job(id="head", type="t", key=KEY))
        backend.dequeue_jobs("w")
        go, reading = threading.Event(), threading.Event()

        def slow():
            yield from (Job(id=f"i{number}", type="t", key=KEY) for number in range(2_000))
            reading.set()
            assert go.wait(20)
            yield Job(id="last", type="t", key=KEY)

        stored = call(backend.enqueue_jobs, slow())
        assert reading.wait(20)
        end = call(backend.complete_job, "head")
        add = call(backend.enqueue_job, Job(id="behind", type="t", key=KEY))
        assert end.is_waiting(0.7)
        assert add.is_waiting(0)
        until = backend.now()
        go.set()
        for each in (stored, end, add):
            each.result()
        assert backend.get_job("head").finalized_at >= until
        assert backend.get_job("behind").created_at >= until
        assert backend.get_job("last").created_at >= until
        whole(backend)

    def test_of_a_lease_that_waited(self, open_store, admin, call):
        """B13: it lasts from when it was renewed."""
        backend = open_store()
        job = Job(id="a", type="t", timeouts=penstock.Timeouts(visibility=60))
        backend.enqueue_job(job)
        backend.dequeue_jobs("w")
        with admin.transaction():
            admin.execute("SELECT FROM job FOR UPDATE")
            beat = call(backend.heartbeat, "w")
            assert beat.is_waiting(0.5)
            until = admin.execute(
                "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
            ).fetchone()[0]
        assert beat.result() == 1
        assert admin.execute("SELECT lease_until FROM job").fetchone()[0] >= until + 60_000_000

    def test_of_a_full_queue_under_a_slow_iterator(self, open_store, call):
        """B18: who counts the jobs that wait takes turns too."""
        slow, quick = open_store(max_pending=10), open_store(max_pending=10)
        go, reading = threading.Event(), threading.Event()

        def jobs():
            yield from (Job(id=f"i{number}", type="t", tags=("x",)) for number in range(3))
            reading.set()
            assert go.wait(20)

        with gated_chunks(1):
            stored = call(slow.enqueue_jobs, jobs())
            assert reading.wait(20)
            add = call(quick.enqueue_job, Job(id="behind", type="t", key=KEY))
            assert add.is_waiting(0.7)
            until = slow.now()
            go.set()
            stored.result()
            add.result()
        assert quick.get_job("behind").created_at >= until
