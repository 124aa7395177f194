"""Every verb finds its rows by an index: what is finished, delayed or somebody else's does not slow it."""

import re
from datetime import timedelta

import pytest
from tests.sqlite.support import jobs, open_store

from penstock.backends import CALLBACKS, Delivery
from penstock.backends.contract.selection import JobSelection
from penstock.backends.sqlite import store as stores
from penstock.job import Job, JobStatus, Key
from penstock.policy import Timeouts
from penstock.testing import ManualClock

# Partial indexes that hold only what is in flight or waits for a moment: walking one of them walks no crowd.
SMALL = (
    "job_callback",
    "job_owner",
    "job_assignee",
    "job_lease",
    "job_deadline",
    "job_lifetime",
    "job_ready",
    "job_ready_type",
    "job_retrying",
    "job_released",
    "delivery_due",
    "delivery_given_up",
)


class Traced:
    """A store that notes every statement and counts the steps of SQLite's machine."""

    def __init__(self, path, monkeypatch):
        self.statements = {}
        self.ticks = 0
        original = stores.open_connection

        def opening(*arguments, **options):
            connection = original(*arguments, **options)
            connection.exec_trace = self._note
            connection.set_progress_handler(self._tick, 10)
            return connection

        monkeypatch.setattr(stores, "open_connection", opening)
        self.clock = ManualClock()
        self.backend = open_store(path, clock=self.clock)
        self.connection = original(str(path), durability="full", timeout=10)

    def _note(self, _cursor, sql, bindings):
        self.statements[sql] = bindings
        return True

    def _tick(self):
        self.ticks += 1
        return False

    def run(self, action):
        """Return what an action's statements were, and what they cost."""
        self.statements.clear()
        self.ticks = 0
        action(self.backend)
        return dict(self.statements), self.ticks

    def plan(self, sql, bindings):
        return [row[3] for row in self.connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]

    def close(self):
        self.backend.close()
        self.connection.close()


def fill(traced, scale):
    """Thousands of jobs of all kinds, most of them in nobody's way."""
    backend = traced.backend
    finished = jobs(20 * scale, "finished", tags=("done", "common"))
    backend.enqueue_jobs(finished)
    backend.complete_jobs({job.id: b"r" for job in backend.dequeue_jobs("w", limit=20 * scale)})
    later = traced.clock.now() + timedelta(days=30)
    backend.enqueue_jobs(jobs(10 * scale, "delayed", tags=("common",), run_at=later))
    backend.enqueue_jobs(
        [
            Job(id=f"other-{n}", type=f"other-{n % 20}", tags=("common", f"tag-{n % 50}"))
            for n in range(10 * scale)
        ]
    )
    backend.enqueue_jobs([Job(id=f"keyed-{n}", type="k", key=Key(f"key-{n}")) for n in range(2 * scale)])
    backend.enqueue_jobs([Job(id=f"once-{n}", type="o", idempotency_key=f"i-{n}") for n in range(2 * scale)])
    backend.enqueue_jobs(Job(id=f"after-{n}", type="a", after=(f"other-{n}",)) for n in range(2 * scale))
    # What the verbs below are asked for: a few, whatever the size of the rest.
    backend.enqueue_jobs(
        [Job(id=f"mine-{n}", type="mine", tags=("common", "rare", "rare2"), priority=0) for n in range(40)]
    )
    backend.enqueue_jobs([Job(id=f"second-{n}", type="second", priority=0) for n in range(20)])
    backend.enqueue_jobs([Job(id=f"in-key-{n}", type="k", key=Key("wanted"), priority=0) for n in range(4)])
    held = Timeouts(visibility=timedelta(seconds=30), execution=timedelta(seconds=20))
    backend.enqueue_jobs([Job(id=f"leased-{n}", type="leased", timeouts=held, priority=0) for n in range(10)])
    backend.dequeue_jobs("holder", types=["leased"], limit=10)
    backend.enqueue_job(Job(id="told", type="told", callback_url="https://example.com/"))
    backend.cancel_jobs(job_ids=["told"])
    backend.journal.register_consumer(CALLBACKS)
    backend.journal.hold_consumer(CALLBACKS, "me", 3600)
    now = traced.clock.now()
    backend.outbox.save_deliveries("me", [a_delivery(n, "dead", now) for n in range(20 * scale)])
    backend.outbox.save_deliveries("me", [a_delivery(20 * scale + n, f"lane-{n}", now) for n in range(3)])
    backend.outbox.tick_schedule("nightly", now, after=None)
    backend.maintain()


