"""Beside a held snapshot no dead row can be removed: what claims, reports and upkeep touch must not grow with them."""

import time
from collections import Counter
from datetime import timedelta

import psycopg
import pytest
from tests.waiting import until

from penstock.backends.postgres import floors
from penstock.job import Job
from penstock.policy import RetryPolicy, Timeouts

FEW, MANY = 2_000, 10_000
AT_ONCE = RetryPolicy(initial_delay=0.001, backoff="constant")
SHORT = timedelta(milliseconds=1)


class Meter:
    """The pages that the one session of a store touches."""

    def __init__(self, backend, admin):
        self._backend, self._admin = backend, admin
        for (table,) in admin.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
        ).fetchall():
            admin.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")  # it touches pages too

    def pages(self, verb):
        before = self._touched()
        verb()
        return self._touched() - before

    def _touched(self):
        # The session itself has to say that what it counted is to be shown now.
        self._backend._store.run(lambda own: own.execute("SELECT pg_stat_force_next_flush()").fetchone())
        (found,) = self._admin.execute(
            "SELECT sum(coalesce(heap_blks_hit + heap_blks_read, 0) + coalesce(idx_blks_hit + idx_blks_read, 0))"
            " FROM pg_statio_all_tables WHERE schemaname = current_schema()"
        ).fetchone()
        return int(found)


@pytest.fixture
def steady(monkeypatch):
    """Looks from the beginning come by the clock; here there are none. So do those that begin a few seconds back."""
    for name in ("_FULL_SCAN_EVERY", "_FULL_SCAN_WHEN_SHORT", "_IN_FLIGHT_SCAN_EVERY", "_RECENT_SCAN_EVERY"):
        monkeypatch.setattr(floors, name, 3_600.0)
    for name in ("_UNTIL_XID", "_SWEPT_AGAIN", "_LATE_COMMITS", "_SCAN_BACK"):
        monkeypatch.setattr(floors, name, 0)


@pytest.fixture
def held(postgres_url):
    with psycopg.connect(postgres_url) as holder:
        if holder.info.server_version < 150_000:
            pytest.skip("the server cannot be asked to show its counts")
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        yield


def new_jobs(count, kinds="t"):
    return [Job.new(kinds[each % len(kinds)], tags=("a",), retry=AT_ONCE) for each in range(count)]


def finish(backend, count, filters):
    """Let so many jobs pass, of which every fifth fails once."""
    backend.enqueue_jobs(new_jobs(count, "tu"))
    while backend.get_job_stats().pending_jobs + backend.get_job_stats().failed_jobs > 1:
        jobs = backend.dequeue_jobs("w", limit=100, **filters)
        failing = [job.id for job in jobs[::5] if job.attempt == 1]
        backend.fail_jobs(dict.fromkeys(failing, "once"))
        backend.complete_jobs({job.id: None for job in jobs if job.id not in failing})


def costs(backend, meter, filters):
    """The pages that each verb touches, the least of three rounds; a round before them brings the memory up to date."""
    found = []
    for _ in range(4):
        backend.enqueue_jobs(new_jobs(60, "tu"))
        jobs, pages = [], Counter()
        pages["claim"] = meter.pages(
            lambda jobs=jobs: jobs.extend(backend.dequeue_jobs("w", limit=20, **filters))
        )
        ids = [job.id for job in jobs]
        verbs = {
            "heartbeat": lambda: backend.heartbeat("w"),
            "heartbeat, named": lambda jobs=jobs: backend.heartbeat(
                "w", jobs={each.id: each.attempt for each in jobs}
            ),
            "complete": lambda ids=ids: backend.complete_jobs(dict.fromkeys(ids[:10])),
            "fail": lambda ids=ids: backend.fail_jobs(dict.fromkeys(ids[10:15], "again")),
            "release": lambda ids=ids: backend.release_jobs(dict.fromkeys(ids[15:], "back")),
            "upkeep": backend.maintain,
            "idle upkeep": backend.maintain,
        }
        for name, verb in verbs.items():
            pages[name] = meter.pages(verb)
        found.append(pages)
    return {name: min(each[name] for each in found[1:]) for name in found[0]}


