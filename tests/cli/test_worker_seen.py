"""A real worker as commands show it: by one name everywhere, and what it hands back when it is stopped."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.waiting import until

from penstock import JobStatus

#: A busy machine may need long to start a worker.
APP = """
import time
import penstock

app = penstock.App()


@app.job
def long(context: penstock.JobContext) -> None:
    context.progress(42, "counting")
    while not context.is_cancelled:
        time.sleep(0.01)
"""


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.process
def test_a_worker_has_one_name_and_what_it_hands_back_is_no_failure(penstock, shared_store):
    penstock.write("long_app.py", APP)
    where = ["--url", shared_store.address]
    with shared_store.connect() as queue:
        job = queue.submit("long", {})
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "penstock",
                "worker",
                "long_app:app",
                "--log-format",
                "json",
                "--grace",
                "0",
                *where,
            ],
            cwd=penstock.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(penstock.folder), *sys.path])},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: queue.get_job(job.id).progress == 42)
            until(lambda: any(owner.names for owner in queue.overview().owners))
            (seen,) = lines(penstock("top", "--once", "--json", *where).out)
            (printed,) = lines(penstock("show", job.id[:13], "--json", *where).out)
            (listed,) = lines(penstock("list", "--status", "running", "--json", *where).out)
            claim = lines(penstock("journal", "--job", job.id, "--json", *where).out)[-1]
            shown = penstock("top", "--once", *where).out
            assert printed["worker_pid"] == process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            _, logged = process.communicate(timeout=60)
        until(lambda: queue.get_job(job.id).status is JobStatus.FAILED_RETRY)
        (stats,) = lines(penstock("stats", "--json", *where).out)
        (after,) = lines(penstock("top", "--once", "--json", *where).out)
    (worker,) = seen["workers"]
    (running,) = seen["running_jobs"]
    names = {
        worker["name"],
        running["worker"],
        printed["assignee_id"],
        listed["assignee_id"],
        claim["assignee_id"],
        json.loads(logged.splitlines()[0])["worker"],
    }
    assert len(names) == 1
    assert (running["id"], running["progress"], running["description"]) == (job.id, 42, "counting")
    assert "42 %" in shown
    assert names.pop() in shown
    assert (stats["handed_back"], stats["retrying"], stats["failed"]) == (1, 0, 0)
    assert after["failures"] == []