def a_delivery(seq, lane, due_at):
    return Delivery(seq=seq, event_id=f"e-{seq}", url="https://x/", lane=lane, body=b"{}", due_at=due_at)


def tick(backend):
    (known,) = backend.outbox.list_schedules()
    assert backend.outbox.tick_schedule("nightly", known.tick + timedelta(days=1), after=known.tick)


ACTIONS = {
    "claim": lambda b: b.dequeue_jobs("w"),
    "claim one type": lambda b: b.dequeue_jobs("w", types=["mine"]),
    "claim many types": lambda b: b.dequeue_jobs("w", types=["mine", "second", "none"], limit=5),
    "claim a tag": lambda b: b.dequeue_jobs("w", ["rare"]),
    "claim a common tag": lambda b: b.dequeue_jobs("w", ["common"]),
    "claim tags": lambda b: b.dequeue_jobs("w", ["common", "rare"]),
    "claim tags and type": lambda b: b.dequeue_jobs("w", ["common", "rare2"], types=["mine"]),
    "claim a key": lambda b: b.dequeue_jobs("w", key="wanted"),
    "claim by id": lambda b: b.dequeue_jobs("w", job_ids=["mine-30", "mine-31"]),
    "claim nothing": lambda b: b.dequeue_jobs("w", ["no such tag"]),
    "heartbeat": lambda b: b.heartbeat("holder"),
    "enqueue": lambda b: b.enqueue_job(Job(id="new", type="t", tags=("common", "rare"))),
    "enqueue in a key": lambda b: b.enqueue_job(Job(id="new-key", type="t", key=Key("wanted"))),
    "enqueue once": lambda b: b.enqueue_job(Job(id="new-once", type="o", idempotency_key="i-1")),
    "enqueue after": lambda b: b.enqueue_job(Job(id="new-after", type="t", after=("mine-35",))),
    "complete": lambda b: b.complete_jobs({"leased-0": b"r", "leased-1": None}),
    "complete a head": lambda b: b.complete_job("leased-2"),
    "fail": lambda b: b.fail_job("leased-3", "broken"),
    "progress": lambda b: b.save_progress("leased-4", 50),
    "update": lambda b: b.update_job("mine-36", priority=1, tags=["rare2"]),
    "cancel by tag": lambda b: b.cancel_jobs(["rare2"]),
    "cancel by tags": lambda b: b.cancel_jobs(["common", "rare"]),
    "get": lambda b: b.get_job("finished-1"),
    "history": lambda b: b.journal.history("finished-1"),
    "get many": lambda b: b.get_jobs(["finished-1", "mine-1"]),
    "list by tag": lambda b: b.list_jobs(tags=["rare"]),
    "list by tags": lambda b: b.list_jobs(tags=["common", "rare2"]),
    "list running": lambda b: b.list_jobs(status=JobStatus.RUNNING, limit=11),
    "list retried": lambda b: b.list_jobs(status=JobStatus.FAILED_RETRY, limit=10),
    "list cancelled": lambda b: b.list_jobs(status=JobStatus.UNSCHEDULED, limit=1),
    "list dead": lambda b: b.list_jobs(status=JobStatus.DEAD_LETTER, type="t", limit=10),
    "list a page": lambda b: b.list_jobs(after="finished-3", limit=10),
    "work": lambda b: b.runtime.has_work(["nobody's", "leased"]),
    "no work": lambda b: b.runtime.has_work(["nobody's", "finished", "delayed", "a"]),
    "no work with tags": lambda b: b.runtime.has_work(["delayed", "finished"], ["common", "rare"]),
    "count a key": lambda b: b.reading.count_keyed("wanted"),
    "list a key": lambda b: b.reading.list_keyed("wanted", type="k", upto=10**9),
    "select by status": lambda b: b.reading.select_jobs(
        JobSelection(statuses=["dead", "running"], types=["t"])
    ),
    "select by tags": lambda b: b.reading.select_jobs(JobSelection(tags=["common", "rare"], error="x")),
    "find ids": lambda b: b.reading.find_ids("fini"),
    "count": lambda b: b.reading.count_jobs(),
    "count by tag": lambda b: b.reading.count_jobs(["common"]),
    "stats": lambda b: b.get_job_stats(),
    "overview": lambda b: b.reading.overview(),
    "stats by tag": lambda b: b.get_job_stats(["common"]),
    "stats by tags": lambda b: b.get_job_stats(["common", "rare"]),
    "journal": lambda b: b.read_journal(100, 50),
    "ends": lambda b: b.outbox.read_ends(b.journal.span()[1] - 50),
    "due": lambda b: b.outbox.due_deliveries(per_lane=2),
    "delivered": lambda b: b.outbox.save_deliveries("me", done=[1, 2], seq=5),
    "tick": tick,
    "hold": lambda b: b.journal.hold_consumer(CALLBACKS, "me", 3600),
    "worker gone": lambda b: b.mark_worker_unresponsive("holder"),
    "reset": lambda b: b.reset_running_jobs(),
    "maintain": lambda b: b.maintain(),
    "delete": lambda b: b.delete_jobs(job_ids=["leased-0"]),
}


