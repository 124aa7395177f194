"""Where options come from: argument, variable, file, default, in this order."""

import importlib
import os
import subprocess
import sys

import pytest

import penstock as library
from penstock import App, cli
from penstock.backends.drivers import default_url
from penstock.cli import _loading, _store


@pytest.fixture
def opened(monkeypatch):
    """The values of --older-than that `archive` got."""
    seen = []

    def age(text, field):
        seen.append(text)
        raise EnoughError

    # By its name: in the package the command itself stands in the module's place.
    monkeypatch.setattr(importlib.import_module("penstock.cli.archive"), "as_duration", age)
    return seen


class EnoughError(Exception):
    pass


def older_than(penstock, opened, *arguments):
    with pytest.raises(EnoughError):
        penstock("archive", *arguments)
    return opened[-1]


def test_an_argument_wins_over_a_variable_over_the_file_over_the_default(penstock, opened, monkeypatch):
    assert older_than(penstock, opened) == "90d"
    penstock.write("penstock.toml", '[archive]\nolder-than = "3d"\n')
    assert older_than(penstock, opened) == "3d"
    monkeypatch.setenv("PENSTOCK_ARCHIVE_OLDER_THAN", "2d")
    assert older_than(penstock, opened) == "2d"
    assert older_than(penstock, opened, "--older-than", "1d") == "1d"


def test_an_empty_variable_hides_nothing(penstock, opened, monkeypatch):
    penstock.write("penstock.toml", '[archive]\nolder-than = "3d"\n')
    monkeypatch.setenv("PENSTOCK_ARCHIVE_OLDER_THAN", "")
    assert older_than(penstock, opened) == "3d"


def test_keys_may_be_written_with_underscores(penstock, opened):
    penstock.write("penstock.toml", '[archive]\nolder_than = "3d"\n')
    assert older_than(penstock, opened) == "3d"


def test_pyproject_is_read_if_there_is_no_penstock_toml(penstock, opened):
    penstock.write("pyproject.toml", '[tool.other]\nx = 1\n[tool.penstock.archive]\nolder-than = "4d"\n')
    assert older_than(penstock, opened) == "4d"
    penstock.write("penstock.toml", '[archive]\nolder-than = "3d"\n')
    assert older_than(penstock, opened) == "3d"


def test_a_pyproject_without_our_table_is_ignored(penstock, opened):
    penstock.write("pyproject.toml", "[project]\nname = 'x'\n")
    assert older_than(penstock, opened) == "90d"


@pytest.mark.parametrize("way", ["option", "variable"])
def test_another_file_may_be_named(penstock, opened, monkeypatch, way):
    penstock.write("penstock.toml", '[archive]\nolder-than = "3d"\n')
    path = penstock.write("other.toml", '[archive]\nolder-than = "5d"\n')
    if way == "variable":
        monkeypatch.setenv("PENSTOCK_CONFIG", str(path))
        assert older_than(penstock, opened) == "5d"
    else:
        with pytest.raises(EnoughError):
            penstock("--config", path, "archive")
        assert opened == ["5d"]


# -- the url ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def urls(monkeypatch):
    """Which store a command opens, and which one the library would open by itself meanwhile."""
    seen = []

    def refuse(url, **_options):
        seen.append((url, default_url()))
        raise EnoughError

    monkeypatch.setattr(_store, "open_backend", refuse)
    return seen


def url_of(penstock, urls, *arguments):
    with pytest.raises(EnoughError):
        penstock("archive", *arguments)
    return urls[-1][0]


def test_the_url_is_the_arguments_the_variables_the_files_or_penstock_db(penstock, urls, monkeypatch):
    assert url_of(penstock, urls) == "sqlite:///penstock.db"
    penstock.write("penstock.toml", 'url = "sqlite:///file.db"\n')
    assert url_of(penstock, urls) == "sqlite:///file.db"
    penstock.write("penstock.toml", 'url = "sqlite:///file.db"\n[archive]\nurl = "sqlite:///table.db"\n')
    assert url_of(penstock, urls) == "sqlite:///table.db"
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///variable.db")
    assert url_of(penstock, urls) == "sqlite:///variable.db"
    monkeypatch.setenv("PENSTOCK_ARCHIVE_URL", "sqlite:///own.db")
    assert url_of(penstock, urls) == "sqlite:///own.db"
    assert url_of(penstock, urls, "--url", "sqlite:///argument.db") == "sqlite:///argument.db"


