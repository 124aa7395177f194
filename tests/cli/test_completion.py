"""Shell completion, and options with another spelling."""

import json
import os
import subprocess
import sys

import pytest

import penstock as library


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def completed(line):
    """Return what bash would be offered after a line."""
    words = line.split(" ")
    done = run(_PENSTOCK_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("penstock sch", ["schedules"]),
        ("penstock pipeline r", ["run"]),
        ("penstock list --si", ["--since"]),
        ("penstock list --status de", ["dead", "dead_letter"]),
        ("penstock worker x:app --isolation th", ["thread"]),
    ],
)
def test_commands_options_and_values_are_completed(line, offered):
    assert completed(line) == offered


@pytest.mark.process
def test_a_broken_settings_file_does_not_disturb_completion(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text("[list")
    assert completed("penstock list --si") == ["--since"]


@pytest.mark.process
def test_a_shell_is_given_a_script_that_asks_this_program(tmp_path):
    shown = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0, shown.stderr
    assert "_PENSTOCK_COMPLETE=complete_bash" in shown.stdout
    script = tmp_path / "completion.sh"
    script.write_text(shown.stdout)
    ask = f"source {script}; complete -p penstock"
    printed = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    assert "_penstock_completion" in printed.stdout


# -- one spelling, and the other one ---------------------------------------------------------------------------------


@pytest.fixture
def two_types(penstock):
    with library.connect("sqlite:///jobs.db") as queue:
        queue.submit("a", tags=["x"])
        queue.submit("b")

    def listed(*options):
        done = penstock("list", "--json", "--url", "sqlite:///jobs.db", *options)
        assert done.code == 0, done.err
        return [json.loads(line)["type"] for line in done.out.splitlines()]

    return listed


@pytest.mark.parametrize(
    "options",
    [["--type", "a"], ["--types", "a"], ["--types=a"], ["--tags", "x"], ["--tag", "x"], ["-t", "x"]],
)
def test_an_option_has_one_documented_spelling_and_others_work(two_types, options):
    assert two_types(*options) == ["a"]


@pytest.mark.parametrize("name", ["PENSTOCK_LIST_TYPE", "PENSTOCK_LIST_TYPES"])
def test_variables_may_be_spelled_both_ways(two_types, monkeypatch, name):
    monkeypatch.setenv(name, "b")
    assert two_types() == ["b"]


@pytest.mark.parametrize("key", ["type", "types"])
def test_keys_of_the_file_may_be_spelled_both_ways(penstock, two_types, key):
    penstock.write("penstock.toml", f'[list]\n{key} = ["b"]\n[worker]\n{key} = ["b"]\n')
    assert two_types() == ["b"]


def test_help_shows_the_documented_spelling_alone(penstock):
    for command in ("list", "worker", "fleet", "cancel", "redrive", "delete", "journal"):
        text = penstock(command, "--help").out
        assert "--type " in text
        assert "--types" not in text
