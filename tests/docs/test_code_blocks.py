"""Whatever Python the documentation shows is run, page by page, as a reader would type it.

The blocks of a page run in order, in one namespace, in an empty folder. A block that cannot run here has a line
before it that says why: `<!-- not run: needs a server -->`. A block that begins with a comment of a file's name is that
file: it is written down and must compile; `test_quickstart` runs such files the way the page says.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import Backend, Queue

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Run where the session is, by tests/spark/test_guide.py.
WITH_SPARK = ROOT / "docs" / "guides" / "spark.md"

_BLOCK = re.compile(
    r"^(?P<skip><!-- not run: [^\n]+ -->\n)?^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A piece of Python on a page, and the line it begins on."""

    line: int
    code: str
    runs: bool


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        code = "\n".join(line.removeprefix(indent) for line in match["code"].splitlines())
        found.append(Block(text.count("\n", 0, match.start("code")) + 1, code, match["skip"] is None))
    return found


def file_name(block: Block) -> str | None:
    """Return the name of the file that a block is, if it is one."""
    found = re.match(r"# (\w+\.py)\n", block.code)
    return found and found[1]


WITH_PYTHON = [
    page
    for page in PAGES
    if page != WITH_SPARK and any(block.runs for block in blocks_of(page.read_text("utf-8")))
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_WEBHOOK_SECRET", "")  # a page sets it
    # A page shows a conftest.py; in this run the module that it registers may have been imported long ago.
    monkeypatch.setattr(pytest, "register_assert_rewrite", lambda *names: None)
    namespace: dict[str, Any] = {"__name__": "documentation"}
    try:
        for block in blocks_of(page.read_text("utf-8")):
            name = file_name(block)
            if name is not None:
                compile(block.code, name, "exec", dont_inherit=True)
                (tmp_path / name).write_text(block.code, "utf-8")
            elif block.runs:
                # Empty lines put the code where it stands on the page, so that a traceback points there.
                code = "\n" * (block.line - 1) + block.code
                exec(compile(code, str(page), "exec", dont_inherit=True), namespace)
    finally:
        for value in namespace.values():
            if isinstance(value, Backend | Queue):
                value.close()


def test_the_pages_that_teach_have_code():
    names = {page.relative_to(ROOT).as_posix() for page in WITH_PYTHON}
    assert names >= {
        "README.md",
        "docs/quickstart.md",
        "docs/concepts/job-life.md",
        "docs/concepts/journal.md",
        "docs/guides/apps.md",
        "docs/guides/queue.md",
        "docs/guides/stores.md",
        "docs/guides/testing-a-backend.md",
        "docs/guides/workers.md",
        "docs/guides/writing-handlers.md",
        "docs/reference/errors.md",
    }


def test_a_block_is_left_out_only_with_a_reason():
    text = "```python\na = 1\n```\n\n<!-- not run: why -->\n```python\nb = 2\n```\n\n- x\n\n    ```python\n    c = 3\n    ```\n"
    assert blocks_of(text) == [Block(2, "a = 1", True), Block(7, "b = 2", False), Block(13, "c = 3", True)]


def test_every_fence_of_python_is_seen():
    for page in PAGES:
        text = page.read_text("utf-8")
        assert len(blocks_of(text)) == len(re.findall(r"^ *```python", text, re.MULTILINE)), page
