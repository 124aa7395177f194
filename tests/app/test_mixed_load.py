"""Jobs of every kind at once, a hundredth of them poison: nothing is lost, done twice, or left over."""

import os
import random
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
from tests.app import jobs
from tests.app.working import until

from penstock import JobStatus, Worker
from penstock.testing import check_store

pytestmark = [pytest.mark.process, pytest.mark.slow]

ENDS = {"poison": JobStatus.DEAD_LETTER, "wrong": JobStatus.FAILED}
HOWS = ["plain"] * 60 + ["shaky", "leaks", "orphans", "loud", "spawns", "reports"] * 6
HOWS += ["crashes once", "wrong", "poison", "poison"]


def descriptors() -> Counter:
    """What this process has open, by kind: the files of a pool may be more or fewer of the same."""
    found: Counter = Counter()
    for each in Path("/proc/self/fd").iterdir():
        try:
            found[os.readlink(each).partition(":")[0]] += 1
        except OSError:
            continue
    return found


def work(url: str, number: int, folder: Path) -> None:
    jobs.app.url = url
    try:
        jobs.double.submit(1)
        Worker(jobs.app).run(until_idle=True)  # whatever the store opens once stays open
        family = {each.pid for each in psutil.Process().children(recursive=True)}
        threads, files = threading.active_count(), descriptors()
        chosen = random.Random(7).choices(HOWS, k=number)
        handles = jobs.mixed.submit_many([{"how": how, "folder": str(folder)} for how in chosen])
        assert chosen.count("poison") >= number / 100
        Worker(jobs.app, concurrency=8, prefetch=8).run(until_idle=True)

        found = jobs.app.queue.get_jobs([handle.id for handle in handles])
        for how, handle in zip(chosen, handles, strict=True):
            job = found[handle.id]
            assert job.status is ENDS.get(how, JobStatus.COMPLETED), (how, job.error_message)
            done = folder / job.id
            times = done.read_text().count("done") if done.exists() else 0
            assert times == (0 if how in ENDS else 1), how
        stats = jobs.app.queue.get_job_stats()
        assert stats.total_jobs == stats.completed_jobs + stats.stopped_jobs == 1 + number + chosen.count("spawns")
        assert check_store(jobs.app.queue.backend) == []

        until(lambda: {each.pid for each in psutil.Process().children(recursive=True)} <= family)
        until(lambda: threading.active_count() <= threads)
        assert descriptors() - files == Counter()
    finally:
        jobs.app.close()


@pytest.mark.requirement("G27")
def test_a_thousand_jobs_on_sqlite(tmp_path):
    (tmp_path / "done").mkdir()
    work(f"sqlite:///{tmp_path}/jobs.db", 1000, tmp_path / "done")


@pytest.mark.postgres
def test_two_hundred_jobs_on_postgres(tmp_path, postgres_database):
    (tmp_path / "done").mkdir()
    work(postgres_database, 200, tmp_path / "done")
