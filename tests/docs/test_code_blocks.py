"""Whatever Python the documentation shows is run, page by page, as a reader would type it: see `blocks`."""

import re
from typing import Any

import pytest
from tests.docs.blocks import PAGES, ROOT, WITH_SPARK, Block, PageRun, blocks_of


def with_code() -> list[Any]:
    """The pages that have something to run, as parameters of a test."""
    found = []
    for page in PAGES:
        running = [block for block in blocks_of(page.read_text("utf-8")) if block.runs]
        if running and page != WITH_SPARK:
            marks = [pytest.mark.postgres] if any(block.needs == "postgres" for block in running) else []
            found.append(pytest.param(page, marks=marks, id=page.relative_to(ROOT).as_posix()))
    return found


WITH_PYTHON = with_code()


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_every_block_of_the_page_runs(page, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_WEBHOOK_SECRET", "")  # a page sets it
    # A page shows a conftest.py; in this run the module that it registers may have been imported long ago.
    monkeypatch.setattr(pytest, "register_assert_rewrite", lambda *names: None)
    PageRun(page, tmp_path, lambda: request.getfixturevalue("postgres_database"), monkeypatch).run()


def test_the_pages_that_teach_have_code():
    names = {page.id for page in WITH_PYTHON}
    tasks = ["retries", "timeouts", "priorities", "keys", "flows", "periodic", "progress", "webhooks"]
    tasks += [
        "monitoring",
        "apps",
        "workers",
        "postgres",
        "stores",
        "store",
        "queue",
        "streams",
        "testing",
        "writing-handlers",
    ]
    assert names >= {f"docs/guides/{task}.md" for task in tasks}
    assert names >= {
        "README.md",
        "docs/quickstart.md",
        "docs/concepts/job-life.md",
        "docs/concepts/journal.md",
        "docs/reference/errors.md",
        "docs/reference/events.md",
    }


def test_a_block_is_left_out_only_with_a_reason():
    text = "```python\na = 1\n```\n\n<!-- not run: why -->\n```python\nb = 2\n```\n\n- x\n\n    ```python\n    c = 3\n    ```\n"
    assert blocks_of(text) == [Block(2, "a = 1"), Block(7, "b = 2", runs=False), Block(13, "c = 3")]


def test_a_block_may_ask_for_a_server():
    text = "<!-- run: postgres -->\n```python\na = 1\n```\n\n<!-- run: postgres -->\n```sql\nSELECT 1\n```\n"
    assert blocks_of(text) == [
        Block(3, "a = 1", needs="postgres"),
        Block(8, "SELECT 1", needs="postgres", language="sql"),
    ]
    every = [block for page in PAGES for block in blocks_of(page.read_text("utf-8"))]
    assert {block.needs for block in every} <= {"", "postgres"}, "nothing else can be asked for"


def test_every_fence_of_python_is_seen():
    for page in PAGES:
        text = page.read_text("utf-8")
        seen = [block for block in blocks_of(text) if block.language == "python"]
        assert len(seen) == len(re.findall(r"^ *```python", text, re.MULTILINE)), page


def test_a_wrong_block_is_found(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        PageRun(page, tmp_path, str, monkeypatch).run()
    assert caught.traceback[-1].lineno + 1 == 4
