"""Take the pictures of the README: the demo, `penstock top` and the report, as they really look.

    python tools/pictures.py               all of them, into docs/assets
    python tools/pictures.py top report    some of them

The demo is run once, in a terminal of its own, and what is on its screen becomes a picture. The report is opened in
Chromium. Needs, beside what `make demo` needs: pip install pyte, and chromium on the path (or --browser).
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import importlib
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
ASSETS: Final = ROOT / "docs" / "assets"
COLUMNS: Final = 100
MOST_SECONDS: Final = 600
#: Reads well on white and on black pages.
THEME: Final = TerminalTheme(
    (23, 32, 42),
    (214, 222, 230),
    [
        (23, 32, 42),
        (235, 111, 111),
        (121, 200, 130),
        (232, 192, 100),
        (110, 168, 240),
        (196, 142, 220),
        (100, 200, 200),
        (214, 222, 230),
    ],
    [
        (110, 125, 140),
        (245, 130, 130),
        (140, 220, 150),
        (245, 210, 120),
        (130, 185, 250),
        (210, 160, 235),
        (120, 215, 215),
        (240, 245, 250),
    ],
)


class Terminal:
    """A program in a terminal of its own, and what is on its screen."""

    def __init__(self, command: Sequence[str | Path], *, rows: int) -> None:
        pyte = importlib.import_module("pyte")
        self.screen: Any = pyte.Screen(COLUMNS, rows)
        self._stream: Any = pyte.Stream(self.screen)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            environment = {
                **os.environ,
                "TERM": "xterm-256color",
                "COLUMNS": str(COLUMNS),
                "LINES": str(rows),
            }
            environment.pop("NO_COLOR", None)
            os.chdir(ROOT)
            os.execve(str(command[0]), [str(each) for each in command], environment)
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))

    def show_until(self, is_shown: Callable[[str], bool]) -> None:
        """Let the program run until its screen is as wanted, or until it has ended."""
        until = time.monotonic() + MOST_SECONDS
        while not is_shown("\n".join(self.screen.display)):
            if time.monotonic() > until:
                raise TimeoutError("the picture that was waited for did not come")
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self._stream.feed(self._decode(os.read(self._end, 65_536)))
                except OSError:  # how Linux says that a terminal's program has ended
                    return

    def close(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.close(self._end)
        os.waitpid(self.pid, 0)

    def lines(self) -> list[Text]:
        return [self._line(row) for row in range(self.screen.lines)]

    def _line(self, row: int) -> Text:
        text = Text()
        for column in range(COLUMNS):
            cell = self.screen.buffer[row][column]
            styles = [name for name in ("bold", "italics", "underscore", "reverse") if getattr(cell, name)]
            words = {"italics": "italic", "underscore": "underline"}
            style = " ".join(words.get(name, name) for name in styles)
            text.append(cell.data, f"{style} {_colour(cell.fg)}".strip() or None)
        text.rstrip()
        return text


def _colour(name: str) -> str:
    """A colour as rich names it; pyte says `brown` for yellow, and hexadecimal numbers for most others."""
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    known = {"default": "", "brown": "yellow", "brightbrown": "bright_yellow"}
    return known.get(name, re.sub("^bright", "bright_", name))


def save_svg(lines: Sequence[Text], title: str, file: Path) -> None:
    """Draw lines of a terminal; no fonts from elsewhere."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for line in lines:
            console.print(line, no_wrap=True, overflow="crop")
        drawn = console.export_svg(title=title, theme=THEME)
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace(
        "Fira Code, monospace", "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
    )
    file.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n", encoding="utf-8")


def take_demo(folder: Path) -> None:
    """The demo up to the life of one job. Leaves a report in the folder."""
    terminal = Terminal([sys.executable, "-m", "examples.demo", "--out", folder], rows=140)
    terminal.show_until(lambda text: "That took" in text)
    lines = terminal.lines()
    heads = [number for number, line in enumerate(lines) if re.match(r"[1-4]  \w", line.plain)]
    last = next(number for number, line in enumerate(lines) if line.plain.startswith("The job that hung"))
    save_svg(lines[heads[0] : last - 1], "make demo", ASSETS / "demo.svg")


def take_top(folder: Path) -> None:
    """`penstock top` while the demo's workers are busy."""
    demo = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "examples.demo",
            "--out",
            folder,
            "--no-spark",
            "--jobs",
            "4000",
            "--pace",
            "4",
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while not (folder / "worker-2.log").exists() and time.monotonic() < until:
            time.sleep(0.1)
        url = f"sqlite:///{folder / 'jobs.db'}"
        top = Terminal([sys.executable, "-m", "penstock", "top", "--interval", "1", "--url", url], rows=36)
        begun = time.monotonic()
        # Two workers, jobs that complete, and a failure; else what there is after a while.
        top.show_until(
            lambda text: (
                (re.search(r"done [1-9]", text) is not None and text.count("alive") > 1 and "ERROR" in text)
                or time.monotonic() > begun + 60
            )
        )
        lines = top.lines()
        top.close()
    finally:
        os.killpg(demo.pid, signal.SIGTERM)
        demo.wait(60)
    while lines and not lines[-1].plain.strip():
        lines.pop()
    save_svg(lines, "penstock top", ASSETS / "top.svg")


def take_report(folder: Path, browser: str) -> None:
    """The top of the report, in a browser's window."""
    page = (folder / "report.html").resolve()
    subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",  # it opens our own page, often as root in a container
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--window-size=1200,1000",
            "--virtual-time-budget=15000",
            f"--user-data-dir={folder / 'browser'}",
            f"--screenshot={ASSETS / 'report.png'}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=180,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take the pictures of the README.")
    parser.add_argument(
        "pictures", nargs="*", metavar="PICTURE", help="demo, top, report; all of them if none is named"
    )
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium")
    options = parser.parse_args(arguments)
    wanted = options.pictures or ["demo", "top", "report"]
    if not set(wanted) <= {"demo", "top", "report"}:
        parser.error(f"there is no picture {', '.join(set(wanted) - {'demo', 'top', 'report'})}")
    folder = Path(tempfile.gettempdir(), "shop")  # its name is in the pictures
    folder.mkdir(mode=0o700)
    try:
        if {"demo", "report"} & set(wanted):
            take_demo(folder / "demo")
        if "report" in wanted:
            take_report(folder / "demo", options.browser)
        if "top" in wanted:
            take_top(folder / "top")
    finally:
        shutil.rmtree(folder)
    for name in ("demo.svg", "top.svg", "report.png"):
        print(f"{ASSETS / name}: {(ASSETS / name).stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
