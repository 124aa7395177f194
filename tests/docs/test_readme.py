"""What the README and its neighbours say about this repository is true."""

import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("README.md"))]


def table_of(text: str) -> dict[str, dict[str, str]]:
    """Return the comparison on a page: rows by name, cells by column."""
    (lines,) = re.findall(r"^\| \| Penstock \|.*\n\| ---.*\n(?:\|.*\n)+", text, re.MULTILINE)
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_it_says_in_three_sentences_what_this_is():
    first = README.split("\n\n")[1].splitlines()
    assert len(first) == 3
    assert all(line.endswith(".") for line in first)


def test_the_comparison_is_that_of_the_documentation():
    whole = table_of((ROOT / "docs" / "comparison.md").read_text("utf-8"))
    short = table_of(README)
    assert len(short) > 10
    for name, cells in short.items():
        assert {column: whole[name][column] for column in cells} == cells
    lacking = [name for name, cells in short.items() if cells["Penstock"].startswith("**no**")]
    assert len(lacking) >= 3, "an honest comparison says what is missing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_picture_is_drawn_for_light_and_dark_and_says_what_it_shows():
    (name,) = re.findall(r"!\[[^\]]{40,}\]\((docs/assets/flow\.svg)\)", README)
    picture = ET.parse(ROOT / name).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert picture.find(f"{space}title") is not None
    assert len(picture.find(f"{space}desc").text) > 100
    # What does not stand in a box is grey, which reads on white and on black.
    (loose,) = [group for group in picture.findall(f"{space}g") if group.get("fill") == "#71839a"]
    assert loose.findall(f"{space}text")


def test_every_make_target_that_is_named_exists():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE))
    declared = set(re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert targets == declared
    for page in [*PAGES, *(ROOT / "docs").rglob("*.md")]:
        named = re.findall(r"(?:^|`)make ([a-z][a-z-]+)", page.read_text("utf-8"), re.MULTILINE)
        assert [name for name in named if name not in targets] == [], page
