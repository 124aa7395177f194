"""The pages use the field's words: they name the worker, the process or the reader, and say "per job"."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"),
    *(ROOT / "docs" / "reference" / name for name in ("glossary.md", "requirements.md")),
    *sorted(file for file in (ROOT / "examples").rglob("*") if file.suffix in {".md", ".py"}),
]
#: Words that hide who acts. Say: the worker, the submitter, no other process, everyone who can read the store.
_HIDING = re.compile(r"\b(whoever|nobody|somebody|anybody|everybody)\b", re.IGNORECASE)
#: Rates: "27 jobs per second", "one process per job", "twice per second".
_UNIT = (
    "second|minute|job|call|batch|worker|task|slot|request|method|transaction|tick|row|wave|process|command"
)
_RATE = re.compile(
    rf"\b(\d[\d.,]* (?!of\b)\w+|(once|twice)(?= a second)|times|one (atomic )?(?!of\b|becomes\b)\w+|processes|jobs|commits)"
    rf" an? ({_UNIT})\b(?! (time|of))"
)
#: Words for which the glossary has another one: eligible, notification.
_OLD = re.compile(r"\b(takeable|nudges?|nudged|herald)\b", re.IGNORECASE)


def lines_with(pattern: re.Pattern[str], page: Path) -> list[str]:
    text = page.read_text("utf-8")
    return [f"{number}: {line}" for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_name_who_acts_and_use_the_words_of_the_glossary(page):
    assert [line for pattern in (_HIDING, _RATE, _OLD) for line in lines_with(pattern, page)] == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (_HIDING, "Whoever reads it must not miss a row."),
        (_RATE, "It forks 29 processes a second."),
        (_RATE, "That is one process a worker."),
        (_RATE, "Tasks check it twice a second."),
        (_OLD, "A job became takeable."),
    ],
)
def test_such_a_sentence_is_found(pattern, line):
    assert pattern.search(line)
