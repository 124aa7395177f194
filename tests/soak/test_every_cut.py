"""Every verb with the connection cut at each of its messages, in either direction."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.postgres
@pytest.mark.timeout(7200)
def test_every_verb_survives_a_cut_at_each_message():
    """F5: the quick tests cut at a few messages only."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--timeout=0", "tests/postgres/test_every_verb_when_cut.py"],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_TEST_EVERY_CUT": "1"},
        capture_output=True,
        text=True,
        timeout=7000,
        check=False,
    )
    assert done.returncode == 0, done.stdout
