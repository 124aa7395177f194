"""Claims stay cheap: dead rows under a held snapshot, plans on a large table, exact order beside the short cuts."""

import re
import time
from datetime import timedelta

import psycopg
import pytest
from tests.tiers import some

import penstock
from penstock.backends.engine.rows import encode_strings
from penstock.backends.engine.store import Claim, DuplicateIdError, Reach
from penstock.backends.postgres import prepared, reading
from penstock.backends.postgres.connection import PLANNER
from penstock.backends.postgres.floors import Scan, lanes
from penstock.backends.postgres.overview import read_overview
from penstock.backends.postgres.retries import Patience
from penstock.job import Job, Priority
from penstock.testing import ManualClock


def claim(**filters):
    wanted = {
        "assignee_id": "w",
        "tags": (),
        "limit": 10,
        "types": None,
        "key": None,
        "job_ids": None,
        "owner": None,
        "pushed": False,
    }
    return Claim(**{**wanted, **filters})


def generic_plan(connection, query, parameters):
    """The plan that the store's own sessions use: made without a look at the values."""
    names = []

    def number(match):
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", number, query)
    cursor = psycopg.ClientCursor(connection)
    cursor.execute("PREPARE probe AS " + text)
    values = f"({', '.join(['%s'] * len(names))})" if names else ""
    cursor.execute(
        f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE probe {values}",
        [parameters[name] for name in names],
    )
    plan = cursor.fetchone()[0][0]["Plan"]
    cursor.execute("DEALLOCATE probe")
    return plan


def explained(backend, work):
    """Run a transaction's work with every statement explained and undone; returns the plans as (text, dict)."""
    plans = []

    class UndoneError(Exception):
        pass

    def look(tx):
        tx.open()
        execute, query = tx.execute, tx.query

        def explain(query, parameters=None):
            if query.lstrip().startswith(("SELECT", "WITH")):
                plans.append((query, generic_plan(tx.connection, query, parameters or {})))
            return execute(query, parameters)

        def explain_prepared(statement, values):
            plans.append((statement.source, generic_plan(tx.connection, statement.source, values)))
            return query(statement, values)

        tx.execute, tx.query = explain, explain_prepared
        work(tx)
        raise UndoneError

    with pytest.raises(UndoneError):
        backend._store.write(look)
    return plans


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def buffers(plans):
    return sum(plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0) for _, plan in plans)


@pytest.fixture(scope="module")
def large(postgres_url):
    """A store of 20,000 finished, 10,000 delayed and 10,000 ready jobs, and 30 rare ones."""
    from penstock.backends.postgres import open_postgres

    backend = open_postgres(postgres_url, clock=None, options={"schema": "large"})
    backend.enqueue_jobs(
        [
            Job(id=f"{kind}-{number}", type=kind, tags=(kind, "common"), priority=Priority(number % 5))
            for kind in ("finished", "ready")
            for number in range(20_000)
        ]
    )
    backend.enqueue_jobs(
        [Job(id=f"rare-{number}", type="rare", tags=("common", "rare")) for number in range(30)]
    )
    with psycopg.connect(postgres_url, autocommit=True, options="-c search_path=large") as connection:
        connection.execute(
            "UPDATE job SET status = 'completed', closed = 1, gate = NULL, finalized_at = updated_at"
            " WHERE type = 'finished'"
        )
        connection.execute(
            "DELETE FROM ready_tag USING job WHERE job.seq = ready_tag.seq AND job.type = 'finished'"
        )
        connection.execute(
            "UPDATE job SET gate = 1, due_at = updated_at + 1000000000000 WHERE id LIKE 'ready-1____'"
        )
        connection.execute("DELETE FROM ready_tag USING job WHERE job.seq = ready_tag.seq AND job.gate = 1")
        for table in ("job", "job_tag", "ready_tag", "payload"):
            connection.execute(f"VACUUM ANALYZE {table}")
    yield backend
    backend.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA large CASCADE")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "job_ready"),
        ({"types": ("rare",)}, "job_ready_type"),
        ({"types": ("rare", "ready")}, "job_ready_type"),
        ({"tags": ("common",)}, "ready_tag_pkey"),
        ({"tags": ("rare",)}, "ready_tag_pkey"),
        ({"tags": ("common", "rare")}, "ready_tag_pkey"),
        ({"key": '["nobody"]'}, "job_key_turn"),
    ],
    ids=["all", "type", "types", "common", "rare", "both", "key"],
)
def test_a_claim_uses_the_index_made_for_it_and_touches_few_pages(large, filters, index):
    """B18, B19: beside tens of thousands of jobs that others own."""
    plans = explained(large, lambda tx: tx.claim(claim(**filters)))
    used = {node.get("Index Name") for _, plan in plans for node in nodes(plan)}
    kinds = {node["Node Type"] for _, plan in plans for node in nodes(plan)}
    assert index in used
    assert not any(
        node["Node Type"] == "Seq Scan" and node["Relation Name"] in {"job", "ready_tag", "job_tag"}
        for _, plan in plans
        for node in nodes(plan)
    ), kinds
    assert buffers(plans) < 2_000


