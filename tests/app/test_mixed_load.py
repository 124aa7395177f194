"""Jobs of every kind at once, a hundredth of them poison: nothing is lost, done twice, or left over."""

import contextlib
import random
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
from tests.app import jobs
from tests.waiting import until

from penstock import JobStatus, Worker
from penstock.testing import check_store

pytestmark = [pytest.mark.process, pytest.mark.deep]

ENDS = {"poison": JobStatus.DEAD_LETTER, "wrong": JobStatus.FAILED}
HOWS = ["plain"] * 60 + ["shaky", "leaks", "orphans", "loud", "spawns", "reports"] * 6
HOWS += ["crashes once", "wrong", "poison", "poison"]


def left_over() -> tuple[set[int], set[threading.Thread], Counter]:
    """The processes below this one, its threads, and what it has open."""
    files: Counter = Counter()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists the others
            files[str(each.readlink()).partition(":")[0]] += 1
    family = {each.pid for each in psutil.Process().children(recursive=True)}
    return family, set(threading.enumerate()), files


def work(url: str, number: int, folder: Path) -> None:
    jobs.app.url = url
    try:
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
        assert stats.total_jobs == number + chosen.count("spawns")
        assert stats.total_jobs == stats.completed_jobs + stats.stopped_jobs
        assert check_store(jobs.app.queue.backend) == []
    finally:
        jobs.app.close()


def work_and_look(url: str, number: int, folder: Path) -> None:
    folder.mkdir()
    family, threads, files = left_over()
    work(url, number, folder)
    until(lambda: left_over()[0] <= family, "the end of all processes")
    until(lambda: left_over()[1] <= threads, "the end of all threads")
    assert left_over()[2] - files == Counter()


@pytest.mark.requirement("G27")
def test_a_thousand_jobs_on_sqlite(tmp_path):
    work_and_look(f"sqlite:///{tmp_path}/jobs.db", 1000, tmp_path / "done")


@pytest.mark.postgres
def test_two_hundred_jobs_on_postgres(tmp_path, postgres_database):
    work_and_look(postgres_database, 200, tmp_path / "done")
