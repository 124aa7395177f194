"""What lies in the tables after any history: counters that count, numbers that are never given twice, no orphans."""

import contextlib
import random
from collections import Counter
from datetime import timedelta

import pytest
from tests.sqlite.support import all_jobs, assert_sound, jobs, journal, open_store, query, writer_of
from tests.tiers import some

import penstock
from penstock.backends import Failure, Retention
from penstock.backends.sqlite import counters as counting
from penstock.backends.sqlite import writer as writers
from penstock.errors import PenstockError, ReportErrors
from penstock.job import Job, JobStatus, Key
from penstock.policy import FailureCategory, RetryPolicy, Timeouts
from penstock.testing import ManualClock

TAGS = ("a", "b", "c", "a b", 'quo"te', "ünï", "[]")


class History:
    """Random calls of every verb on one store, legal and not."""

    def __init__(self, backend, clock, seed):
        self.backend = backend
        self.clock = clock
        self.choice = random.Random(seed)
        self.made = 0
        self.ids = []

    def job(self):
        choice = self.choice
        self.made += 1
        name = f"job-{self.made}" if choice.random() < 0.9 or not self.ids else choice.choice(self.ids)
        self.ids.append(name)
        past = self.ids[-30:-1]
        return Job(
            id=name,
            type=choice.choice("xy"),
            payload=b"p" * choice.choice([0, 5]),
            tags=tuple(choice.sample(TAGS, choice.choice([0, 0, 1, 2, 3]))),
            priority=choice.randrange(5),
            key=Key(choice.choice("kl")) if choice.random() < 0.3 else None,
            after=tuple(choice.sample(past, 1)) if past and choice.random() < 0.2 else (),
            after_any=tuple(choice.sample(past, min(2, len(past)))) if past and choice.random() < 0.1 else (),
            idempotency_key=f"i{choice.randrange(8)}" if choice.random() < 0.2 else None,
            run_at=self.clock.now() + timedelta(seconds=choice.randrange(30))
            if choice.random() < 0.2
            else None,
            retry=RetryPolicy(max_attempts=choice.randrange(1, 4)) if choice.random() < 0.5 else None,
            held=choice.random() < 0.05,
            timeouts=Timeouts(
                execution=timedelta(seconds=5) if choice.random() < 0.2 else None,
                visibility=timedelta(seconds=20) if choice.random() < 0.3 else None,
                lifetime=timedelta(seconds=200) if choice.random() < 0.2 else None,
            ),
        )

    def some(self, most=4):
        return self.choice.sample(self.ids, min(len(self.ids), self.choice.randrange(1, most + 1))) or [
            "none"
        ]

    def step(self):
        choice, backend = self.choice, self.backend
        tags = choice.sample(TAGS, 1)
        category = choice.choice(list(FailureCategory))
        verbs = [
            (8, lambda: backend.enqueue_job(self.job())),
            (3, lambda: backend.enqueue_jobs([self.job() for _ in range(choice.randrange(1, 6))])),
            (10, lambda: backend.dequeue_jobs("w", tags if choice.random() < 0.3 else (), limit=3)),
            (2, lambda: backend.dequeue_jobs("v", job_ids=self.some())),
            (6, lambda: backend.complete_jobs(dict.fromkeys(self.some(), b"r"))),
            (
                4,
                lambda: backend.fail_jobs(
                    dict.fromkeys(self.some(), Failure(message="m", category=category))
                ),
            ),
            (1, lambda: backend.release_jobs(dict.fromkeys(self.some(), "m"))),
            (1, lambda: backend.stop_jobs_with_retry(dict.fromkeys(self.some(), "m"))),
            (1, lambda: backend.stop_jobs(dict.fromkeys(self.some(), "m"))),
            (1, lambda: backend.mark_jobs_unknown_stopped(dict.fromkeys(self.some(), "m"))),
            (2, lambda: backend.cancel_jobs(job_ids=self.some())),
            (1, lambda: backend.cancel_jobs(tags)),
            (2, lambda: backend.acknowledge_cancellations(dict.fromkeys(self.some(), choice.random() < 0.5))),
            (1, lambda: backend.mark_worker_unresponsive("w")),
            (3, lambda: backend.update_job(self.some()[0], tags=choice.sample(TAGS, 2), priority=1)),
            (2, lambda: backend.update_job_status(self.some()[0], choice.choice(list(JobStatus)))),
            (1, lambda: backend.redrive_jobs(job_ids=self.some(2))),
            (2, lambda: backend.save_checkpoint(self.some()[0], b"c")),
            (2, lambda: backend.delete_jobs(job_ids=self.some())),
            (1, lambda: backend.restart_job(self.some()[0], "w")),
            (2, backend.maintain),
            (3, lambda: self.clock.advance(choice.randrange(20))),
        ]
        weights, actions = zip(*verbs, strict=True)
        with contextlib.suppress(PenstockError, ReportErrors):
            choice.choices(actions, weights)[0]()