class Noting:
    """A connection that notes its queries."""

    def __init__(self, connection):
        self.connection = connection
        self.queries = []

    def execute(self, query, parameters=None):
        if query.startswith(("SELECT", "WITH")):
            self.queries.append((query, parameters or {}))
        return self.connection.execute(query, parameters)

    def __getattr__(self, name):
        return getattr(self.connection, name)


@pytest.mark.slow
def test_an_overview_walks_through_no_table_of_jobs(large):
    """Issue 7: counts are kept, or taken from the indexes of what is ready, delayed or in flight, up to a limit."""

    def explain(connection):
        noting = Noting(connection)
        shared = large._store.shared
        counted, _ = read_overview(noting, shared.sql, shared.journal, None, 50)
        with connection.transaction():
            return counted, [(query, generic_plan(connection, query, used)) for query, used in noting.queries]

    counted, plans = large._store.run(explain)
    assert len(plans) == 9
    assert {type_: count for type_, count, _ in counted.ready} == {
        "rare": 30,
        "ready": 50,
    }
    assert counted.delayed == 50
    used = {node.get("Index Name") for _, plan in plans for node in nodes(plan)}
    assert {"job_ready_type", "job_delayed", "job_in_flight"} <= used
    walked = [
        query
        for query, plan in plans
        for node in nodes(plan)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in {"job", "journal"}
    ]
    assert not walked
    assert buffers(plans) < 2_000


@pytest.mark.slow
def test_other_verbs_use_their_indexes_on_a_large_table(large):
    """B18: cancel by tag, moving due jobs, jobs of one worker, upkeep."""
    for work, index in [
        (lambda tx: tx.rows_tagged(["common", "rare"]), "job_tag_pkey"),
        (move_due, "job_delayed"),
        (lambda tx: tx.rows_in_flight("w"), "job_in_flight"),
        (lambda tx: tx.rows_expired(10), "job_expiry"),
        (lambda tx: tx.rows_overdue(0, 10), "job_in_flight"),
        (lambda tx: tx.rows_lost(1, [], [], 10), "job_in_flight"),
        (lambda tx: tx.rows_ended(["completed"], 1, 10), "job_ended"),
        (lambda tx: tx.rows(["rare-1", "rare-2"]), "job_id_key"),
        (lambda tx: tx.key_members(['["nobody"]']), "job_key_turn"),
        (lambda tx: (tx.expect(Reach.ALL), tx.rows(["rare-1", "rare-2"])), "edge_pkey"),
        (lambda tx: (tx.expect(Reach.NEXT), tx.lock_reached(seqs=[1, 2])), "job_pkey"),
        (lambda tx: tx.dependencies(["rare-1", "rare-2"]), "job_id_key"),
    ]:
        plans = explained(large, work)
        used = {node.get("Index Name") for _, plan in plans for node in nodes(plan)}
        assert index in used, (index, used)
        assert not any(
            node["Node Type"] == "Seq Scan" and node["Relation Name"] in {"job", "job_tag"}
            for _, plan in plans
            for node in nodes(plan)
        ), index
        assert buffers(plans) < 2_000


@pytest.mark.slow
def test_counting_is_quick_beside_many_jobs(large):
    """B19, Q47: from counters, for all jobs and for one tag; by the rarest of several tags."""
    large.maintain()
    for tags in ((), ("common",), ("common", "rare")):
        large.get_job_stats(tags)
        started = time.monotonic()
        for _ in range(5):
            found = large.get_job_stats(tags)
        assert (time.monotonic() - started) / 5 < 0.2
    assert found.total_jobs == 30


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_a_report_does_not_walk_through_the_jobs_that_are_ready(open_store, admin, is_analyzed):
    """F10: whatever the server knows of their number; it took the index of the ready set for one of a few rows."""
    backend = open_store()
    backend.enqueue_jobs([Job(id="mine", type="t")])
    if is_analyzed:
        admin.execute("ANALYZE job")
    backend.enqueue_jobs([Job.new("t") for _ in range(500)])
    for work in (
        lambda tx: tx.save(list(tx.rows(["mine"]).values())),
        lambda tx: tx.place(list(tx.rows(["mine"]).values())),
    ):
        plans = explained(backend, work)
        used = {node.get("Index Name") for _, plan in plans for node in nodes(plan)}
        assert not used & {"job_ready", "job_ready_type", "job_ready_late"}, used


