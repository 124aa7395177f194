"""Install the project, editable, and the pinned packages that some of its extras and groups need.

    .venv/bin/python -m tools.install --extra all --group test

Only files whose hashes stand in constraints.txt are installed. One line shows what pip downloads and for how long it has
worked. If pip fails, the end of its output is shown.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from tools import pins

QUIET_SECONDS: Final = 15.0
LAST_LINES: Final = 25
_DOWNLOAD: Final = re.compile(r"\s*Downloading (?P<file>\S+?)(?:\.metadata)? (?P<size>\(.+\))$")
_CACHED: Final = re.compile(r"\s*Using cached (?P<file>\S+) ")
_ANOTHER_HASH: Final = re.compile(
    r"\s*Expected\s+or "
)  # pip lists dozens per package and hides the reason above
_LARGE: Final = re.compile(r"\((\d{2,}(\.\d+)? MB|.*GB)\)")


class Progress:
    """The current step of pip: one line that is written over in a terminal, a few lines elsewhere."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._began = self._told_at = time.monotonic()
        self._what = "looking for packages"

    def note(self, line: str) -> None:
        """Read one line of pip's output."""
        before = self._what
        if found := _DOWNLOAD.match(line):
            self._what = f"downloading {_package(found['file'])} {found['size']}"
        elif found := _CACHED.match(line):
            self._what = f"found {_package(found['file'])}"
        elif "build dependencies" in line or "Building " in line:
            self._what = "building"
        elif line.startswith("Installing collected packages: "):
            self._what = f"unpacking {line.count(',') + 1} packages"
        if self._what != before and (_LARGE.search(self._what) or self._what.startswith("unpacking")):
            self._tell()

    def tick(self) -> None:
        """Show that time passes."""
        if self._is_terminal:
            self._show("\r", "")
        elif time.monotonic() - self._told_at > QUIET_SECONDS:
            self._tell()

    def end(self) -> None:
        if self._is_terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        if not self._is_terminal:
            self._show("", "\n")

    def _show(self, before: str, after: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        text = f"  {minutes}:{seconds:02}  {self._what}"[:79]
        self._out.write(f"{before}{text}\x1b[K{after}" if self._is_terminal else f"{text}{after}")
        self._out.flush()


def _package(file: str) -> str:
    """Return name and version from the name of a wheel or archive."""
    return " ".join(file.removesuffix(".tar.gz").split("-")[:2])


def install_pinned(wanted: Sequence[pins.Pin], out: IO[str]) -> int:
    """Install these pins and nothing else; return pip's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("\n".join(_requirement(pin) for pin in wanted) + "\n", encoding="utf-8")
        return run_pip(["--require-hashes", "--no-deps", "-r", str(file)], out)


def _requirement(pin: pins.Pin) -> str:
    return "\n".join(pin.lines).rstrip(" \\")


def run_pip(arguments: Sequence[str], out: IO[str], *, python: str = sys.executable) -> int:
    """Run `pip install` in the environment of an interpreter, this one's by default; return its exit code."""
    command = [python, "-m", "pip", "install", "--progress-bar", "off", *arguments]
    progress, last_lines = Progress(out), deque[str](maxlen=LAST_LINES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        done = threading.Event()
        ticker = threading.Thread(target=_tick, args=(progress, done), daemon=True)
        ticker.start()
        try:
            for line in pip.stdout or ():
                if not _ANOTHER_HASH.match(line):
                    last_lines.append(line)
                progress.note(line)
        finally:
            done.set()
            ticker.join()
    progress.end()
    if pip.returncode:
        sys.stderr.writelines(last_lines)
    return pip.returncode


def _tick(progress: Progress, done: threading.Event) -> None:
    while not done.wait(0.5):
        progress.tick()


def main(arguments: Sequence[str] | None = None) -> int:
    """Install what the command line names; return the exit code of the first step that failed."""
    parser = argparse.ArgumentParser(description="Install the project and the pinned packages that it needs.")
    parser.add_argument("--extra", action="append", default=[], help="an extra of pyproject.toml")
    parser.add_argument("--group", action="append", default=[], help="a dependency group of pyproject.toml")
    options = parser.parse_args(arguments)
    try:
        names = pins.direct(pins.read_project(), options.extra, options.group)
        wanted = pins.needed(names, pins.read_constraints())
    except LookupError as error:
        parser.error(str(error))
    return install_pinned(wanted, sys.stdout) or run_pip(["--no-deps", "-e", str(pins.ROOT)], sys.stdout)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
