"""Code as users write it passes mypy in strict mode, and their mistakes do not (an unused ignore is an error)."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(HERE.glob("uses_*.py")), ids=lambda file: file.stem)
def test_the_checker_accepts_it(file):
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(file)],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
