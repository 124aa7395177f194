"""What can go wrong while a lake is synced: nothing is lost, nothing is there twice, and the error says what to do."""

import contextlib
import shutil
import threading
from pathlib import Path

import duckdb
import msgspec
import psutil
import pytest
from tests.journals import rows_of
from tests.spark.lake.support import TABLES, RandomStore, assert_lake_is, files_of

import penstock
from penstock.errors import BackendError, InvalidArgumentError
from penstock.spark import audit, read_table, sync
from penstock.spark.lake.manifest import LakeFolder
from penstock.spark.lake.reading import snapshot


class CutError(Exception):
    """The end of a sync."""


def test_cut_off_in_the_middle_the_tables_are_the_same(spark, tmp_path):
    """The first batch is in, the tables of the second are being made. What files a commit touches: test_manifest.py.

    The lake goes on from a copy of its files at that moment, which is what a process that is killed leaves;
    `make soak` kills one.
    """
    store = RandomStore(tmp_path)
    store.stir(5, 150)
    lake, left = tmp_path / "lake", tmp_path / "left"
    seen = []

    def cut(now):
        seen.append(now.step)
        if seen.count("hourly") == 2:
            shutil.copytree(lake, left)
            raise CutError

    with pytest.raises(CutError):
        sync(spark, store.url, lake, events_per_batch=40, progress=cut)
    assert 0 < read_table(spark, left, "events").count() < len(store.entries())
    report = sync(spark, store.url, left)
    assert 0 < report.events < len(store.entries())
    assert_lake_is(spark, left, [store])


@pytest.fixture(scope="module")
def synced(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    store = RandomStore(folder)
    store.stir(6, 60)
    sync(spark, store.url, folder / "lake")
    return store, folder / "lake"


@pytest.mark.deep
def test_a_store_that_goes_away_leaves_the_lake_as_it_was(spark, synced):
    store, lake = synced
    store.stir(7, 40)
    file = Path(store.url.removeprefix("sqlite:///"))
    before = files_of(lake)

    def take_away(now):
        if now.step == "events":
            file.rename(file.with_suffix(".away"))

    try:
        with pytest.raises(BackendError, match=r"no file .*jobs\.db"):
            sync(spark, store.url, lake, progress=take_away)
    finally:
        file.with_suffix(".away").rename(file)
    changed = {path for path, _ in before.items() ^ files_of(lake).items()}
    assert {path for path in changed if not path.startswith("_penstock/")} == set()
    assert sync(spark, store.url, lake).events > 0
    assert read_table(spark, lake, "events").count() == len(store.entries())


def test_a_continuous_sync_outlives_a_store_that_is_away_for_a_while(spark, synced):
    store, lake = synced
    store.stir(14, 100)
    file = Path(store.url.removeprefix("sqlite:///"))
    away = file.with_suffix(".away")

    class Pauses(threading.Event):
        """Between two rounds the file is back; after the second one that is enough."""

        rounds = 0

        def wait(self, timeout=None):
            self.rounds += 1
            if self.rounds == 1:
                away.rename(file)
            return self.rounds == 2

    pauses = Pauses()

    def take_away(now):
        if now.step == "events" and not pauses.rounds:
            file.rename(away)

    sync(spark, store.url, lake, continuous=True, interval=1, stop=pauses, progress=take_away)
    assert pauses.rounds == 2
    assert read_table(spark, lake, "events").count() == len(store.entries())


def python_workers():
    """The processes in which tasks of this session run Python; those that plan sources are others."""
    found = []
    for daemon in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if daemon.cmdline()[-2:] == ["pyspark.daemon", "pyspark.worker"]:
                found += daemon.children()
    return found


@pytest.mark.process
def test_killed_tasks_are_tried_again_and_the_tables_are_the_same(spark, synced):
    """F31: every process that Spark has for tasks is killed at the start of every step."""
    store, lake = synced
    store.stir(9, 150)
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()  # so that there is one
    killed = []

    def kill(_now):
        for worker in python_workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
                killed.append(worker.pid)

    assert sync(spark, store.url, lake, progress=kill).events > 0
    assert killed
    assert_lake_is(spark, lake, [store])


def test_a_second_pipeline_is_refused_and_the_first_goes_on(spark, synced):
    """It finds, and removes, what one that died has left in the folders."""
    store, lake = synced
    torn = [lake / "jobs" / "torn.parquet", lake / "_penstock" / "staging" / "9" / "jobs" / "half.parquet"]
    for file in torn:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"PAR1 and then the power went")
    store.stir(10, 100)
    refused = []

    def intrude(now):
        if now.step == "attempts":
            with pytest.raises(BackendError, match="another pipeline is at work") as caught:
                sync(spark, store.url, lake)
            refused.append(caught.value.retryable)

    sync(spark, store.url, lake, progress=intrude)
    assert refused == [True]
    assert not any(file.exists() for file in torn)
    assert spark.read.parquet(str(lake / "events")).count() == len(store.entries())
    assert spark.read.parquet(str(lake / "jobs")).count() == read_table(spark, lake, "jobs").count()


def test_a_table_that_is_being_read_stays_as_it_was(spark, synced):
    """Further batches replace its files before the first row is asked for."""
    store, lake = synced
    frames = {name: read_table(spark, lake, name) for name in TABLES}
    rows = {name: rows_of(frame) for name, frame in frames.items()}
    paths = {path for path in files_of(lake) if path.startswith("jobs/")}
    store.stir(11, 60)
    sync(spark, store.url, lake)
    assert paths - set(files_of(lake))
    assert {name: rows_of(frame) for name, frame in frames.items()} == rows
    assert rows_of(read_table(spark, lake, "jobs")) != rows["jobs"]


