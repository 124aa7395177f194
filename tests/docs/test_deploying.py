"""What the guide about deploying shows can be deployed."""

import inspect
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path

import psycopg
import pytest
import yaml
from tests.docs.test_commands import check
from tests.waiting import until

import penstock
from penstock.backends.postgres import backend as postgres_backend

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "deploying.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return found


def grace_of(words: list[str]) -> float:
    """The seconds that a worker started like this needs at most to stop."""
    given = dict(itertools.pairwise(words))
    defaults = inspect.signature(penstock.Worker).parameters
    return float(given.get("--grace", defaults["grace"].default)) + defaults["stop_grace"].default


@pytest.fixture
def unit():
    parser = ConfigParser(interpolation=None, delimiters=["="])
    parser.optionxform = str
    parser.read_string(block("ini"))
    return parser


def test_the_unit_starts_a_worker_and_leaves_it_time_to_drain(unit):
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "penstock"
    check(("penstock", *words))
    assert float(unit["Service"]["TimeoutStopSec"]) > grace_of(words)
    assert unit["Service"]["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path):
    file = tmp_path / "shop-worker.service"
    text = block("ini").replace("/srv/shop/.venv/bin/penstock", "/bin/true").replace("User=shop", "User=root")

    def verify(content: str) -> str:
        file.write_text(content)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return "".join(line for line in done.stderr.splitlines() if "shop-worker" in line)

    assert verify(text) == ""
    assert "kill mode" in verify(text.replace("KillMode=mixed", "KillMode=gently"))


def test_the_manifest_leaves_the_worker_time_to_drain():
    pod = yaml.safe_load(block("yaml"))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check(("penstock", "worker", "shop.jobs:app", *container["args"]))
    assert pod["terminationGracePeriodSeconds"] > grace_of(container["args"])


def test_the_image_starts_a_worker_without_a_shell():
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", block("dockerfile"), re.MULTILINE)
    check(tuple(tomllib.loads(f"words = {entry}")["words"]))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"penstock\[(\w+)\]", block("dockerfile"))) <= extras.keys()


def test_the_sum_of_connections_is_right():
    pool = postgres_backend._OWN_OPTIONS["pool_size"]
    assert f"`pool_size` connections ({pool})" in GUIDE
    sums = re.findall(r"(\d+) machines \S [^|]*?(\d+)[^|]*? \S (\d+) = (\d+)", GUIDE)
    assert [(int(each), int(total)) for *_, each, total in sums] == [
        (pool + 1, 3 * 2 * (pool + 1)),
        (pool, 2 * 8 * pool),
    ]
    assert f"here {sum(int(total) for *_, total in sums) + pool}" in GUIDE


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.postgres
def test_workers_have_no_more_connections_than_the_guide_says(postgres_database, tmp_path):
    (tmp_path / "jobs.py").write_text(
        "import time\nimport penstock\napp = penstock.App()\n\n"
        "@app.job\ndef nap(seconds: float) -> None:\n    time.sleep(seconds)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PENSTOCK_URL": postgres_database}
    with penstock.connect(postgres_database) as queue:
        queue.submit_many({"type": "nap", "payload": {"seconds": 0.05}} for _ in range(200))
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with (
        psycopg.connect(postgres_database, autocommit=True) as looking,
        subprocess.Popen(
            [sys.executable, "-m", "penstock", "worker", "jobs:app", "-p", "2", "-c", "8"],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.DEVNULL,
        ) as workers,
    ):
        seen = []

        def is_drained() -> bool:
            seen.append(looking.execute(count).fetchone()[0])
            done = "SELECT count(*) FROM penstock.job WHERE status = 'completed'"
            return looking.execute(done).fetchone()[0] == 200

        try:
            until(is_drained)
        finally:
            workers.send_signal(signal.SIGTERM)
            workers.wait(60)
    assert 2 <= max(seen) <= 2 * 5
