"""The glossary names parts of the code that exist, each word once, and the other pages lead to it."""

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| Word "))
]
NAMES = sorted({name for _, _, code in ROWS for name in re.findall(r"`(penstock[\w.]*)`", code)})


@pytest.mark.parametrize("name", NAMES)
def test_what_it_names_in_the_code_exists(name):
    if name.startswith("penstock.spark"):
        pytest.importorskip("pyspark")
    if name.startswith("penstock.isolation"):
        pytest.importorskip("resource", reason="there are no processes of jobs on Windows")
    pkgutil.resolve_name(name)


def test_a_name_that_is_gone_is_found():
    with pytest.raises((AttributeError, ImportError)):
        pkgutil.resolve_name("penstock.queue.lamp")


def test_every_word_has_one_row_one_sentence_and_a_place_in_the_code():
    words = [word for words, _, _ in ROWS for word in words.split(", ")]
    assert len(words) == len(set(words)) > 50
    assert [
        word for word, meaning, code in ROWS if not meaning.endswith(".") or "`penstock" not in code
    ] == []


@pytest.mark.parametrize(
    "page",
    [
        "CONTRIBUTING.md",
        "mkdocs.yml",
        "docs/index.md",
        *(f"docs/concepts/{name}.md" for name in ("guarantees", "job-life", "journal")),
    ],
)
def test_pages_lead_to_it(page):
    assert "reference/glossary.md" in (ROOT / page).read_text("utf-8")