PINNED = {
    "all": ({}, False),
    "tag": ({"tags": ("a",)}, False),
    "tag, beside a late job": ({"tags": ("a",)}, True),
    "type": ({"types": ("t",)}, False),
    "type, beside a late job": ({"types": ("t",)}, True),
    "two types": ({"types": ("t", "u")}, False),
    "two types, beside a late job": ({"types": ("t", "u")}, True),
}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", some(PINNED, ["type, beside a late job"]))
def test_dead_rows_under_a_held_snapshot_do_not_slow_claims(open_store, postgres_url, admin, case):
    """B19 (F10, F27): a claim looks at about as many pages after thousands of claims as at the beginning."""
    filters, has_late = PINNED[case]
    backend = open_store()
    if has_late:  # of a type that no worker handles
        backend.enqueue_job(Job(id="late", type="nobody"))
        admin.execute("UPDATE job SET late = true")
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")

        def add(number):
            backend.enqueue_jobs([Job.new("tu"[each % 2], tags=("a",)) for each in range(number)])

        def drain(number):
            add(number)
            while jobs := backend.dequeue_jobs("w", limit=100, **filters):
                backend.complete_jobs(dict.fromkeys(job.id for job in jobs))

        def cost():
            add(40)
            backend.dequeue_jobs("w", limit=5, **filters)
            return buffers(explained(backend, lambda tx: tx.claim(claim(limit=5, **filters))))

        drain(200)
        first = cost()
        drain(4_000)
        assert cost() < 2 * first + 100
        # Without what this process remembers, the same claim has to walk over every dead row.
        assert cost() < buffers(
            explained(backend, lambda tx: [forget(tx), tx.claim(claim(limit=5, **filters))])
        )


def test_a_late_job_that_is_wanted_comes_at_its_place(open_store, admin):
    """F10: by each kind of claim, whatever lies beside it."""
    backend = open_store()
    for number, filters in enumerate(({}, {"types": ["t"]}, {"types": ["t", "u"]}, {"tags": ["a"]})):
        backend.enqueue_jobs([Job(id=f"{number}-{each}", type="t", tags=("a",)) for each in range(9)])
        taken = [job.id for _ in range(4) for job in backend.dequeue_jobs("w", limit=1, **filters)]
        assert taken == [f"{number}-{each}" for each in range(4)]
        # It becomes ready before what was claimed already.
        admin.execute(
            "UPDATE job SET order_at = (SELECT min(order_at) FROM job) - 1, late = true WHERE id = %s",
            [f"{number}-8"],
        )
        admin.execute(
            "UPDATE ready_tag SET order_at = job.order_at FROM job WHERE job.seq = ready_tag.seq AND job.late"
        )
        taken = [job.id for _ in range(2) for job in backend.dequeue_jobs("w", limit=1, **filters)]
        assert taken == [f"{number}-8", f"{number}-4"]
        backend.reset_running_jobs()
        backend.cancel_jobs(job_ids=[job.id for job in backend.list_jobs()])


FORMS = {
    "all": ("any", {}),
    "type": ("type", {"type": "rare"}),
    "types": ("types", {"types": "{rare,nobody}", "width": 10}),
    "types, again": ("types", {"types": "{rare,nobody}", "width": 1_010}),
    "common": ("tag", {"tag": "common", "tags": "{}", "types": None}),
    "rare": ("tag", {"tag": "rare", "tags": "{}", "types": None}),
    "both": ("tag", {"tag": "rare", "tags": "{common}", "types": None}),
    "key": ("key", {"key": '["nobody"]', "tags": "{}", "types": None}),
    "complete many": (2, {"fences": '{"finished-1": 1, "rare-1": null}', "owners": "{}", "are_held": False}),
    "complete held": (2, {"fences": '{"finished-1": 1, "rare-1": null}', "owners": "{}", "are_held": True}),
    "complete one": (1, {"fences": '{"rare-1": null}', "owners": "{}"}),
}


