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


def test_it_is_in_the_order_in_which_people_read():
    heads = re.findall(r"^## (.+)$", README, re.MULTILINE)
    assert heads[:5] == [
        "Ten lines",
        "What it looks like",
        "Two commands",
        "What is promised",
        "What is not there",
    ]
    begin = README.partition("\n## ")[0]
    assert "It is for you if" in begin
    assert "It is not for you if" in begin


def test_it_says_how_to_install_and_that_there_is_no_release_yet():
    part = README.partition("## Ten lines")[2].partition("\n## ")[0]
    released = re.findall(
        r"^## \[?\d[\d.]*\]? - \d{4}-", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert ("There is no release yet" in part) == (not released)
    assert "pip install penstock" in part


def test_every_way_to_install_works_before_there_is_a_release():
    """The name alone is not this package; a checkout is."""
    if re.search(r"^## \[?\d", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        pytest.skip("there is a release: the name is enough")
    suffixes = {".md", ".py", ".ipynb", ".toml", ".sql"}
    found = {
        f"{path.relative_to(ROOT)}: {command}"
        for folder in ("docs", "examples", "src", "README.md", "CONTRIBUTING.md")
        for path in [ROOT / folder, *(ROOT / folder).rglob("*")]
        if path.suffix in suffixes and "node_modules" not in path.parts
        for command in re.findall(
            r"pip install [^\n`]*(?<![./\w])penstock\b(?! @)[^\n`]*", path.read_text("utf-8")
        )
    }
    assert found == {"README.md: pip install penstock"}  # "Once there is one"


STORE_PAGES = ["index.md", "quickstart.md", "guides/apps.md", "guides/stores.md", "guides/testing.md"]


@pytest.mark.parametrize("name", STORE_PAGES)
def test_pages_that_say_which_store_is_used_name_the_file_with_settings(name):
    text = (ROOT / "docs" / name).read_text("utf-8")
    assert re.search(
        r"PENSTOCK_URL\b.*?penstock\.toml.*?penstock\.db|penstock\.db.*?PENSTOCK_URL.*?penstock\.toml", text
    )


def test_the_pictures_are_small_and_say_what_they_show():
    shown = dict(re.findall(r"!\[([^\]]{40,})\]\((docs/assets/[^)]+)\)", README))
    names = {Path(name).name for name in shown.values()}
    assert names == {"flow.svg", "demo.svg", "top.svg", "report.png"}
    for name in names:
        assert (ROOT / "docs" / "assets" / name).stat().st_size < 200_000, name
    for name in ("demo.svg", "top.svg"):
        drawn = (ROOT / "docs" / "assets" / name).read_text("utf-8")
        ET.fromstring(drawn)
        assert "url(http" not in drawn, "a picture asks another machine for a font"


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


def test_contributing_draws_every_folder_and_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    source = ROOT / "src" / "penstock"
    (drawing,) = re.findall(r"^```text\n(src/penstock/.*?)^```", text, re.MULTILINE | re.DOTALL)
    drawn = set(re.findall(r"[a-z]\w+", drawing))
    parts = {path.name.partition(".")[0] for path in source.iterdir() if not path.name.startswith("_")}
    assert sorted(parts - drawn - {"py"}) == []
    named = re.findall(r"`((?:src|tests|tools|docs|examples)?[\w/]+/[\w]*\.py)`", text)
    assert len(named) > 15
    assert [
        name for name in named if not any((at / name).exists() for at in (ROOT, source, source / "backends"))
    ] == []
