"""Spark drivers that are really killed, with their JVM; `make test` has the same moments within one process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.spark.copying import start_copy
from tests.spark.lake.support import RandomStore, assert_lake_is

import penstock
from penstock import Job
from penstock.spark import read_table, sync

pytestmark = [pytest.mark.soak, pytest.mark.process]
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}

CHILD = """
import sys
from penstock import spark as ps
from tests.spark.support import FAST

url, lake = sys.argv[1:]
spark = ps.session("local[2]", **FAST)
ps.sync(spark, url, lake, events_per_batch=40, progress=lambda now: print(now.step, now.done, flush=True))
"""


def killed_at(url: str, lake: Path, step: str, nth: int) -> None:
    """Run a sync in a process of its own, and kill it with its JVM when it comes to a step for the nth time."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, url, str(lake)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=ENVIRONMENT,
    )
    seen = 0
    try:
        for line in child.stdout:
            seen += line.split()[0] == step
            if seen == nth:
                break
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    assert seen == nth, "it ended before it was killed"


@pytest.mark.parametrize("moment", [("events", 2), ("attempts", 2), ("hourly", 2), ("flows", 3)], ids=str)
def test_killed_at_any_moment_the_tables_are_the_same(spark, tmp_path, moment):
    """Some batches are in, the tables of the next are being made. What files a commit touches: test_manifest.py."""
    store = RandomStore(tmp_path)
    store.stir(5, 400)
    lake = tmp_path / "lake"
    killed_at(store.url, lake, *moment)
    assert 0 < read_table(spark, lake, "events").count() < len(store.entries())
    report = sync(spark, store.url, lake)
    assert 0 < report.events < len(store.entries())
    assert_lake_is(spark, lake, [store])


def ids_in(url):
    """The id of each enqueue row: an id that was added twice stands there twice."""
    with penstock.open_backend(url) as backend:
        return sorted(row.job_id for row in backend.read_journal(limit=100_000) if row.verb == "enqueue")


COPIER = """
import os, signal, sys
from penstock import spark as ps
from tests.spark.copying import start_copy
from tests.spark.support import FAST

source, target, folder = sys.argv[1:]
spark = ps.session("local[2]", **FAST)

def die(batch):
    if batch == 1:
        os.killpg(0, signal.SIGKILL)

start_copy(spark, source, target, folder, die).awaitTermination()
"""


@pytest.mark.postgres
def test_a_driver_that_is_killed_loses_and_repeats_nothing(spark, postgres_database, tmp_path):
    """F31, F32: after a batch was written and before that was noted; another process goes on with its checkpoint."""
    source = f"sqlite:///{tmp_path}/source.db"
    with penstock.open_backend(source) as backend:
        expected = sorted(backend.enqueue_jobs([Job.new("t") for _ in range(250)]))
    done = subprocess.run(
        [sys.executable, "-c", COPIER, source, postgres_database, str(tmp_path)],
        start_new_session=True,
        timeout=600,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == -signal.SIGKILL
    assert 0 < len(ids_in(postgres_database)) < 250
    assert start_copy(spark, source, postgres_database, str(tmp_path)).awaitTermination(600) is True
    assert ids_in(postgres_database) == expected