class Session:
    """A session of the store, whose plans are made once, when it first meets a statement."""

    def __init__(self, backend):
        self._shared = backend._store.shared
        self.connection = backend._store._pool._open(Patience(30))
        for name in FORMS:
            self.run(name)

    def run(self, name, prefix=""):
        form, values = FORMS[name]
        is_claim = isinstance(form, str)
        statement = self._shared.claims[form] if is_claim else self._shared.complete_simple(form)
        if statement._name not in self.connection.prepared_by_hand:
            statement._prepare(self.connection)
        known = {
            "limit": 10,
            "now": None,
            "since": -1,
            "assignee_id": "w",
            "owner": None,
            "pushed": False,
            **lanes(Scan({})),
            **values,
        }
        given = [psycopg.sql.Literal(known[each]).as_string() for each in statement._order]
        prepared.command(self.connection, b"BEGIN")
        found = self.connection.execute(
            f'{prefix} EXECUTE "{statement._name.decode()}" ({", ".join(given)})', prepare=False
        ).fetchall()
        prepared.command(self.connection, b"ROLLBACK")
        return found

    def pages(self):
        """How many pages each form touches."""
        return {
            name: buffers([("", self.run(name, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)")[0][0][0]["Plan"])])
            for name in FORMS
        }


@pytest.mark.deep
@pytest.mark.slow
def test_claims_touch_few_pages_whatever_the_statistics_say(open_store, admin):
    """B18, B19: planned on an empty store, without any statistics, or with some from when nothing was ready."""
    backend = open_store()
    for table in ("job", "payload", "result", "checkpoint", "job_tag", "ready_tag", "journal_inbox"):
        admin.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    sessions = {"planned on an empty store": Session(backend)}
    backend.enqueue_jobs([Job(id=f"finished-{number}", type="finished") for number in range(20_000)])
    admin.execute(
        "UPDATE job SET status = 'completed', closed = 1, gate = NULL, finalized_at = updated_at"
        " WHERE type = 'finished'"
    )
    admin.execute("VACUUM job")
    sessions["planned when all were finished"] = Session(backend)

    def load(name):
        backend.enqueue_jobs(
            [
                Job(id=f"{name}-{number}", type="ready", tags=("common",), priority=Priority(number % 5))
                for number in range(10_000)
            ]
        )
        backend.enqueue_jobs(
            [Job(id=f"rare-{name}-{number}", type="rare", tags=("common", "rare")) for number in range(30)]
        )

    load("first")
    sessions["planned without statistics"] = Session(backend)
    for case, session in sessions.items():
        for name, pages in session.pages().items():
            assert pages < 600, (case, name)
    admin.execute("DELETE FROM ready_tag")
    admin.execute(
        "UPDATE job SET status = 'completed', closed = 1, gate = NULL, finalized_at = updated_at WHERE closed = 0"
    )
    for table in ("job", "payload", "job_tag", "ready_tag"):
        admin.execute(f"VACUUM ANALYZE {table}")
    sessions["planned when nothing was ready"] = Session(backend)
    load("second")
    sessions["with statistics from when nothing was ready"] = Session(backend)
    for case, session in sessions.items():
        for name, pages in session.pages().items():
            assert pages < 600, (case, name)
        session.connection.close()


@pytest.mark.slow
def test_a_claim_of_several_types_does_not_walk_through_those_of_others(large):
    """B19: also when there is less than it wants, which is so whenever a worker is idle."""
    plans = explained(large, lambda tx: tx.claim(claim(types=("nobody", "no one"))))
    assert buffers(plans) < 200


def move_due(tx):
    tx.is_due = True
    tx.promote(100)


def forget(tx):
    for lane in tx.shared.floors._lanes.values():
        lane._reached = {}


def test_a_job_that_becomes_ready_out_of_turn_is_not_passed_over(open_store):
    """B5, Q23, C17: also by an object that has already claimed what stands behind its place."""
    one, two = open_store(), open_store()
    one.enqueue_jobs([Job(id=f"first-{number}", type="t") for number in range(3)])
    one.enqueue_jobs([Job(id="head", type="t", key="k"), Job(id="tail", type="t", key="k")])
    one.enqueue_jobs([Job(id=f"last-{number}", type="t") for number in range(4)])
    assert [job.id for job in two.dequeue_jobs("w", limit=5)] == [
        "first-0",
        "first-1",
        "first-2",
        "head",
        "last-0",
    ]
    one.complete_job("head")
    assert [job.id for job in two.dequeue_jobs("w", limit=2)] == ["tail", "last-1"]
    one.update_job("last-3", priority=Priority.CRITICAL)
    assert [job.id for job in two.dequeue_jobs("w", limit=1)] == ["last-3"]


def test_two_objects_claim_in_one_exact_order(open_store):
    """B5, Q23, C17: retries at the tail, priorities first, whoever asks."""
    objects = [open_store(), open_store()]
    for number in range(40):
        objects[number % 2].enqueue_job(Job(id=f"{number:02}", type="t", priority=Priority(number % 3)))
    taken = []
    for turn in range(60):
        jobs = objects[turn % 2].dequeue_jobs("w", limit=1)
        if not jobs:
            break
        taken.append(jobs[0])
        if turn == 10:
            objects[0].fail_job(jobs[0].id, "again")
    first = [job for job in taken if job.attempt == 1]
    assert [job.id for job in first] == sorted(
        (job.id for job in first), key=lambda each: (int(each) % 3, each)
    )
    assert [job.attempt for job in taken].count(2) == 1
    assert len(taken) == 41


def test_a_short_claim_finds_what_committed_behind_its_place(open_store, gate_of, call):
    """B5: its time was drawn before the place was reached, its commit came after."""
    slow, quick = open_store(), open_store()
    quick.enqueue_job(Job(id="a", type="t"))
    gate = gate_of(slow)
    late = call(slow.enqueue_jobs, [Job(id="late", type="t")])
    assert gate.arrived.wait(10)
    quick.enqueue_job(Job(id="b", type="t"))
    assert [job.id for job in quick.dequeue_jobs("w", limit=2)] == ["a", "b"]
    gate.open.set()
    late.result()
    assert [job.id for job in quick.dequeue_jobs("w", limit=2)] == ["late"]


def test_statements_that_were_given_up_with_a_savepoint_are_prepared_again(open_store):
    """B17: a refused batch rolls back to a savepoint; the session goes on, also inside one transaction."""
    backend = open_store(pool_size=1)
    batch = [Job(id=f"{number}", type="t", tags=("a", "b")) for number in range(30)]
    backend.enqueue_jobs(batch)
    backend.complete_jobs({job.id: None for job in backend.dequeue_jobs("w", limit=5)})
    with pytest.raises(penstock.JobExistsError):
        backend.enqueue_jobs([Job(id=f"new-{number}", type="t") for number in range(30)] + batch[:1])
    assert len(backend.dequeue_jobs("w", ["a", "b"], limit=5)) == 5

    def work(tx):
        with pytest.raises(DuplicateIdError):
            tx.insert_plain(batch)
        return tx.complete_simple({"5": 1}), tx.claim(claim(limit=1))

    done, taken = backend._store.write(work)
    assert [job_id for job_id, _, _ in done] == ["5"]
    assert [job.id for job in taken] == ["10"]
    assert backend.get_job("10").attempt == 1


def test_a_claim_that_meets_due_jobs_takes_the_most_urgent_first(open_store):
    """B5: the statement that opens the transaction finds out that jobs became due, and takes nothing before they did."""
    clock = ManualClock()
    backend = open_store(clock=clock)
    backend.enqueue_job(Job(id="ready", type="t", tags=("a", "b")))
    backend.enqueue_jobs(
        [
            Job(
                id=f"due-{number}",
                type="t",
                tags=("a", "b"),
                run_at=clock.now() + timedelta(seconds=5),
                priority=Priority.CRITICAL,
            )
            for number in range(4)
        ]
    )
    clock.advance(10)
    taken = [
        backend.dequeue_jobs("w", **filters)[0].id
        for filters in ({}, {"types": ["t"]}, {"types": ["t", "u"]}, {"tags": ["a", "b"]}, {"tags": ["a"]})
    ]
    assert taken == ["due-0", "due-1", "due-2", "due-3", "ready"]


def test_what_waits_in_a_key_is_found_by_its_index(large, postgres_url):
    """B18: whatever else waits, for a turn in other keys too."""
    large.enqueue_jobs([Job.new("t", key=f"crowd-{number % 7}") for number in range(2000)])
    large.enqueue_jobs([Job.new("t", key="few") for _ in range(3)])
    assert large.reading.count_keyed("few") == 3
    options = "-c search_path=large " + " ".join(f"-c {name}={value}" for name, value in PLANNER.items())
    with psycopg.connect(postgres_url, options=options) as connection:
        for query in (
            "SELECT count(*) FROM job " + reading._waiting("key", None),
            "SELECT id FROM job " + reading._waiting("key", "t") + " AND seq <= %(upto)s LIMIT %(limit)s",
        ):
            given = {"key": encode_strings(("few",)), "type": "t", "upto": 10**9, "limit": 1000}
            plan = generic_plan(connection, query, given)
            assert [each["Index Name"] for each in nodes(plan) if "Index Name" in each] == ["job_key"]
            assert buffers([(query, plan)]) < 30
