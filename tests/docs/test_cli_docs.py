"""Every command and every option has help, an example that can be typed, and a place in the pages made from them."""

import importlib.util
import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer

from penstock import cli
from penstock.cli._command import all_commands, settings, split_help

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
COMMANDS = {
    " ".join(path): (path, command) for path, command in all_commands(typer.main.get_command(cli.app))
}


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("cli_docs", ROOT / "tools" / "cli_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_check_fails_and_writes_nothing_when_a_page_is_stale(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "COMMANDS_PAGE", tmp_path / "cli.md")
    monkeypatch.setattr(tool, "SETTINGS_PAGE", tmp_path / "configuration.md")
    assert tool.main(["--check"]) == 1
    assert capsys.readouterr().err.count("is out of date") == 2
    assert list(tmp_path.iterdir()) == []
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help_and_is_documented(name):
    path, command = COMMANDS[name]
    text, examples = split_help(command)
    assert len(text.partition("\n")[0]) < 100
    assert examples, "the docstring needs a section Examples:"
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    section = re.search(rf"^## penstock {name}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    for parameter in command.params:
        if not parameter.hidden:
            assert parameter.help, parameter
            assert max(parameter.opts, key=len) in section[1] or parameter.param_type_name == "argument"
    known = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    for each in settings(command):
        assert f"`[{'.'.join(path)}] {each.key}`" in known
        assert all(f"`{variable}`" in known for variable in each.variables)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_understood(name):
    path, command = COMMANDS[name]
    for example in split_help(command)[1]:
        own = [part.strip() for part in example.split("|") if part.strip().startswith(f"penstock {name}")]
        assert own, example
        for part in own:
            words = shlex.split(part)
            words = list(itertools.takewhile(lambda word: word not in "<>", words))
            command.make_context(path[-1], words[1 + len(path) :])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_examples_as_they_are(name, capsys):
    assert cli.run([*COMMANDS[name][0], "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {example}\n" in shown for example in split_help(COMMANDS[name][1])[1])


def test_no_two_options_share_their_own_variable():
    own = [each.variables[0] for _, command in COMMANDS.values() for each in settings(command)]
    assert len(own) == len(set(own))


def test_every_exit_code_is_documented():
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    assert all(f"| {code} | " in page for code in cli.EXIT_CODES)
