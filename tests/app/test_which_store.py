"""Which store a program uses, and how people learn of it: one rule for programs and commands."""

import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.waiting import until

import penstock
from penstock import App, InvalidArgumentError, Worker
from penstock.backends.drivers import default_url


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, and none of the user's settings."""
    for name in [each for each in os.environ if each.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made_by(make):
    """Return the path of the store that a queue or an app opens."""
    with make() as opened:
        backend = opened.backend if isinstance(opened, penstock.Queue) else opened.queue.backend
        return str(Path(backend.path).resolve())


@pytest.mark.parametrize("make", [App, penstock.connect])
def test_an_argument_wins_over_the_variable_over_the_file_over_the_default(folder, monkeypatch, make):
    assert made_by(make) == str(folder / "penstock.db")
    (folder / "pyproject.toml").write_text('[tool.penstock]\nurl = "sqlite:///project.db"\n')
    assert made_by(make) == str(folder / "project.db")
    (folder / "penstock.toml").write_text('url = "sqlite:///file.db"\n[worker]\nconcurrency = 2\n')
    assert made_by(make) == str(folder / "file.db")
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///variable.db")
    assert made_by(make) == str(folder / "variable.db")
    assert made_by(lambda: make("sqlite:///argument.db")) == str(folder / "argument.db")


def test_a_relative_url_in_a_file_elsewhere_starts_at_the_working_folder(folder, monkeypatch):
    (folder / "etc").mkdir()
    (folder / "etc" / "shop.toml").write_text('url = "sqlite:///shop.db"\n')
    monkeypatch.setenv("PENSTOCK_CONFIG", str(folder / "etc" / "shop.toml"))
    assert made_by(penstock.connect) == str(folder / "shop.db")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("penstock.toml", "url = ", ["penstock.toml", "TOML"]),
        ("penstock.toml", "url = 5", ["penstock.toml", "url must be a text", "5"]),
        ("penstock.toml", 'url = ""', ["penstock.toml", "url must be a text"]),
        ("penstock.toml", b"\xff", ["penstock.toml", "TOML"]),
        ("pyproject.toml", "tool = 5\n[project", ["pyproject.toml", "TOML"]),
        ("pyproject.toml", "[tool]\npenstock = 5", ["pyproject.toml", "tool.penstock"]),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_key(folder, name, text, words):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidArgumentError) as caught:
        default_url()
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(InvalidArgumentError), App() as app:
        app.queue.get_job_stats()
    assert [each.name for each in folder.iterdir()] == [name]


