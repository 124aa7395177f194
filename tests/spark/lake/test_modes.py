"""What comes from a store can be read by the users who may read the store."""

import os
import stat
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import penstock
from penstock import spark as ps
from penstock.cli import run
from penstock.spark.lake.files import make_folder, write_as


@pytest.fixture(autouse=True)
def wide_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes_of(folder):
    """The modes of all folders and of all files, the folder itself included."""
    found = {"folder": {stat.S_IMODE(folder.stat().st_mode)}, "file": set()}
    for path in folder.rglob("*"):
        found["folder" if path.is_dir() else "file"].add(stat.S_IMODE(path.stat().st_mode))
    return found


@pytest.mark.deep
def test_a_lake_and_its_report_are_as_private_as_the_store(spark, url, tmp_path, monkeypatch):
    with penstock.connect(url) as queue:
        queue.submit_many([{"type": "t"}] * 5)
        (job,) = queue.claim_jobs("worker")
        queue.complete_job(job.id, attempt=job.attempt)
    lake = tmp_path / "lake"
    ps.sync(spark, url, lake)
    with penstock.connect(url) as queue:
        queue.submit("later")
    ps.sync(spark, url, lake)  # rewrites files, and leaves what readers hold
    ps.read_table(spark, lake, "jobs").collect()
    assert modes_of(lake) == {"folder": {0o700}, "file": {0o600}}
    monkeypatch.setattr(sys.modules["penstock.cli.report"], "spark_session", lambda _: nullcontext(spark))
    page, numbers = tmp_path / "report.html", tmp_path / "report.json"
    assert run(["report", "--lake", str(lake), "--out", str(page), "--json", str(numbers)]) == 0
    assert {stat.S_IMODE(each.stat().st_mode) for each in (page, numbers)} == {0o600}


def test_a_store_that_a_group_may_read_gives_a_lake_that_it_may_read(spark, sqlite_url, tmp_path):
    with penstock.connect(sqlite_url) as queue:
        queue.submit("t")
    Path(sqlite_url.removeprefix("sqlite:///")).chmod(0o640)
    ps.sync(spark, sqlite_url, tmp_path / "lake")
    assert modes_of(tmp_path / "lake") == {"folder": {0o750}, "file": {0o640}}


def test_a_file_that_is_there_keeps_its_mode(tmp_path):
    shared, new = tmp_path / "shared", tmp_path / "new"
    shared.write_text("before")
    shared.chmod(0o644)
    for path in (shared, new):
        write_as(0o600, path, "after")
    assert [(stat.S_IMODE(each.stat().st_mode), each.read_text()) for each in (shared, new)] == [
        (0o644, "after"),
        (0o600, "after"),
    ]


def test_folders_above_a_lake_are_made_as_others_are(tmp_path):
    make_folder(tmp_path / "a" / "lake" / "events", tmp_path / "a" / "lake", 0o600)
    made = [tmp_path / "a", tmp_path / "a" / "lake", tmp_path / "a" / "lake" / "events"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o755, 0o700, 0o700]
