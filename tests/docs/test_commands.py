"""The commands that the pages show exist, with the options they are shown with."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import typer.main
from tests.docs.blocks import PAGES, ROOT

from penstock.cli import app

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?:sh|bash|console)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
# typer brings its own click, whose errors it does not export; this is what BadParameter is.
UsageError = typer.BadParameter.__base__
_END = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"}


class Line(NamedTuple):
    """A command on a page, without what a shell does with it."""

    place: str
    words: tuple[str, ...]


def commands_of(text: str, place: str = "") -> list[Line]:
    """Return the commands of a page's shell blocks; several on one line are several."""
    found = []
    for block in _BLOCK.finditer(text):
        number = text.count("\n", 0, block.start("code")) + 1
        lines = block["code"].replace("\\\n", "  ").splitlines()
        for offset, line in enumerate(lines):
            words: list[str] = []
            for word in [*shlex.split(line.strip().removeprefix("$ "), comments=True), ";"]:
                if word not in _END:
                    words.append(word)
                elif words:
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                        words.pop(0)
                    found.append(Line(f"{place}:{number + offset}", tuple(words)))
                    words = []
    return found


def shown(*programs: str) -> list[Line]:
    """Return the commands of all pages that call one of these programs, by whatever path."""
    lines: list[Line] = []
    for page in PAGES:
        lines += commands_of(page.read_text("utf-8"), page.relative_to(ROOT).as_posix())
    return [line for line in lines if line.words and Path(line.words[0]).name in programs]


def check(words: tuple[str, ...]) -> None:
    """Parse a command as `penstock` would, and do nothing."""
    command: Any = typer.main.get_command(app)
    names, rest = [words[0]], list(words[1:])
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
        command = command.commands.get(names[-1])
        if command is None:
            raise UsageError(f"there is no command {' '.join(names)}")
    command.make_context(" ".join(names), rest)


@pytest.mark.parametrize("line", shown("penstock"), ids=lambda line: line.place)
def test_every_command_can_be_given(line, monkeypatch):
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    check(line.words)


@pytest.mark.parametrize(
    "words", ["penstock wrok shop:app", "penstock worker shop:app --threads 4", "penstock worker"]
)
def test_a_command_that_cannot_be_given_is_found(words):
    with pytest.raises(UsageError):
        check(tuple(words.split()))


def test_every_target_of_make_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for line in shown("make"):
        wanted = [word for word in line.words[1:] if "=" not in word and not word.startswith("-")]
        assert set(wanted) <= targets, line


def test_every_extra_that_is_installed_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for line in shown("pip"):
        for extras in re.findall(r"(?:penstock|\.)\[([\w,]+)\]", " ".join(line.words)):
            assert set(extras.split(",")) <= project["optional-dependencies"].keys(), line


def test_what_a_shell_does_is_left_out():
    text = (
        "```sh\nA=1 penstock worker x:y &\npenstock list --json | jq . # all\nmake test && make demo\n```\n"
    )
    assert [line.words for line in commands_of(text)] == [
        ("penstock", "worker", "x:y"),
        ("penstock", "list", "--json"),
        ("jq", "."),
        ("make", "test"),
        ("make", "demo"),
    ]