def test_the_files_url_holds_for_everything_that_a_command_starts_and_no_longer(penstock, urls):
    penstock.write("penstock.toml", 'url = "sqlite:///file.db"\n')
    url_of(penstock, urls, "--url", "sqlite:///argument.db")
    assert urls == [("sqlite:///argument.db", "sqlite:///file.db")]
    assert "PENSTOCK_URL" not in os.environ


def test_a_worker_takes_the_files_url_only_for_an_app_that_has_none(penstock, monkeypatch):
    module = importlib.import_module("penstock.cli.worker")
    seen = []

    def stop_here(app, *_arguments, **_options):
        seen.append((app.url, default_url()))
        raise EnoughError

    monkeypatch.setattr(module, "Worker", stop_here)
    monkeypatch.setattr(module, "log_to_stderr", lambda *_: None)
    penstock.write("penstock.toml", 'url = "sqlite:///file.db"\n')
    for own in (None, "sqlite:///own.db"):
        monkeypatch.setattr(_loading, "load_app", lambda name, own=own: App(own))
        with pytest.raises(EnoughError):
            penstock("worker", "shop:app")
    penstock.write("penstock.toml", 'url = "sqlite:///file.db"\n[worker]\nurl = "sqlite:///worker.db"\n')
    with pytest.raises(EnoughError):
        penstock("worker", "shop:app")
    assert [url for url, _ in seen] == [None, "sqlite:///own.db", "sqlite:///worker.db"]
    assert {default for _, default in seen} == {"sqlite:///file.db"}


