"""A lake with truncated or deleted files: the error names them, and derived tables can be rebuilt."""

import apsw
import pytest
from tests.spark.lake.test_manifest import FIRST, commit, contents

import penstock
from penstock import spark as ps
from penstock.errors import BackendError
from penstock.spark.lake.manifest import LakeFile, LakeFolder, Manifest


@pytest.fixture
def folder(tmp_path):
    lake = LakeFolder(tmp_path / "lake")
    lake.create()
    return lake


def test_a_file_that_is_cut_off_is_named(folder):
    commit(folder, FIRST)
    file = LakeFile("jobs/open-1", 1, size=4)
    with pytest.raises(
        BackendError, match=r"open-1 is damaged: it has 1 bytes, and was written with 4;.*--rebuild"
    ):
        folder.location(Manifest(number=1), file)
    assert folder.location(Manifest(number=1), LakeFile("jobs/open-1", 1, size=1)).name == "open-1"
    (folder.path / "jobs" / "open-1").write_text("PAR1 written again PAR1")
    assert folder.location(Manifest(number=1), file).name == "open-1"


def test_before_a_rebuild_only_the_events_need_to_be_whole(folder):
    commit(folder, FIRST)
    (folder.path / "jobs" / "open-1").unlink()
    folder.repair(rebuilds=True)
    assert contents(folder) == {"events/day=1/a": "a"}
    (folder.path / "events" / "day=1" / "a").unlink()
    with pytest.raises(BackendError, match=r"is missing from the lake; .* sync into a new folder"):
        folder.repair(rebuilds=True)


@pytest.mark.deep
def test_a_rebuild_mends_every_table_but_events(spark, sqlite_url, tmp_path):
    """Also those without rows: nothing here depends on another job, so there are no flows."""
    with penstock.connect(sqlite_url) as queue:
        queue.submit_many([{"type": "a"}, {"type": "b"}])
        for job in queue.claim_jobs("worker", limit=2):
            queue.complete_job(job.id, attempt=job.attempt)
    lake = tmp_path / "lake"
    ps.sync(spark, sqlite_url, lake)

    def rows():
        names = ("attempts", "jobs", "flows")
        return {name: sorted(map(repr, ps.read_table(spark, lake, name).collect())) for name in names}

    before = rows()
    (file,) = (lake / "attempts").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    for name in ("jobs", "flows"):
        for each in (lake / name).rglob("*.parquet"):
            each.unlink()
    for attempt in (
        lambda: ps.sync(spark, sqlite_url, lake),
        lambda: ps.read_table(spark, lake, "attempts"),
        lambda: ps.audit(spark, lake),
    ):
        with pytest.raises(BackendError, match=r"is (damaged|missing).*--rebuild"):
            attempt()
    assert ps.sync(spark, sqlite_url, lake, rebuild=True).events == 0
    assert rows() == before


@pytest.mark.deep
def test_what_a_journal_has_lost_is_not_taken_for_archived(spark, sqlite_url, tmp_path):
    with penstock.connect(sqlite_url) as queue:
        queue.submit_many([{"type": "a"}, {"type": "b"}, {"type": "c"}])
    with apsw.Connection(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM journal WHERE type = 'b'")
    ps.sync(spark, sqlite_url, tmp_path / "lake")
    (row,) = ps.audit(spark, tmp_path / "lake").collect()
    assert (row.invariant, row.seq) == (2, 3)
    assert "1 rows are missing so far, 0 were archived" in row.detail
