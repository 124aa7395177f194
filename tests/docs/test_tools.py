"""The tools of the Makefile that a newcomer meets."""

import io
import os
import subprocess
import venv
from pathlib import Path

import pytest
from tools import install

ROOT = Path(__file__).resolve().parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PIP = [
    "Collecting pyspark==4.3.0\n",
    "  Downloading pyspark-4.3.0.tar.gz (436.0 MB)\n",
    "  Downloading rich-15.0.0-py3-none-any.whl (300 kB)\n",
    "Installing collected packages: py4j, pyspark, rich\n",
]


def test_only_large_downloads_are_told_where_nobody_watches():
    out = io.StringIO()
    progress = install.Progress(out)
    for line in PIP:
        progress.note(line)
    assert out.getvalue() == "  0:00  downloading pyspark 4.3.0 (436.0 MB)\n  0:00  unpacking 3 packages\n"


def test_one_line_is_written_over_in_a_terminal():
    out = Terminal()
    progress = install.Progress(out)
    for line in PIP[:2]:
        progress.note(line)
        progress.tick()
    progress.end()
    assert out.getvalue().count("\n") == 0
    assert "\r  0:00  downloading pyspark 4.3.0 (436.0 MB)" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


@pytest.mark.slow
def test_a_failed_installation_shows_why(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    done = subprocess.run(
        [
            tmp_path / "venv" / "bin" / "python",
            ROOT / "tools" / "install.py",
            "--no-index",
            "no-such-package",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
    )
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package" in done.stderr
