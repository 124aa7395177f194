"""The demo is the first thing a newcomer runs, so it is run here too."""

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import JobStatus

ROOT = Path(__file__).resolve().parents[2]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", "--jobs", "60", "--pace", "0.2", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A finished run: its output, and the store it left."""
    path = tmp_path_factory.mktemp("demo") / "kept.db"
    done = run_demo("--keep", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    return done, path


@pytest.mark.slow
def test_the_demo_shows_every_kind_of_end_and_proves_its_journal(demo):
    done, _ = demo
    for text in (
        "60 fast",
        "DEAD_LETTER     4  1 orphan, 3 poison",
        "STOPPED         1  1 long",
        "UNSCHEDULED     1  1 unwanted",
        "lose: running → unknown_retry",
        "stale_attempt: attempt 1 is over",
        "the same as the jobs table, and no invariant is broken",
        "jobs a second claimed and completed",
    ):
        assert text in done.stdout
    for customer in ("ada", "bob", "eve"):
        assert f"customer {customer}   1 2 3 4 5 6\n" in done.stdout
    assert "\x1b[" not in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_the_demo_keeps_its_store_where_it_is_told_to(demo):
    _, path = demo
    with penstock.open_backend(f"sqlite:///{path}") as backend:
        stats = backend.get_job_stats()
        (fragile,) = backend.list_jobs(type="fragile")
    assert stats.total_jobs == stats.completed_jobs + stats.stopped_jobs == 108
    assert (fragile.status, fragile.attempt, fragile.failures) == (JobStatus.COMPLETED, 2, 1)


@pytest.mark.slow
def test_the_demo_does_not_overwrite_a_file(demo):
    _, path = demo
    done = run_demo("--keep", str(path))
    assert done.returncode == 2
    assert "exists already" in done.stderr
