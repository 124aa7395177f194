"""The pieces of code on the pages, and how they are run.

The blocks of a page run in order, in one namespace, in an empty folder. What a line before a block says about it:

    <!-- not run: why -->      it is left out
    <!-- run: postgres -->     `PENSTOCK_URL` leads to an empty database on a real server, and so does every postgresql://
                               url in it, as the user that it names if the page has made that role. SQL runs like this only.

A block that begins with a comment of a file's name is that file: it is written down, must compile, and can be imported by
the blocks that follow.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock import App, Backend, Queue

__all__ = ["PAGES", "ROOT", "WITH_SPARK", "Block", "PageRun", "blocks_of", "file_name"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Run where the session is, by tests/spark/test_guide.py.
WITH_SPARK = ROOT / "docs" / "guides" / "spark.md"

_BLOCK = re.compile(
    r"^(?:<!-- (?P<how>not run|run): (?P<what>[^\n]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>python|sql)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_POSTGRES_URL = re.compile(r'"(postgresql://[^"]*)"')


class Block(NamedTuple):
    """A piece of code on a page, and the line it begins on."""

    line: int
    code: str
    runs: bool = True
    needs: str = ""
    language: str = "python"


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        code = "\n".join(line.removeprefix(indent) for line in match["code"].splitlines())
        line = text.count("\n", 0, match.start("code")) + 1
        needs = match["what"] if match["how"] == "run" else ""
        runs = match["how"] != "not run" and (match["language"] == "python" or bool(needs))
        found.append(Block(line, code, runs, needs, match["language"]))
    return found


def file_name(block: Block) -> str | None:
    """Return the name of the file that a block is, if it is one."""
    found = re.match(r"# (\w+\.py)\n", block.code)
    return found and found[1]


class PageRun:
    """One page, read from top to bottom."""

    def __init__(
        self, page: Path, folder: Path, database: Callable[[], str], patch: pytest.MonkeyPatch
    ) -> None:
        self._page = page
        self._folder = folder
        self._database = database
        self._patch = patch
        self._roles: list[str] = []
        self._modules: list[str] = []
        self.namespace: dict[str, Any] = {"__name__": "documentation"}

    def run(self) -> None:
        try:
            for block in blocks_of(self._page.read_text("utf-8")):
                self._run(block)
        finally:
            for value in self.namespace.values():
                if isinstance(value, App | Backend | Queue):
                    value.close()
            for name in self._modules:
                sys.modules.pop(name, None)
            for role in self._roles:
                self._query(f"DROP OWNED BY {role}; DROP ROLE {role}")

    def _run(self, block: Block) -> None:
        name = file_name(block)
        if name is not None:
            compile(block.code, name, "exec", dont_inherit=True)
            (self._folder / name).write_text(block.code, "utf-8")
            self._modules.append(name.removesuffix(".py"))
        elif not block.runs:
            return
        elif block.language == "sql":
            self._query(block.code)
            for role in re.findall(r"CREATE ROLE (\w+)", block.code):
                self._roles.append(role)
                self._query(f"ALTER ROLE {role} PASSWORD '{role}'")  # for servers that trust no connection
        elif block.needs == "postgres":
            with self._patch.context() as patch:
                patch.setenv("PENSTOCK_URL", self._database())
                self._execute(block, _POSTGRES_URL.sub(self._real_url, block.code))
        else:
            self._execute(block, block.code)

    def _execute(self, block: Block, code: str) -> None:
        # Empty lines put the code where it stands on the page, so that a traceback points there.
        source = "\n" * (block.line - 1) + code
        exec(compile(source, str(self._page), "exec", dont_inherit=True), self.namespace)

    def _real_url(self, shown: re.Match[str]) -> str:
        role = urlsplit(shown[1]).username
        real = urlsplit(self._database())
        if role in self._roles:
            real = real._replace(netloc=f"{role}:{role}@{real.netloc.rpartition('@')[2]}")
        return repr(real.geturl())

    def _query(self, code: str) -> None:
        with psycopg.connect(self._database(), autocommit=True) as connection:
            connection.execute(code.encode())
