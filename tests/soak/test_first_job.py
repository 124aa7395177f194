"""From an empty cache to the first finished job."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_NETWORK = ("No matching distribution found", "Temporary failure in name resolution", "Connection")


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(900)
def test_the_way_to_the_first_job_is_measured(tmp_path):
    """Really: a new environment, and downloads. Where there is no network there is nothing to measure."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "first_job.py", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    if done.returncode and any(sign in done.stderr for sign in NO_NETWORK):
        pytest.skip(f"nothing could be downloaded: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    assert took.keys() == {"environment", "installation", "first job"}
    assert all(0 < seconds < 600 for seconds in took.values())