def count(rows):
    """Count jobs and retries by status, from the jobs themselves."""
    counts, retries = Counter(), 0
    for job in rows:
        counts[job.status] += 1
        retries += job.retry_count
    return counts, retries


def assert_counted(backend):
    """The counters equal a direct count: of all jobs and of each tag, alone and in pairs."""
    stored = all_jobs(backend)
    for wanted in [(), *((tag,) for tag in TAGS), ("a", "b")]:
        counts, retries = count(job for job in stored if set(wanted) <= set(job.tags))
        stats = backend.get_job_stats(wanted)
        failed = counts[JobStatus.FAILED_RETRY] + counts[JobStatus.UNKNOWN_RETRY]
        ended = ("stopped", "unscheduled", "unknown_stopped", "failed", "dead_letter")
        assert (stats.total_jobs, stats.total_retries) == (counts.total(), retries), wanted
        assert stats.pending_jobs == counts[JobStatus.INITIAL_PENDING], wanted
        assert stats.running_jobs == counts[JobStatus.RUNNING], wanted
        assert stats.completed_jobs == counts[JobStatus.COMPLETED], wanted
        assert stats.failed_jobs == failed, wanted
        assert stats.stopped_jobs == sum(counts[JobStatus(name)] for name in ended), wanted


ORPHANS = {
    "payload": "SELECT seq FROM payload WHERE seq NOT IN (SELECT seq FROM job)",
    "result": "SELECT seq FROM result WHERE seq NOT IN (SELECT seq FROM job)",
    "checkpoint": "SELECT seq FROM checkpoint WHERE seq NOT IN (SELECT seq FROM job)",
    "tag": """SELECT tag, seq FROM job_tag EXCEPT SELECT value, seq FROM job, json_each(job.tags)""",
    "missing tag": """SELECT value, seq FROM job, json_each(job.tags) EXCEPT SELECT tag, seq FROM job_tag""",
    "ready tag": """SELECT tag, priority, order_at, seq FROM ready_tag
        EXCEPT SELECT value, job.priority, order_at, seq FROM job, json_each(job.tags) WHERE gate = 0""",
    "missing ready tag": """SELECT value, job.priority, order_at, seq FROM job, json_each(job.tags) WHERE gate = 0
        EXCEPT SELECT tag, priority, order_at, seq FROM ready_tag""",
    "edge": """SELECT on_seq, job_seq FROM edge
        WHERE on_seq NOT IN (SELECT seq FROM job WHERE closed = 0)
           OR job_seq NOT IN (SELECT seq FROM job WHERE closed = 0)""",
    "waiting for nothing": """SELECT id FROM job WHERE closed = 0 AND unmet <>
        (SELECT count(*) FROM edge WHERE job_seq = job.seq AND kind = 'after')
        + (SELECT count(*) > 0 FROM edge WHERE job_seq = job.seq AND kind = 'any')""",
    "idempotency": """SELECT type, key FROM idempotency
        WHERE job_id NOT IN (SELECT id FROM job WHERE job.type = idempotency.type AND idempotency_key = idempotency.key)""",
    "two of a key": """SELECT key FROM job WHERE status IN ('running', 'cancelling') AND key IS NOT NULL
        GROUP BY key HAVING count(*) > 1""",
    "hold without a holder": """SELECT id FROM job WHERE status NOT IN ('running', 'cancelling')
        AND (owner IS NOT NULL OR lease_until IS NOT NULL OR deadline_at IS NOT NULL)""",
    "gate of the idle": """SELECT id FROM job
        WHERE (gate IS NULL) = (status IN ('initial_pending', 'failed_retry', 'unknown_retry'))""",
    "number": "SELECT seq FROM job WHERE seq NOT IN (SELECT job_seq FROM journal)",
    "n": "SELECT id FROM job WHERE n <> (SELECT max(n) FROM journal WHERE job_seq = job.seq)",
}


def assert_no_orphans(backend):
    connection = writer_of(backend)._connection
    found = {name: connection.execute(sql).fetchall() for name, sql in ORPHANS.items()}
    assert {name: rows for name, rows in found.items() if rows} == {}


