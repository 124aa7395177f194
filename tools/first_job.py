"""Time the way of a newcomer: an empty folder, an empty cache, the ten lines of the README, one finished job.

    make first-job            or: python3 tools/first_job.py [--json]

Nothing of this checkout's environment is used, nor pip's cache: Penstock and what it needs are downloaded anew. The first
number depends on the network more than on Penstock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE: Final = 900
_FILE: Final = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS: Final = re.compile(
    r"^```sh\n(?P<worker>penstock worker \S+) &\npython (?P<program>\w+\.py)\n```$", re.MULTILINE
)


def measure(folder: Path) -> dict[str, float]:
    """Return the seconds of each step."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = _COMMANDS.search(page)
    if commands is None:
        raise SystemExit("README.md shows no worker and program to run")
    for file in _FILE.finditer(page):
        (folder / file["name"]).write_text(file["code"], encoding="utf-8")
    took: dict[str, float] = {}
    began = time.perf_counter()
    _run([sys.executable, "-m", "venv", "venv"], folder)
    took["environment"] = time.perf_counter() - began
    began = time.perf_counter()
    _run(["venv/bin/pip", "install", "--quiet", "--no-cache-dir", str(ROOT)], folder)
    took["installation"] = time.perf_counter() - began
    took["first job"] = _first_job(folder, commands["worker"].split(), commands["program"])
    return took


def _first_job(folder: Path, worker: Sequence[str], program: str) -> float:
    """Start the worker and the program together, as the README does; return the seconds until the result is there."""
    environment = _environment(folder)
    began = time.perf_counter()
    with subprocess.Popen(worker, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            _run(["python", program], folder)
            return time.perf_counter() - began
        finally:
            process.terminate()


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))}
    return {**kept, "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{kept.get('PATH', '')}"}


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**_environment(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/first_job.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the seconds of each step, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-first-job-") as folder:
        took = measure(Path(folder))
    if arguments.json:
        print(json.dumps({name: round(seconds, 2) for name, seconds in took.items()}))
        return
    for name, seconds in took.items():
        print(f"{seconds:7.1f} s  {name}")
    print(f"{sum(took.values()):7.1f} s  from an empty folder and cache to the first finished job")
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} at the end")


if __name__ == "__main__":
    main()
