"""llms.txt lists the pages of the site, and is fresh."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("llms_txt", ROOT / "tools" / "llms_txt.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_up_to_date(tool):
    assert tool.main(["--check"]) == 0, "run python tools/llms_txt.py"


def test_check_fails_and_writes_nothing_when_it_is_stale(tool, tmp_path, monkeypatch, capsys):
    file = tmp_path / "llms.txt"
    file.write_text("old\n")
    monkeypatch.setattr(tool, "FILE", file)
    assert tool.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert file.read_text() == "old\n"
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0


def test_it_has_the_shape_of_the_convention_and_every_page_of_the_navigation(tool):
    text = (ROOT / "docs" / "llms.txt").read_text("utf-8")
    assert re.match(r"# Penstock\n\n> .+\n\n## ", text)
    links = re.findall(r"^- \[.+\]\((https://[^)]+/)\): .{10,}\.$", text, re.MULTILINE)
    assert len(links) == len(set(links)) == len(re.findall(r"^- ", text, re.MULTILINE))
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert len(links) == len(listed) > 50


def test_a_page_is_described_by_its_first_sentence(tool, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "---\nhide: toc\n---\n\n# Page\n\n```sh\nA command.\n```\n\nSee **[this](that.md)**, `too`.\nMore.\n"
    )
    assert tool.first_sentence(page) == "See this, too."