@pytest.fixture
def traced(path, monkeypatch):
    store = Traced(path, monkeypatch)
    yield store
    store.close()


def crowds_walked(plan):
    """Return the steps of a plan that read a big table from end to end."""
    found = []
    for step in plan:
        match = re.match(r"SCAN (\w+)(?:.* INDEX (\w+))?", step)
        if match is None or match[1] in {
            "json_each",
            "candidate",
            "fence",
            "j",
            "row",
            "known",
            "found",
            "type_delta",
        }:
            continue
        if match[2] not in SMALL and match[1] not in {
            "setting",
            "owner",
            "stat",
            "type_stat",
            "consumer",
            "schedule",
            "unresponsive",
            "CONSTANT",
        }:
            found.append(step)
    return found


def test_every_statement_of_every_verb_uses_an_index(traced):
    """B18: no scan of jobs, journal or tags in any plan, on a store of a few thousand jobs."""
    fill(traced, 50)
    seen = 0
    for name, action in ACTIONS.items():
        statements, _ = traced.run(action)
        for sql, bindings in statements.items():
            if sql.split()[0] in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}:
                plan = traced.plan(sql, bindings)
                assert crowds_walked(plan) == [], f"{name}: {sql}\n{plan}"
                seen += 1
    assert seen > 60


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("claim", "job_ready"),
        ("claim one type", "job_ready_type"),
        ("claim many types", "job_ready_type"),
        ("claim a tag", "ready_tag USING PRIMARY KEY"),
        ("claim tags", "ready_tag USING PRIMARY KEY"),
        ("claim a key", "job_key_turn"),
        ("count a key", "job_key (key=?)"),
        ("list a key", "job_key (key=?"),
        ("cancel by tag", "job_tag USING PRIMARY KEY"),
        ("list by tag", "job_tag USING PRIMARY KEY"),
        ("list running", "job_assignee"),
        ("list retried", "job_retrying"),
        ("list cancelled", "job_ended (status=?)"),
        ("stats by tag", "stat USING PRIMARY KEY"),
        ("stats by tags", "job_tag USING PRIMARY KEY"),
        ("maintain", "job_delayed"),
        ("ends", "job_callback"),
        ("due", "delivery_due"),
        ("no work", "job_retrying"),
    ],
)
def test_the_index_made_for_it_is_used(traced, name, index):
    """B18."""
    fill(traced, 5)
    statements, _ = traced.run(ACTIONS[name])
    plans = [
        traced.plan(sql, bindings) for sql, bindings in statements.items() if not sql.startswith("PRAGMA")
    ]
    assert any(index in step for plan in plans for step in plan), plans


@pytest.mark.slow
def test_no_verb_costs_more_on_a_store_ten_times_as_big(tmp_path, monkeypatch):
    """B18, B19: counted in steps of SQLite's machine, triggers included, so that no plan can hide a walk."""
    # An overview counts what is ready, up to a limit: here one that both stores reach.
    monkeypatch.setattr("penstock.backends.engine.reading.MAX_COUNTED", 5)
    costs = []
    for scale in (20, 200):
        traced = Traced(tmp_path / f"{scale}.db", monkeypatch)
        fill(traced, scale)
        costs.append({name: traced.run(action)[1] for name, action in ACTIONS.items()})
        traced.close()
    small, big = costs
    grown = {name: (small[name], big[name]) for name in ACTIONS if big[name] > 1.5 * small[name] + 100}
    assert grown == {}