CLAIMS = {
    "all": ({}, False),
    "one type, beside a late job": ({"types": ["t"]}, True),
    "types": ({"types": ["t", "u"]}, False),
    "types, beside a late job": ({"types": ["t", "u"]}, True),
    "tag, beside a late job": ({"tags": ["a"]}, True),
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("held", "steady")
@pytest.mark.parametrize(("filters", "has_late"), CLAIMS.values(), ids=CLAIMS)
def test_no_verb_touches_more_pages_as_dead_rows_pile_up(open_store, admin, filters, has_late):
    """B19 (F10): with and without a ready late job that no worker handles."""
    backend = open_store(pool_size=1)
    meter = Meter(backend, admin)
    if has_late:
        backend.enqueue_job(Job(id="late", type="nobody", run_at=backend.now() + timedelta(seconds=1)))
        until(lambda: backend.maintain().due)
    finish(backend, FEW, {"types": ["t", "u"]})
    few = costs(backend, meter, filters)
    finish(backend, MANY - FEW, {"types": ["t", "u"]})
    many = costs(backend, meter, filters)
    # The indexes have become deeper by a page.
    assert {name: (few[name], many[name]) for name in few if many[name] > 1.5 * few[name] + 50} == {}
    # Without what this process remembers each of these walks over every dead row.
    backend._store.shared.floors._enabled = False
    blind = costs(backend, meter, filters)
    assert {name for name in blind if blind[name] > 2 * many[name] + 200} >= {
        "claim",
        "heartbeat",
        "idle upkeep",
    }


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("held", "steady")
def test_upkeep_does_not_walk_over_what_it_has_removed(open_store, admin):
    """B19 (F10): lifetimes, retention and idempotency keys whose rows have gone long ago."""
    backend = open_store(
        pool_size=1, retention={"completed": SHORT, "other": SHORT}, idempotency_window=SHORT
    )
    meter = Meter(backend, admin)

    def pass_away(count):
        backend.enqueue_jobs(
            [
                Job(id=f"{each}", type="t", idempotency_key=f"{each}", timeouts=Timeouts(lifetime=SHORT))
                for each in range(count)
            ]
        )
        while backend.get_job_stats().total_jobs:
            backend.maintain()

    def idle():
        return min(meter.pages(backend.maintain) for _ in range(3))

    pass_away(FEW)
    few = idle()
    pass_away(MANY - FEW)
    many = idle()
    assert many <= 1.5 * few + 50
    backend._store.shared.floors._enabled = False
    assert idle() > 2 * many + 200


@pytest.mark.usefixtures("steady")
def test_a_claim_that_commits_late_is_known_to_heartbeats_and_upkeep(open_store, gate_of, call):
    """F10: although looks before its commit had gone on past the time of the claim."""
    one, two = open_store(), open_store()
    one.enqueue_jobs(
        [Job(id="kept", type="t"), Job(id="lost", type="t", timeouts=Timeouts(visibility=SHORT))]
    )
    gate = gate_of(one)
    claiming = call(one.dequeue_jobs, "w", limit=2)
    assert gate.arrived.wait(20)
    for _ in range(3):
        assert two.heartbeat("w") == 0
        assert two.maintain().lost == 0
    gate.open.set()
    assert len(claiming.result()) == 2
    until(lambda: two.maintain().lost == 1)
    assert two.heartbeat("w") == 1
    # What is known is looked at again, and what is claimed again is found.
    assert two.maintain().lost == 0
    one.reset_running_jobs()
    assert two.heartbeat("w") == 0
    until(lambda: one.dequeue_jobs("w", limit=2))
    assert two.heartbeat("w") >= 1


def test_looks_from_the_beginning_take_a_small_part_of_the_time():
    """F10: the longer one takes, the longer the next one waits."""
    pace = floors.Pace()
    assert pace.is_due(1.0)
    pace.note(time.monotonic())
    assert not pace.is_due(60.0)
    until(lambda: pace.is_due(0.0))
    pace.note(time.monotonic() - 10.0)
    assert not pace.is_due(0.0)
