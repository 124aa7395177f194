"""Batches small and large: what is looked up without Spark is what Spark would find, and both ways give the same lake."""

import importlib
from collections import Counter
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest
from tests.journals import START, entries_of, frame_of_all, memory_store, rows_of, table_of_all
from tests.machine_journals import random_store
from tests.spark.lake.support import RandomStore, assert_lake_is

from penstock import Job
from penstock.job import FINAL
from penstock.spark import read_table, sync
from penstock.spark._settings import temporarily
from penstock.spark.lake import _batch
from penstock.spark.transforms import flows, latest
from penstock.spark.transforms.rows import LOST, REPORTS

SEEDS = (11, 12, 13)


@pytest.fixture(scope="module")
def journals():
    return {f"random-{seed}": entries_of(random_store(seed)) for seed in SEEDS}


@pytest.fixture
def files(journals, tmp_path):
    """The journals in two files, without regard to who is in which."""
    table = table_of_all(journals)
    half = table.num_rows // 2
    paths = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    pq.write_table(table.slice(0, half), paths[0])
    pq.write_table(table.slice(half), paths[1])
    return paths


def pairs(table):
    return Counter(zip(table["source"].to_pylist(), table["job_id"].to_pylist(), strict=True))


@pytest.mark.parametrize("rows_at_once", [7, 100_000])
def test_a_batch_of_files_has_the_figures_of_the_journals(monkeypatch, journals, files, rows_at_once):
    monkeypatch.setattr(_batch, "_ROWS_AT_ONCE", rows_at_once)
    found = _batch.read_batch(files)
    rows = [(source, entry) for source, entries in journals.items() for entry in entries]
    assert found.counts == Counter(source for source, _ in rows)
    assert found.rows == len(rows)
    assert found.first_hour == {
        source: int(datetime(2026, 11, 16, 9, tzinfo=UTC).timestamp()) * 1_000_000 for source in journals
    }
    assert found.amendments == sum(e.from_status in LOST and e.verb in REPORTS for _, e in rows)
    assert found.from_final == sum(e.from_status in FINAL for _, e in rows)
    begun = [(source, e) for source, e in rows if e.from_status is None]
    waiting = [(source, e) for source, e in begun if e.after or e.after_any]
    assert found.dependent == len(waiting) > 0
    assert found.amendments > 0
    assert found.from_final > 0
    assert pairs(found.named.jobs) == Counter({(source, e.job_id) for source, e in rows})
    assert pairs(found.named.waiting) == Counter({(source, e.job_id) for source, e in waiting})
    awaited = {(source, on) for source, e in waiting for on in (*e.after, *e.after_any)}
    assert pairs(found.named.awaited) == Counter(awaited)


def test_of_a_large_batch_no_ids_are_held(monkeypatch, files):
    small = _batch.read_batch(files)
    monkeypatch.setattr(_batch, "SMALL_BATCH", small.rows - 1)
    large = _batch.read_batch(files)
    assert (small.is_small, large.is_small) == (True, False)
    assert large.named is None
    assert large[:5] == small[:5]


def test_a_batch_without_rows_holds_nothing():
    assert _batch.read_batch([]).rows == 0


# -- trees --------------------------------------------------------------------------------------------------------


def wide():
    """Trees that share jobs, at different depths."""
    backend, _ = memory_store()
    backend.enqueue_jobs(
        [
            Job(id="a", type="t"),
            Job(id="b", type="t", after=("a",)),
            Job(id="c", type="t", after=("a", "b")),
            Job(id="d", type="t", after=("c",), after_any=("a", "b")),
            Job(id="e", type="t", after=("c", "a")),
        ]
    )
    return entries_of(backend)


@pytest.mark.deep
@pytest.mark.parametrize("limit", ["FEW_LINKS", "MAX_STEPS"])
def test_trees_are_the_same_by_either_way_of_walking(spark, monkeypatch, journals, limit):
    module = importlib.import_module(
        "penstock.spark.transforms.flows"
    )  # the package has a function of that name
    jobs = latest(frame_of_all(spark, {**journals, "wide": wide()})).localCheckpoint()
    here = rows_of(flows(jobs))
    assert len(here) > 5
    monkeypatch.setattr(module, limit, 0)
    walks = []
    walk = module._walk
    monkeypatch.setattr(module, "_walk", lambda links: walks.append(1) or walk(links))
    assert rows_of(flows(jobs)) == here
    assert walks == [1]


# -- syncs --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_large_batches_and_a_session_elsewhere_make_the_same_lake(spark, monkeypatch, tmp_path):
    monkeypatch.setattr(_batch, "SMALL_BATCH", 0)
    store, lake = RandomStore(tmp_path), tmp_path / "lake"
    # Its hours begin at half past those of UTC.
    with temporarily(spark, {"spark.sql.session.timeZone": "Asia/Kolkata"}):
        store.stir(5, 200)
        sync(spark, store.url, lake)
        store.stir(6, 150)
        sync(spark, store.url, lake)
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Kolkata"
    assert_lake_is(spark, lake, [store])
    hours = [row.hour for row in read_table(spark, lake, "hourly").select("hour").distinct().collect()]
    assert {(hour.minute, hour.second) for hour in hours} == {(0, 0)}
    assert (lake / f"events/day={START.date()}").is_dir()