@pytest.mark.parametrize("seed", some(range(6), [0]))
@pytest.mark.parametrize("listening", [False, True], ids=["", "listening"])
def test_after_any_history_the_tables_agree(seed, listening, monkeypatch):
    """B17, B18, RELIABILITY 2.2 (23): counters, tags, edges, keys and blobs; the counters folded again and again."""
    monkeypatch.setattr(writers, "FOLD_AT", 25)
    clock = ManualClock()
    with penstock.open_backend(
        "memory:",
        clock=clock,
        idempotency_window=60,
        retention=Retention(completed=timedelta(seconds=50), other=timedelta(seconds=90)),
    ) as backend:
        if listening:  # the quick ways are not taken then
            backend.runtime.listen(lambda _: None)
        history = History(backend, clock, seed)
        for number in range(400):
            history.step()
            if number % 40 == 0:
                assert_no_orphans(backend)
                assert_counted(backend)
        assert_no_orphans(backend)
        assert_counted(backend)
        rows = journal(backend)
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        assert_sound(backend, idempotency_window=timedelta(seconds=60))


def test_folding_at_every_length_counts_the_same(monkeypatch):
    """One history, folded never, always and now and then."""
    found = []
    for fold_at in (1, 3, 50, 10**9):
        monkeypatch.setattr(writers, "FOLD_AT", fold_at)
        clock = ManualClock()
        with penstock.open_backend("memory:", clock=clock, retention=None) as backend:
            history = History(backend, clock, 99)
            for _ in range(150):
                history.step()
            assert_counted(backend)
            found.append([backend.get_job_stats([tag]) for tag in TAGS])
    assert found[0] == found[1] == found[2] == found[3]


def test_a_fold_twice_counts_once(path):
    with open_store(path) as backend:
        backend.enqueue_jobs(jobs(10, tags=("a",)))
        connection = writer_of(backend)._connection
        for _ in range(3):
            counting.fold_counters(connection.cursor())
        assert backend.get_job_stats(["a"]).pending_jobs == 10
    assert query(path, "SELECT tag, status, jobs FROM stat") == [
        ("", "initial_pending", 10),
        ("a", "initial_pending", 10),
    ]


def test_counters_of_nothing_are_gone(path):
    """A tag used once long ago leaves no row behind."""
    with open_store(path) as backend:
        backend.enqueue_jobs([Job(id=f"job-{n}", type="t", tags=(f"tag-{n}",)) for n in range(50)])
        backend.cancel_jobs(job_ids=[f"job-{n}" for n in range(50)])
        backend.delete_jobs(job_ids=[f"job-{n}" for n in range(50)])
        backend.maintain()
    assert query(path, "SELECT count(*) FROM stat") == [(0,)]


def test_blobs_go_with_their_job(path):
    """Payload, result and checkpoint; and the tags."""
    with open_store(path) as backend:
        backend.enqueue_jobs(jobs(3, payload=b"p", tags=("a",)))
        for job in backend.dequeue_jobs("w", limit=3):
            backend.save_checkpoint(job.id, b"c")
            backend.complete_job(job.id, b"r")
        backend.delete_jobs(job_ids=["job-0", "job-2"])
    for table in ("payload", "result", "checkpoint", "job_tag", "job"):
        assert query(path, f"SELECT count(*) FROM {table}") == [(1,)], table


def test_insertion_numbers_are_not_given_again_after_deletions(path):
    """RELIABILITY 5.1, rowid reuse: the journal still speaks of the old ones."""
    with open_store(path) as backend:
        for number in range(5):
            backend.enqueue_job(Job(id="same", type="t", payload=bytes([number])))
            backend.cancel_jobs(job_ids=["same"])
            backend.delete_jobs(job_ids=["same"])
    with open_store(path) as backend:
        backend.enqueue_job(Job(id="same", type="t"))
        assert backend.get_job("same").payload == b""
        rows = journal(backend)
        assert [row.seq for row in rows] == list(range(1, 17))
    numbers = query(path, "SELECT job_seq FROM journal WHERE verb = 'enqueue' ORDER BY seq")
    assert numbers == [(number,) for number in range(1, 7)]


def test_a_job_ended_while_it_waited_waits_no_more(backend):
    """B17: finals stay; a priority given to what it once waited for must not reach it."""
    backend.enqueue_jobs([Job(id="first", type="t"), Job(id="second", type="t", after=("first",))])
    backend.update_job_status("second", JobStatus.UNSCHEDULED)
    backend.update_job("first", priority=0)
    assert [row.verb for row in journal(backend) if row.job_id == "second"] == ["enqueue", "update_status"]
    assert_no_orphans(backend)
    assert_sound(backend)


def test_the_journal_is_dense_after_refusals(backend):
    """Q55: a refused call uses up no number."""
    backend.enqueue_jobs(jobs(3))
    for bad in ([*jobs(5, "new"), Job(id="job-0", type="t")], [Job(id="x", type="t", after=("none",))]):
        with pytest.raises(PenstockError):
            backend.enqueue_jobs(bad)
    with pytest.raises(PenstockError):
        backend.complete_job("job-0")
    backend.enqueue_jobs(jobs(3, "more"))
    assert [row.seq for row in journal(backend)] == [1, 2, 3, 4, 5, 6]
    assert_no_orphans(backend)
