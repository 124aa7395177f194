"""Install into the environment of the running Python, and say what is going on while pip is at it.

    .venv/bin/python tools/install.py -e '.[dev]' -c constraints.txt

pip either tells everything or nothing. This tells one line: what is being downloaded and for how long it has worked. If
pip fails, its last words are shown.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import IO, Final

QUIET_SECONDS: Final = 15.0
LAST_WORDS: Final = 25
_DOWNLOAD: Final = re.compile(r"\s*Downloading (?P<file>\S+?)(?:\.metadata)? (?P<size>\(.+\))$")
_CACHED: Final = re.compile(r"\s*Using cached (?P<file>\S+) ")
_LARGE: Final = re.compile(r"\((\d{2,}(\.\d+)? MB|.*GB)\)")


class Progress:
    """What pip does now, as one line that is written over in a terminal, and as a few lines elsewhere."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._began = self._told_at = time.monotonic()
        self._what = "looking for packages"

    def note(self, line: str) -> None:
        """Take a line of pip's."""
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


def install(arguments: Sequence[str], out: IO[str]) -> int:
    """Run `pip install` and return its exit code."""
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *arguments]
    progress, last_words = Progress(out), deque[str](maxlen=LAST_WORDS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        done = threading.Event()
        ticker = threading.Thread(target=_tick, args=(progress, done), daemon=True)
        ticker.start()
        try:
            for line in pip.stdout or ():
                last_words.append(line)
                progress.note(line)
        finally:
            done.set()
            ticker.join()
    progress.end()
    if pip.returncode:
        sys.stderr.writelines(last_words)
    return pip.returncode


def _tick(progress: Progress, done: threading.Event) -> None:
    while not done.wait(0.5):
        progress.tick()


if __name__ == "__main__":
    try:
        sys.exit(install(sys.argv[1:], sys.stdout))
    except KeyboardInterrupt:
        sys.exit(130)
