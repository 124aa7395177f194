"""The tools of the Makefile that a newcomer meets."""

import io
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
from tools import install, pins

ROOT = Path(__file__).resolve().parents[2]
APSW = pins.read_constraints()["apsw"].version


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PIP = [
    "Collecting pyspark==4.3.0\n",
    "  Downloading pyspark-4.3.0.tar.gz (436.0 MB)\n",
    "  Downloading rich-15.0.0-py3-none-any.whl (300 kB)\n",
    "Installing collected packages: py4j, pyspark, rich\n",
]


def test_only_large_downloads_are_shown_outside_a_terminal():
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


@pytest.mark.deep
@pytest.mark.slow
def test_a_failed_installation_shows_why(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-m", "tools.install", "--extra", "postgres"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**_without_pip_settings(), "PIP_NO_INDEX": "1"},
    )
    assert done.returncode == 1
    assert "No matching distribution found for" in done.stderr


@pytest.mark.deep
@pytest.mark.slow
def test_a_file_whose_hash_is_not_pinned_is_not_installed(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    wheel = tmp_path / "wheels" / f"apsw-{APSW}-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            f"apsw-{APSW}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: apsw\nVersion: {APSW}\n"
        )
    program = "import sys; from tools import install, pins; sys.exit(install.install_pinned([pins.read_constraints()['apsw']], sys.stdout))"
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**_without_pip_settings(), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)},
    )
    assert done.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert not list((tmp_path / "venv").rglob("apsw*"))


@pytest.mark.parametrize(("option", "kind"), [("--extra", "extra"), ("--group", "dependency group")])
def test_an_extra_or_group_that_does_not_exist_is_refused_by_name(option, kind, capsys):
    with pytest.raises(SystemExit):
        install.main([option, "no-such"])
    assert f"pyproject.toml has no {kind} 'no-such'; it has" in capsys.readouterr().err


def _without_pip_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