def test_a_file_that_is_named_must_be_there(folder, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONFIG", "nowhere.toml")
    with pytest.raises(InvalidArgumentError, match=r"nowhere\.toml"):
        penstock.connect()


def test_other_peoples_pyproject_changes_nothing(folder):
    for text in ("[tool.other]\nurl = 5\n", "[project]\nname = 'x'\n", "tool = 5\n"):
        (folder / "pyproject.toml").write_text(text)
        assert default_url() == "sqlite:///penstock.db"


# -- who waits in vain ---------------------------------------------------------------------------------------------


def test_who_waits_in_vain_learns_that_no_living_worker_claims_the_type(stored_app):
    @stored_app.job
    def resize() -> None: ...

    @stored_app.job
    def other() -> None: ...

    handle = resize.submit()
    with pytest.raises(TimeoutError) as caught:
        handle.result(timeout=0.05)
    text = str(caught.value)
    assert "has not ended within 0.05 s; it goes on" in text
    assert "no living worker claims the type 'resize' in this store" in text
    assert stored_app.queue.backend.location in text
    with stored_app.queue.stream_jobs("w", types=["resize"], max_assigned_jobs=1):
        # What a stream claims is in the store with the next heartbeat.
        until(lambda: any(owner.intakes for owner in stored_app.queue.backend.reading.overview().living))
        with pytest.raises(TimeoutError) as caught:
            handle.result(timeout=0.05)
        assert "no living worker" not in str(caught.value)
    refused = pytest.raises(TimeoutError, match="no living worker claims the type 'other'")
    with stored_app.queue.stream_jobs("w", ["gpu"], types=["other"]), refused:
        other.submit().result(timeout=0.05)


def reason(handle):
    """Say why a job has not ended."""
    with pytest.raises(TimeoutError) as caught:
        handle.wait(timeout=0.01)
    return str(caught.value)


def test_who_waits_learns_what_the_job_waits_for(stored_app):
    @stored_app.job(retry=penstock.RetryPolicy(max_attempts=3, initial_delay=timedelta(hours=1)))
    def step() -> None: ...

    due = datetime(2199, 1, 2, 3, 4, 5, tzinfo=UTC)
    delayed = step.options(run_at=due).submit()
    assert "it is not due before 2199-01-02 03:04:05" in reason(delayed)
    assert "waits for" not in reason(delayed)
    many = [step.submit() for _ in range(7)]
    dependent = reason(step.options(after=many).submit())
    assert f"waits for {many[0].id} (initial_pending), {many[1].id}" in dependent
    assert dependent.count("initial_pending") == 6
    assert "and 2 more" in dependent
    assert f"waits for one of {many[0].id}" in reason(step.options(after_any=many[:2]).submit())
    first, second = (step.options(key="cats").submit() for _ in range(2))
    assert "turn of its key" not in reason(first)
    assert f"waits for the turn of its key ('cats',), which {first.id} (initial_pending) has" in reason(
        second
    )
    held = reason(step.options(held=True).submit())
    assert "held: only a claim that names its id gets it" in held
    assert "no living worker" not in held
    backend = stored_app.queue.backend
    backend.dequeue_jobs("w", job_ids=[many[0].id], limit=1)
    assert "it is running" in reason(many[0])
    assert "(attempt 1 by 'w' since 20" in reason(many[0])
    backend.cancel_jobs(job_ids=[many[0].id])
    assert "its worker has been asked to end it" in reason(many[0])
    backend.dequeue_jobs("w", job_ids=[many[1].id], limit=1)
    backend.fail_job(many[1].id, "boom")
    assert "its next attempt is not due before 20" in reason(many[1])


def test_who_waits_learns_of_jobs_that_a_dependency_has_spawned(stored_app):
    @stored_app.job
    def step() -> None: ...

    first = step.submit()
    last = step.options(after=[first]).submit()
    backend = stored_app.queue.backend
    backend.dequeue_jobs("w", job_ids=[first.id], limit=1)
    backend.spawn_jobs(first.id, [penstock.Job(id="child", type="step")], attempt=1)
    backend.complete_job(first.id)
    assert "waits for" in reason(last)


WAITING = """
import penstock

app = penstock.App()


@app.job
def elsewhere() -> None: ...


@app.job(retry=penstock.RetryPolicy(max_attempts=1))
def parent() -> None:
    elsewhere.submit().result(timeout=0.05)
"""


@pytest.mark.process
def test_a_job_that_waits_in_vain_learns_the_same(folder):
    (folder / "waiting_app.py").write_text(WAITING)
    with penstock.connect() as queue:
        job = queue.submit("parent", {}, retry=penstock.RetryPolicy(max_attempts=1))
        subprocess.run(
            [
                sys.executable,
                "-m",
                "penstock",
                "worker",
                "waiting_app:app",
                "--type",
                "parent",
                "--until-idle",
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        message = queue.get_job(job.id).error_message
    assert "no living worker claims the type 'elsewhere' in this store" in message
    assert str(folder / "penstock.db") in message


def test_the_place_of_a_store_shows_no_password(url):
    with penstock.connect(url) as queue:
        place = queue.backend.location
    assert place.startswith(("sqlite:////", "postgresql://"))
    assert "password" not in place


# -- a store that only its submitter knows --------------------------------------------------------------------------


def test_a_program_that_makes_a_store_and_only_submits_is_warned_once(folder, caplog):
    with caplog.at_level(logging.WARNING, "penstock"):
        with App() as app:
            app.job(type="a")(lambda: None)
            app.tasks["a"].submit()
            app.tasks["a"].submit()
        with App() as app:  # it is there by now
            app.job(type="a")(lambda: None)
            app.tasks["a"].submit()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(folder / "penstock.db") in record.getMessage()


def test_who_works_on_the_store_it_made_is_not_warned(folder, caplog):
    with caplog.at_level(logging.WARNING, "penstock"), App() as app:

        @app.job
        def child() -> None: ...

        @app.cron("* * * * *")
        def parent() -> None:
            child.submit()

        Worker(app, isolation="thread").run(until_idle=True)
        child.submit()
    assert not caplog.records


@pytest.mark.process
def test_the_command_that_makes_a_store_says_where(folder):
    def submit():
        return subprocess.run(
            [sys.executable, "-m", "penstock", "submit", "t"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stderr

    assert str(folder / "penstock.db") in submit()
    assert submit() == ""
