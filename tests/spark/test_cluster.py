"""The fleet on a real cluster of two workers, each with an executor; its driver is a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark import fleet_jobs
from tests.spark.cluster import running_cluster
from tests.waiting import until

from penstock.testing import check_store

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.deep,
    # Four Java processes are started; that takes minutes where others work too.
    pytest.mark.timeout(1200),
]

# Reads orders, one a line, and answers each with a line of JSON; so that all tests share one session.
DRIVER = """
import json, sys
import penstock
from penstock import spark as ps
from tests.spark import fleet_jobs
from tests.spark.support import QUICK_JAVA

master, folder = sys.argv[1:]
spark = ps.session(master, **{
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m",
    "spark.executor.memory": "512m", "spark.ui.enabled": False, "spark.network.timeout": "60s",
    "spark.executor.heartbeatInterval": "5s", "spark.local.dir": folder,
    "spark.driver.extraJavaOptions": QUICK_JAVA, "spark.executor.extraJavaOptions": QUICK_JAVA,
})

own = penstock.App()

@own.job
def triple(number: int) -> int:
    return 3 * number

for line in sys.stdin:
    order = json.loads(line)
    app = own if order.pop("own") else fleet_jobs.app
    app.move_to(order.pop("url"))
    if app is own:
        triple.submit_many([{"number": number} for number in range(4)])
    report = ps.run_fleet(spark, app, **order)
    print(json.dumps([report.completed, report.failed, report.tasks]), flush=True)
    app.close()
spark.stop()
"""


class Driver:
    """The other end of DRIVER."""

    def __init__(self, process):
        self._process = process

    def order(self, url, *, own=False, **arguments):
        self._process.stdin.write(json.dumps({"url": url, "own": own, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self):
        line = self._process.stdout.readline()
        assert line, "the driver has ended"
        return json.loads(line)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster, tmp_path_factory):
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.url, str(tmp_path_factory.mktemp("driver"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    with process:
        yield Driver(process)
        process.stdin.close()
        process.wait(PATIENCE)


@pytest.fixture
def app(url):
    fleet_jobs.app.move_to(url)
    yield fleet_jobs.app
    fleet_jobs.app.close()


def completions(app):
    return [row for row in app.queue.backend.read_journal(limit=1000) if row.verb == "complete"]


def test_jobs_run_on_both_executors_and_the_lost_ones_elsewhere(cluster, driver, app, tmp_path):
    """One executor is killed in the middle. Its jobs come back and are completed, each job once."""
    go = tmp_path / "go"
    handles = fleet_jobs.wait_for.submit_many([{"file": str(go), "folder": str(tmp_path)}] * 8)
    fleet_jobs.double.submit_many([{"number": number} for number in range(20)])
    driver.order(app.url, tasks=2, capacity=4)
    until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 8, "eight jobs at work", seconds=PATIENCE)
    executors = cluster.executors()
    assert len(executors) == 2
    executors[0].kill()
    executors[0].wait()
    go.touch()
    assert driver.answer() == [28, 0, 2]
    assert len(completions(app)) == 28
    pids = [handle.result(0) for handle in handles]
    again = [job for job in app.queue.list_jobs(type="wait_for") if job.attempt > 1]
    assert len(again) == 4, "those that the killed executor had"
    assert len(set(pids)) == 8
    assert check_store(app.queue.backend) == []


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_an_app_of_a_script_is_sent_to_executors(driver, app):
    driver.order(app.url, own=True, tasks=2)
    assert driver.answer() == [4, 0, 2]
    assert sorted(job.result for job in app.queue.list_jobs()) == [b"0", b"3", b"6", b"9"]
