"""Commands that read make no store; a mistyped url is said to be one."""

import re
import socket

import pytest

import penstock as library
from penstock.errors import InvalidArgumentError


def test_a_store_that_is_not_there_is_not_made_if_that_is_not_wanted(shared_store):
    with pytest.raises(InvalidArgumentError, match="store") as caught:
        library.open_backend(shared_store.url, create=False, **shared_store.options)
    assert caught.value.field == "url"
    with pytest.raises(InvalidArgumentError):  # and was not made by that either
        library.open_backend(shared_store.url, create=False, **shared_store.options)
    with library.open_backend(shared_store.url, **shared_store.options) as backend:
        backend.enqueue_job(library.Job.new("greet"))
    with library.open_backend(shared_store.url, create=False, **shared_store.options) as backend:
        assert backend.get_job_stats().total_jobs == 1


def test_an_empty_file_is_no_store_and_stays_empty(tmp_path):
    path = tmp_path / "jobs.db"
    path.touch()
    with pytest.raises(InvalidArgumentError, match="no store"):
        library.open_backend(f"sqlite:///{path}", create=False)
    assert path.read_bytes() == b""


def test_create_is_true_or_false(tmp_path):
    with pytest.raises(InvalidArgumentError, match="create must be True or False"):
        library.open_backend(f"sqlite:///{tmp_path}/jobs.db", create="no")
    assert not list(tmp_path.iterdir())


def test_a_command_that_finds_no_store_leaves_no_trace(penstock):
    done = penstock("archive", "--url", "sqlite:///typo.db")
    assert done.code == 2
    assert "there is no store at" in done.err
    assert list(penstock.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("memory:", 2, "memory: belongs to the process"),
        ("mysql://x", 2, "url must begin with"),
        ("nothing", 2, "url must begin with"),
        ("sqlite://jobs.db", 2, "a SQLite url is"),
        ("sqlite:///no/such/folder/jobs.db", 2, "there is no store at"),
        ("postgresql://x/y?colour=red", 2, "the PostgreSQL url is malformed"),
        ("sqlite:///notes.txt", 1, "not a Penstock store"),
        ("sqlite:///folder", 1, "is a folder"),
    ],
)
def test_a_wrong_url_is_one_line(penstock, url, code, words):
    penstock.write("notes.txt", "this is no database" * 100)
    (penstock.folder / "folder").mkdir()
    done = penstock("archive", "--url", url)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("command", [("archive",), ("stats",), ("migrate", "up"), ("migrate", "list")])
def test_a_server_that_is_away_is_one_line_and_soon(penstock, command):
    done = penstock(
        *command, "--url", "postgresql://user:secret@127.0.0.1:1/jobs", "--connect-timeout", "0.2"
    )
    assert done.code == 1
    assert "PostgreSQL cannot be reached" in done.err
    assert "secret" not in done.err
    assert len(done.err.splitlines()) == 1


WAYS = {
    "an argument": (("--connect-timeout", "150ms"), {}, ""),
    "a variable": ((), {"PENSTOCK_CONNECT_TIMEOUT": "0.15"}, ""),
    "a variable of the command": ((), {"PENSTOCK_STATS_CONNECT_TIMEOUT": "0.15"}, ""),
    "the file": ((), {}, "[stats]\nconnect-timeout = 0.15\n"),
    "the file, for all commands": ((), {}, 'connect_timeout = "150ms"\n'),
    "the url": ((), {}, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_connect_timeout_may_be_set_in_every_way(penstock, monkeypatch, way):
    """Section 3: and the error says how long it was."""
    arguments, variables, file = WAYS[way]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if file:
        penstock.write("penstock.toml", file)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        query = "" if file is not None else "?connect_timeout=0.15"
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none{query}"
        done = penstock("stats", "--url", url, *arguments)
    assert done.code == 1
    # What was left of it when the connection was tried: a busy machine has needed some of it before.
    (seconds,) = re.findall(r"no answer within ([0-9.]+) s", done.err)
    assert 0 < float(seconds) <= 0.15


@pytest.mark.parametrize("way", [way for way in WAYS if "command" not in way or "all" in way])
def test_a_worker_that_cannot_connect_is_refused_as_any_command(penstock, monkeypatch, way):
    """Section 3: once it was connected it waits."""
    arguments, variables, file = WAYS[way]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    penstock.write("penstock.toml", (file or "").replace("[stats]", "[worker]"))
    module = f"unreached_{way.replace(' ', '_').replace(',', '')}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        query = "" if file is not None else "?connect_timeout=0.15"
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none{query}"
        penstock.write(
            f"{module}.py",
            f"""import penstock\napp = penstock.App({url!r})\n@app.job(isolation="thread")\ndef work() -> None: ...\n""",
        )
        done = penstock("worker", f"{module}:app", *arguments)
    assert done.code == 1
    (seconds,) = re.findall(r"no answer within ([0-9.]+) s", done.err)
    assert 0 < float(seconds) <= 0.15


@pytest.mark.parametrize("command", ["audit", "pipeline run --lake lake", "fleet unreached_fleet:app"])
def test_a_silent_server_is_refused_before_spark_starts(penstock, monkeypatch, command):
    """Section 3: a command waits five seconds for a server, and starts no Java for one that never answers."""
    monkeypatch.setattr("penstock.spark.session", lambda *_: pytest.fail("Spark was started"))
    penstock.write(
        "unreached_fleet.py",
        "import penstock\napp = penstock.App()\n@app.job\ndef work() -> None: ...\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none"
        done = penstock(*command.split(), "--url", url, "--connect-timeout", "0.2")
    assert done.code == 1
    assert "no answer within" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_long_time_for_connecting_is_not_cut_short(penstock, monkeypatch):
    """Section 3: what opening may take beside it comes on top."""
    monkeypatch.setattr("penstock.cli._store.OPEN_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none"
        done = penstock("stats", "--url", url, "--connect-timeout", "300ms")
    assert "PostgreSQL cannot be reached" in done.err


def test_a_server_that_is_silent_is_given_up_after_five_seconds(penstock, monkeypatch):
    """Section 3: unless another time is given."""
    seen = []
    monkeypatch.setattr(
        "penstock.cli._store.open_backend", lambda url, **options: seen.append(options) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        penstock("stats", "--url", "postgresql://db/none")
    with pytest.raises(ZeroDivisionError):
        penstock("stats", "--url", "sqlite:///jobs.db")
    assert seen == [{"create": False, "connect_timeout": 5.0}, {"create": False}]


@pytest.mark.parametrize("value", ["soon", "-1s", "", "0", "1e9"])
def test_a_time_for_connecting_that_is_none_is_a_mistake(penstock, value):
    done = penstock("stats", "--url", "postgresql://127.0.0.1:1/none", f"--connect-timeout={value}")
    assert (done.code, done.out) == (2, "")
    assert "connect_timeout must be" in done.err
