"""The first ten minutes: the files of the README and the quickstart, run by the commands that stand beside them."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(
    r"^```sh\n(?P<worker>penstock worker \S+) &\npython (?P<program>\w+\.py)\n```$", re.MULTILINE
)


@pytest.mark.process
@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/quickstart.md"])
def test_the_first_example_prints_what_it_says(page, tmp_path):
    text = (ROOT / page).read_text("utf-8")
    files = {match["name"]: match["code"] for match in _FILE.finditer(text)}
    commands = _COMMANDS.search(text)
    assert commands is not None
    for name, code in files.items():
        assert len([line for line in code.splitlines() if line]) <= 10, "ten lines are promised"
        (tmp_path / name).write_text(code, "utf-8")
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PENSTOCK_URL", None)
    worker = subprocess.Popen(
        [sys.executable, "-m", *commands["worker"].split()],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
    )
    try:
        done = subprocess.run(
            [sys.executable, commands["program"]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        worker.terminate()
        _, errors = worker.communicate(timeout=60)
    assert (done.returncode, done.stdout) == (0, "cat.png is 200 wide\n"), done.stderr + errors.decode()
    assert worker.returncode == 0
    assert (tmp_path / "penstock.db").exists()


def test_what_is_to_be_pasted_at_a_prompt_can_be(tmp_path):
    text = (ROOT / "docs/quickstart.md").read_text("utf-8")
    part = text.partition("Paste this at a Python prompt")[2].partition("\n## ")[0]
    pasted = "\n".join(re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-i"],
        cwd=tmp_path,
        input=pasted,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ended dead_letter: the server is busy" in done.stdout
    # The worker logs why the job ended; nothing else went wrong.
    assert set(re.findall(r"^(?:>>> |\.\.\. )*(\w+Error)", done.stderr, re.MULTILINE)) <= {"TemporaryError"}


def test_the_command_is_installed_with_the_package():
    command = Path(sysconfig.get_path("scripts")) / "penstock"
    if not command.exists():
        pytest.skip("this environment was installed before there was a command line")
    shown = subprocess.run([command, "version"], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.startswith("penstock ")
