"""What was acknowledged is there, however the process ended."""

import json
import os
import subprocess
import sys

import pytest
from tests.sqlite.support import ROOT


def kill(folder, rounds, seed, threads):
    places = os.environ.get("PENSTOCK_UNDER_TEST", f"{ROOT / 'src'}")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.sqlite.killing",
            folder,
            *map(str, (rounds, seed, threads)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{places}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "rounds"),
    [
        pytest.param(1, 150, marks=pytest.mark.deep, id="alone"),
        pytest.param(4, 150, marks=pytest.mark.deep, id="in groups of four threads"),
        pytest.param(4, 30, id="a few times"),
    ],
)
def test_a_writer_killed_at_any_moment_loses_nothing_acknowledged(tmp_path, threads, rounds):
    """B18, B20, RELIABILITY F1, F2: and the journal's fold is the jobs table, and every counter is right."""
    found = kill(tmp_path, rounds, seed=threads, threads=threads)
    assert found["wrong"] == []
    assert found["stored"] > rounds
    assert found["completed"] > rounds / 10  # or there was nothing to lose