def test_who_reads_while_a_batch_replaces_the_files_reads_again(spark, synced, monkeypatch):
    store, lake = synced
    before = LakeFolder(lake).current()
    store.stir(12, 60)
    sync(spark, store.url, lake)
    after = LakeFolder(lake).current()
    manifests = [before, after, after]
    with monkeypatch.context() as patch:
        patch.setattr(LakeFolder, "current", lambda _: manifests.pop(0))
        found, tables = snapshot(spark, lake, TABLES)
    assert (found.number, manifests) == (after.number, [])
    assert tables["events"].count() == len(store.entries())


def test_a_lake_of_a_newer_version_is_left_alone(spark, synced):
    store, lake = synced
    identity = lake / "_penstock" / "lake.json"
    kept = identity.read_bytes()
    identity.write_bytes(msgspec.json.encode(msgspec.json.decode(kept) | {"version": 99}))
    before = files_of(lake)
    for use in (
        lambda: sync(spark, store.url, lake),
        lambda: read_table(spark, lake, "jobs"),
        lambda: audit(spark, lake),
    ):
        with pytest.raises(BackendError, match=r"version 99.*upgrade"):
            use()
    assert files_of(lake) == before
    identity.write_bytes(kept)


def test_a_lake_is_not_synced_with_an_older_copy(spark, synced):
    store, lake = synced
    path = max((lake / "_penstock" / "manifests").iterdir())
    kept = path.read_bytes()
    manifest = msgspec.json.decode(kept)
    path.write_bytes(msgspec.json.encode(manifest | {"offsets": {store.id: 10**6}}))
    with pytest.raises(BackendError, match=r"ends at .* new lake"):
        sync(spark, store.url, lake)
    path.write_bytes(kept)


def test_a_wrong_url_makes_no_folder(spark, tmp_path):
    lake = tmp_path / "lake"
    for url, error in (("memory:", InvalidArgumentError), (f"sqlite:///{tmp_path}/none.db", BackendError)):
        with pytest.raises(error):
            sync(spark, url, lake)
    for wrong in ([], 7):
        with pytest.raises(InvalidArgumentError, match="url"):
            sync(spark, wrong, lake)
    assert not lake.exists()


def test_bad_options_are_refused(spark, synced):
    store, lake = synced
    for options in ({"events_per_batch": 0}, {"interval": -1.0}):
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            sync(spark, store.url, lake, **options)
    with pytest.raises(InvalidArgumentError, match="same store"):
        sync(spark, [store.url, f"{store.url}?durability=normal"], lake)
    with pytest.raises(InvalidArgumentError, match=r"unknown table of a lake 'nothing' \(known: events"):
        read_table(spark, lake, "nothing")


@pytest.mark.deep
def test_tables_of_an_older_version_are_rebuilt_and_passed_to_the_sink(spark, synced):
    store, lake = synced
    path = max((lake / "_penstock" / "manifests").iterdir())
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"version": 0}))
    jobs = next((lake / "jobs").iterdir())
    jobs.write_bytes(b"what an older version wrote")
    passed = {}
    sync(
        spark,
        store.url,
        lake,
        sink=lambda table, rows, number: passed.update({table: (rows.count(), number)}),
    )
    assert_lake_is(spark, lake, [store])
    assert passed["jobs"][0] == read_table(spark, lake, "jobs").count()
    assert {number for _, number in passed.values()} == {int(path.stem) + 1}


def test_an_empty_store_makes_tables_without_rows(spark, tmp_path):
    store = RandomStore(tmp_path)
    report = sync(spark, store.url, tmp_path / "lake")
    assert (report.events, report.batches) == (0, 0)
    for table in TABLES:
        files = tmp_path / "lake" / table / "**" / "*.parquet"
        assert duckdb.sql(f"SELECT count(*) FROM read_parquet('{files}')").fetchall() == [(0,)]
    assert read_table(spark, tmp_path / "lake", "jobs").count() == 0


def test_stores_of_both_kinds_are_synced_audited_and_archived(spark, varied, tmp_path):
    """In this order: nothing is archived that the lake has not got, and the audit knows what is missing."""
    lake = tmp_path / "lake"
    with penstock.open_backend(varied) as backend:
        rows = len(backend.read_journal(limit=1000))
    assert sync(spark, varied, lake).events == rows
    with penstock.open_backend(varied) as backend:
        (consumer,) = [each for each in backend.journal.list_consumers() if each.name.startswith("lake:")]
        assert consumer.seq == rows
        removed = backend.journal.archive(0)
    assert removed.histories > 0
    assert audit(spark, varied).collect() == []
    assert audit(spark, lake).collect() == []
    assert sync(spark, varied, lake).events == 0
    new = tmp_path / "new"
    assert sync(spark, varied, new).events == rows - removed.rows
    assert audit(spark, new).collect() == []


def test_an_audit_of_a_store_finds_a_job_that_the_journal_does_not_explain(spark, sqlite_url, tmp_path):
    import apsw

    with penstock.connect(sqlite_url) as queue:
        queue.submit_many([{"type": "t"}] * 3)
    with apsw.Connection(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE job SET priority = 0 WHERE seq = 1")
    (row,) = audit(spark, sqlite_url).collect()
    assert row.invariant == 23
    assert row.detail.startswith("priority is 0, the journal says 2")