# -- what is wrong in a file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[worker]\ncolour = 'red'",
            "penstock.toml: unknown key [worker] colour = 'red' (known: app, concurrency",
        ),
        ("colour = 'red'", "penstock.toml: unknown key colour = 'red' (known: "),
        ("[wroker]\nconcurrency = 3", "unknown key wroker = {'concurrency': 3}"),
        ("[worker]\nconcurrency = 'three'", "[worker] concurrency must be a whole number, got 'three'"),
        ("[worker]\nconcurrency = true", "[worker] concurrency must be a whole number, got True"),
        ("[worker]\nconcurrency = 2.5", "[worker] concurrency must be a whole number, got 2.5"),
        ("[worker]\ngrace = '10 minutes'", "[worker] grace: grace must be a duration such as"),
        ("[worker]\nuntil-idle = 1", "[worker] until-idle must be true or false, got 1"),
        ("[worker]\ntags = [1]", "[worker] tags must be a list of texts, got [1]"),
        (
            "[worker]\nisolation = 'rope'",
            "[worker] isolation: it must be one of 'process', 'thread', got 'rope'",
        ),
        ("[worker]\nstop-on-eof = true", "unknown key [worker] stop-on-eof"),
        ("[audit]\nlimit = 0", "[audit] limit: it must be greater than or equal to 1, got 0"),
        ("worker = 3", "worker must be a table, got 3"),
        ("url = 3", "url must be text, got 3"),
        ("[pipeline]\nrun = 3", "pipeline.run must be a table, got 3"),
        ("[pipeline.walk]\nx = 3", "unknown key [pipeline] walk"),
        ("[worker", "penstock.toml is not valid TOML"),
        ("a = 1\na = 2", "penstock.toml is not valid TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_in_one_line(penstock, text, words):
    penstock.write("penstock.toml", text)
    done = penstock("version")
    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_everything_that_is_wrong_is_named_at_once(penstock):
    penstock.write("penstock.toml", "[worker]\nconcurrency = 'x'\ncolour = 1\n[report]\nsize = 1\n")
    done = penstock("version")
    assert all(word in done.err for word in ("concurrency", "colour", "[report] size"))


@pytest.mark.parametrize("kind", ["missing", "folder", "bytes"])
def test_a_named_file_that_cannot_be_read_is_a_mistake(penstock, kind):
    path = penstock.folder / "other.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "bytes":
        path.write_bytes(b"\xff\xfe\x00")
    done = penstock("--config", path, "version")
    assert done.code == 2
    assert "other.toml" in done.err
    assert len(done.err.splitlines()) == 1


def test_an_empty_file_and_one_with_a_byte_order_mark_are_fine(penstock, opened):
    penstock.write("penstock.toml", "")
    assert older_than(penstock, opened) == "90d"
    (penstock.folder / "penstock.toml").write_bytes(b'\xef\xbb\xbf[archive]\nolder-than = "3d"\n')
    assert older_than(penstock, opened) == "3d"


def test_help_is_there_although_the_file_is_broken(penstock):
    penstock.write("penstock.toml", "[worker")
    done = penstock("worker", "--help")
    assert done.code == 0
    assert "penstock worker shop.jobs:app" in done.out


def test_the_error_of_a_refused_value_names_its_origin(penstock, monkeypatch):
    penstock.write("penstock.toml", '[archive]\nolder-than = "soon"\n')
    done = penstock("archive")
    assert done.code == 2
    assert "got 'soon' (older-than is set by penstock.toml)" in done.err
    monkeypatch.setenv("PENSTOCK_ARCHIVE_OLDER_THAN", "never")
    assert "got 'never' (older-than is set by PENSTOCK_ARCHIVE_OLDER_THAN)" in penstock("archive").err
    assert "set by" not in penstock("archive", "--older-than", "x").err


def test_a_value_of_the_wrong_kind_is_shown_with_its_variable(penstock, monkeypatch):
    monkeypatch.setenv("PENSTOCK_LIST_LIMIT", "many")
    done = penstock("list")
    assert done.code == 2
    assert "got 'many' (limit is set by PENSTOCK_LIST_LIMIT)" in done.err
    assert "it must be a valid integer, got 'many'" in done.err
    assert "it must be one of 'process', 'thread'" in penstock("worker", "m:a", "--isolation", "boat").err
    typed = penstock("list", "--limit", "0")
    assert "'--limit'" in typed.err
    assert "got '0' (see penstock list --help)" in typed.err


def test_only_options_of_commands_have_a_variable_each(penstock, monkeypatch):
    monkeypatch.setenv("PENSTOCK_VERSION", "1")
    monkeypatch.setenv("PENSTOCK_SHOW_COMPLETION", "1")
    monkeypatch.setenv("PENSTOCK_VERSION_JSON", "1")
    assert penstock("version").out.startswith("{")


@pytest.mark.process
def test_plain_values_need_no_validator(tmp_path):
    """Importing the validator of the framework would take a quarter of the time of a short command."""
    code = (
        "import sys; from penstock.cli import run; "
        "code = run(['stats', '--tags', 'a', '--url', sys.argv[1]]); "
        "sys.exit('validator' if 'pydantic' in sys.modules else code)"
    )
    with library.connect(f"sqlite:///{tmp_path}/jobs.db"):
        pass
    done = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{tmp_path}/jobs.db"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- the shape of it all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["verson"], "Did you mean 'version'"),
        (["version", "--colour"], "No such option: --colour"),
        (["version", "more"], "unexpected extra argument"),
        (["archive", "--older-than"], "requires an argument"),
        (["--config"], "requires an argument"),
        (["archive", "--older-than", "x" * 80_000], "older_than must be"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line_and_exit_code_2(penstock, arguments, words):
    done = penstock(*arguments)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1
    assert len(done.err) < 1_000


def test_the_version_is_an_option_and_a_command(penstock):
    line = penstock("version").out
    assert line.startswith("penstock ")
    assert penstock("--version") == (0, line, "")


def test_without_arguments_the_commands_are_listed(penstock):
    done = penstock()
    assert done.code == 0
    assert all(name in done.out for name in cli.COMMANDS)
    assert all(name in done.out for name in cli.GROUPS)


@pytest.mark.parametrize("value", ['"1h30m"', "5400", "5400.0"])
def test_a_duration_in_the_file_is_text_or_a_number_of_seconds(penstock, value):
    penstock.write("penstock.toml", f"[top]\ninterval = {value}\n")
    assert "must be from 0.1 to 3600 seconds" in penstock("top", "--once").err


def test_a_wrong_duration_in_the_file_is_refused_before_anything_is_done(penstock):
    penstock.write("penstock.toml", '[worker]\ngrace = "soon"\nstop-grace = true\n')
    said = penstock("stats").err
    assert "[worker] grace: " in said
    assert "got 'soon'" in said
    assert "such as" in said
    assert "[worker] stop-grace must be a number of seconds or text such as" in said
