"""Commands that read make no store; a mistyped url is said to be one."""

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
        ("postgresql://x/y?colour=red", 2, "not a PostgreSQL url"),
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


@pytest.mark.slow
def test_a_server_that_is_away_is_one_line_and_soon(penstock, monkeypatch):
    monkeypatch.setattr("penstock.cli._store.CONNECT_SECONDS", 1.0)
    done = penstock("archive", "--url", "postgresql://user:secret@127.0.0.1:1/jobs")
    assert done.code == 1
    assert "PostgreSQL cannot be reached" in done.err
    assert "secret" not in done.err
    assert len(done.err.splitlines()) == 1
