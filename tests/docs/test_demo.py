"""The demo is the first thing a newcomer runs, so it is run here too, to its end."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import JobStatus

ROOT = Path(__file__).resolve().parents[2]
# The JVM of the demo should not run beside that of the tests of Spark.
pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(900)]


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.demo",
            "--jobs",
            "40",
            "--pace",
            "0.4",
            "--out",
            str(folder),
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )


def penstock_says(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_told(text: str) -> None:
    """Every kind of end, two lives, and the order of the keyed jobs."""
    for pattern in (
        r"^COMPLETED +79 ",
        r"^STOPPED +1 .* 1 endless",
        r"^UNSCHEDULED +1 .* 1 unwanted",
        r"^FAILED +1 .* 1 refused",
        r"^DEAD_LETTER +5 .* 1 orphan, 3 poison, 1 stuck",
        r"lose: running → unknown_retry",
        r'its result: "attempt 2 did parts (?!1 )\d+ to 20"',
        r"fail: running → dead_letter  \(attempt 2, the execution time of \S+ s is over\)",
        r"^  customer ada   1 2 3 4 5$",
        r"^  customer eve   1 2 3 4 5$",
    ):
        assert re.search(pattern, text, re.MULTILINE), pattern
    assert "\x1b[" not in text


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A finished run: its output, and the folder it filled."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    done = run_demo(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, folder


@pytest.mark.xdist_group("spark")
def test_the_demo_goes_from_the_first_job_to_the_report(demo):
    done, folder = demo
    assert_told(done.stdout)
    assert re.search(r"^  audit    \d+ changes checked, 0 violations$", done.stdout, re.MULTILINE)
    assert '"penstock-report"' in (folder / "report.html").read_text("utf-8")
    assert any((folder / "lake" / "attempts").rglob("*.parquet"))
    assert done.stderr == ""


@pytest.mark.xdist_group("spark")
def test_the_demo_keeps_its_store(demo):
    _, folder = demo
    with penstock.open_backend(f"sqlite:///{folder}/jobs.db") as backend:
        stats = backend.get_job_stats()
        (crash,) = backend.list_jobs(type="crash")
    assert stats.total_jobs == stats.completed_jobs + stats.stopped_jobs == 87
    assert (crash.status, crash.attempt) == (JobStatus.COMPLETED, 2)


@pytest.mark.xdist_group("spark")
def test_the_commands_that_the_demo_suggests_exist(demo):
    done, folder = demo
    looked_at, _, tries = done.stdout.rpartition("Try next")
    for path in re.findall(
        rf"^  ({re.escape(str(folder))}\S*)", looked_at.rpartition("Look at")[2], re.MULTILINE
    ):
        assert Path(path).exists()
    for page in re.findall(r"^  (docs/\S+)", looked_at.rpartition("Look at")[2], re.MULTILINE):
        assert (ROOT / page).is_file()
    commands = [line.split("   ")[0] for line in re.findall(r"^  (\S*penstock .+)$", tries, re.MULTILINE)]
    assert len(commands) == 5
    for command in commands:
        _, name, *arguments = shlex.split(command)
        if "--lake" in arguments:  # another JVM would only show what the tests of Spark show
            known = penstock_says(name, "--help").stdout
            assert all(option in known for option in arguments if option.startswith("--"))
        else:
            done = penstock_says(name, *arguments)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout
    for path in re.findall(r"^  \S*python (examples/\S+)", tries, re.MULTILINE):
        assert (ROOT / path).is_file()


@pytest.mark.deep
@pytest.mark.xdist_group("spark")
def test_the_demo_runs_again_in_its_folder(demo):
    _, folder = demo
    (folder / "left over").write_text("from the last run")
    done = run_demo(folder, "--no-spark", "--pace", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / "left over").exists()
    assert (folder / "jobs.db").exists()


def test_the_demo_leaves_a_folder_alone_that_is_not_its_own(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = run_demo(tmp_path)
    assert done.returncode == 1
    assert "holds something that no demo has written" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.deep
@pytest.mark.postgres
def test_the_demo_brings_its_own_postgresql(tmp_path):
    """The pipeline on PostgreSQL has tests of its own; a second JVM here would only cost time."""
    done = run_demo(tmp_path / "out", "--store", "postgres", "--no-spark")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_told(done.stdout)
    assert "postgresql://" in done.stdout
    assert not (tmp_path / "out" / "jobs.db").exists()
