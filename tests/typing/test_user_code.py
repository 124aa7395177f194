"""Code as users write it passes mypy in strict mode, and their mistakes do not (an unused ignore is an error)."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiers import some

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(sorted(file.stem for file in HERE.glob("uses_*.py")), ["uses_app"]))
def test_the_checker_accepts_it(name):
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(HERE / f"{name}.py")],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
