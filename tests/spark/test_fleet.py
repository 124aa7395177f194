"""The fleet in a local session: Spark tasks are workers. On a cluster: test_cluster.py."""

import importlib
import json
import os
import signal
import sys
import threading
import types
from contextlib import contextmanager
from pathlib import Path

import apsw
import psutil
import pytest
from tests.spark import fleet_jobs
from tests.waiting import PATIENCE, until
from typer.testing import CliRunner

import penstock
from penstock import JobStatus, RetryPolicy
from penstock import spark as ps
from penstock.cli import app as cli
from penstock.cli import run
from penstock.errors import BackendError, InvalidArgumentError, PenstockError
from penstock.spark._parcel import Parcel, pack
from penstock.spark.fleet import _driver, _task
from penstock.spark.stores import store_at
from penstock.testing import check_store


@pytest.fixture
def app(url):
    fleet_jobs.app.move_to(url)
    yield fleet_jobs.app
    fleet_jobs.app.close()


@pytest.fixture
def sqlite_app(sqlite_url):
    fleet_jobs.app.move_to(sqlite_url)
    yield fleet_jobs.app
    fleet_jobs.app.close()


def completions(app):
    return [row for row in app.queue.backend.read_journal(limit=10_000) if row.verb == "complete"]


@pytest.mark.requirement("C28")
def test_spark_tasks_run_the_handlers_of_an_app(spark, app):
    handles = fleet_jobs.double.submit_many([{"number": number} for number in range(30)])
    fleet_jobs.never.submit()
    seen = []
    report = ps.run_fleet(spark, app, tasks=2, capacity=3, progress=seen.append)
    assert (report.completed, report.failed, report.tasks) == (30, 2, 2)
    assert report.seconds > 0
    assert [handle.result(0) for handle in handles] == [2 * number for number in range(30)]
    assert {row.assignee_id.split(":")[0] for row in completions(app)} == {"spark"}
    assert seen[0].total_jobs == 31
    assert check_store(app.queue.backend) == []
    with pytest.raises(AttributeError):
        report.completed = 7


def test_tasks_for_which_there_was_no_core_are_not_counted(spark, sqlite_app):
    """The session has two cores; the fleet ends while the other tasks still wait for one."""

    def stop():
        backend = sqlite_app.queue.backend
        try:
            until(lambda: len(backend.reading.overview().living) >= 3, "two tasks beside the driver")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    report = ps.run_fleet(spark, sqlite_app, tasks=4, capacity=1, until_idle=False, isolation="thread")
    thread.join()
    assert report.tasks == 2


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_an_app_that_cannot_be_imported_is_sent_to_executors(spark, sqlite_url, isolation):
    """With its middleware, and with the tasks that its handlers name."""
    app = penstock.App(sqlite_url)
    factor = 3

    @app.job
    def triple(number: int) -> int:
        again.options(tags=("more",)).submit(number=factor * number)
        return factor * number

    @app.job
    async def again(context: penstock.JobContext, number: int) -> list[int]:
        return [number, context.attempt]

    @app.middleware
    def counted(context, call):
        return call()

    handles = triple.submit_many([{"number": number} for number in range(5)])
    report = ps.run_fleet(spark, app, tasks=2, isolation=isolation)
    assert (report.completed, report.failed) == (10, 0)
    assert [handle.result(0) for handle in handles] == [0, 3, 6, 9, 12]
    more = app.queue.list_jobs(tags=("more",))
    assert sorted(job.result for job in more) == [b"[%d,1]" % number for number in (0, 12, 3, 6, 9)]
    app.close()


def test_an_app_that_cannot_be_sent_is_refused_with_the_reason(spark, sqlite_url):
    app = penstock.App(sqlite_url)
    lock = threading.Lock()

    @app.job
    def guarded() -> None:
        with lock:
            pass

    with pytest.raises(
        InvalidArgumentError, match=r"cannot pickle '_thread.lock'.* move the app into a module"
    ):
        ps.run_fleet(spark, app)


@pytest.fixture
def elsewhere(sqlite_url, monkeypatch):
    """An app in a module that this process alone has."""
    module = types.ModuleType("only_the_driver_has_it")
    module.app = app = penstock.App(sqlite_url)

    def handler() -> None:
        """Do nothing."""

    handler.__module__, handler.__qualname__ = module.__name__, "handler"
    app.job(handler).submit()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield app
    app.close()


def test_an_app_that_executors_cannot_import_is_an_error_that_says_what_to_do(spark, elsewhere):
    with pytest.raises(
        PenstockError, match=r"cannot import only_the_driver_has_it:app: ModuleNotFoundError.*addArtifact"
    ):
        ps.run_fleet(spark, elsewhere, tasks=2)
    (job,) = elsewhere.queue.list_jobs()
    assert (job.status, job.attempt) == (JobStatus.INITIAL_PENDING, 0)


def test_a_file_given_to_spark_is_imported(spark, elsewhere, tmp_path):
    name = f"given_{os.getpid()}"
    sys.modules[name] = sys.modules["only_the_driver_has_it"]
    for task in elsewhere.tasks.values():
        task.function.__module__ = name
    try:
        assert pack(elsewhere).name == f"{name}:app"
        file = tmp_path / f"{name}.py"
        file.write_text("import penstock\napp = penstock.App()\n@app.job\ndef handler() -> None: ...\n")
        spark.addArtifact(str(file), pyfile=True)
        assert ps.run_fleet(spark, elsewhere, tasks=1).completed == 1
    finally:
        del sys.modules[name]


def test_an_app_with_other_handlers_there_is_refused():
    parcel = pack(fleet_jobs.app)
    assert parcel.open() is fleet_jobs.app
    with pytest.raises(PenstockError, match="has no handler for triple"):
        parcel._replace(types=("double", "triple")).open()
    with pytest.raises(PenstockError, match=r"is not a penstock\.App"):
        Parcel("penstock:connect", (), b"", (), ()).open()


@pytest.mark.deep
def test_what_time_does_not_suffice_for_goes_back_uncounted(spark, app, tmp_path):
    """Jobs that run and jobs that wait; their processes are gone, and so is the fleet's liveness row."""
    fleet_jobs.wait_for.submit_many([{"file": str(tmp_path / "never"), "folder": str(tmp_path)}] * 3)
    report = ps.run_fleet(spark, app, tasks=1, capacity=2, max_seconds=6, grace=0.2)
    assert (report.completed, report.failed, report.tasks) == (0, 0, 1)
    assert 6 <= report.seconds < PATIENCE
    jobs = app.queue.list_jobs()
    assert {job.failures for job in jobs} == {0}
    assert {job.status for job in jobs} <= {JobStatus.FAILED_RETRY, JobStatus.INITIAL_PENDING}
    pids = [int(file.name) for file in tmp_path.iterdir() if file.name.isdigit()]
    assert len(pids) <= 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    app.queue.backend.maintain()
    assert check_store(app.queue.backend) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_fleet_in_peace(spark, sqlite_app, tmp_path, number):
    """What finishes within the grace is completed; the rest is left, or handed back uncounted."""
    before = signal.getsignal(number)
    fleet_jobs.wait_for.submit_many([{"file": str(tmp_path / "go"), "folder": str(tmp_path)}] * 1000)

    def interrupt():
        until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2, "two jobs at work")
        os.kill(os.getpid(), number)
        (tmp_path / "go").touch()

    helper = threading.Thread(target=interrupt)
    helper.start()
    report = ps.run_fleet(
        spark, sqlite_app, tasks=1, capacity=2, until_idle=False, max_seconds=None, grace=60
    )
    helper.join()
    assert 2 <= report.completed == len(completions(sqlite_app)) < 1000
    stats = sqlite_app.queue.get_job_stats()
    waiting = stats.pending_jobs + stats.failed_jobs  # those that were handed back wait for a retry
    assert (stats.completed_jobs, waiting) == (report.completed, 1000 - report.completed)
    assert max(job.failures for job in sqlite_app.queue.list_jobs(limit=1000)) == 0
    assert signal.getsignal(number) == before


@pytest.mark.deep
def test_a_second_signal_does_not_wait(spark, sqlite_app, tmp_path):
    """Spark kills the task without a report; its jobs are reclaimed, and each is completed once."""
    fleet_jobs.wait_for.submit_many([{"file": str(tmp_path / "go"), "folder": str(tmp_path)}] * 2)

    def interrupt():
        until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2, "two jobs at work")
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    report = ps.run_fleet(spark, sqlite_app, tasks=1, capacity=2, grace=3600)
    helper.join()
    assert (report.completed, report.tasks) == (0, 0)
    # Spark lets it run on for some seconds, and jobs end with the process of their task.
    until(lambda: not any(psutil.pid_exists(int(file.name)) for file in tmp_path.glob("[0-9]*")), "the end")
    (tmp_path / "go").touch()
    assert ps.run_fleet(spark, sqlite_app, tasks=1).completed == 2
    assert len(completions(sqlite_app)) == 2
    assert check_store(sqlite_app.queue.backend) == []


def test_jobs_of_a_killed_task_come_back_and_are_counted(spark, app, tmp_path):
    """The task is tried again by Spark. What the first try had completed is in the report all the same."""
    fleet_jobs.double.options(priority=0).submit_many([{"number": number} for number in range(10)])
    fleet_jobs.kill_its_process_once.options(priority=4).submit(marker=str(tmp_path / "killed"))
    report = ps.run_fleet(spark, app, tasks=1, capacity=1, isolation="thread")
    assert (report.completed, report.tasks) == (11, 1)
    assert len(completions(app)) == 11
    (job,) = app.queue.list_jobs(type="kill_its_process_once")
    assert (job.result, job.attempt) == (b'"the second time"', 2)
    assert check_store(app.queue.backend) == []


def test_a_crash_of_a_job_is_its_own(spark, sqlite_app, tmp_path):
    """In a process of its own it takes no neighbour along."""
    fleet_jobs.kill_its_process_once.options(retry=RetryPolicy(max_attempts=2, initial_delay=0)).submit(
        marker=str(tmp_path / "killed")
    )
    fleet_jobs.double.submit_many([{"number": number} for number in range(10)])
    report = ps.run_fleet(spark, sqlite_app, tasks=1, capacity=2)
    assert (report.completed, report.failed) == (11, 1)


def test_two_fleets_share_the_jobs(spark, app, url):
    """On one store, from one session; each counts its own."""
    fleet_jobs.double.submit_many([{"number": number} for number in range(60)])
    other = penstock.App(url)
    other.job(fleet_jobs.double.function)
    reports = []
    threads = [
        threading.Thread(
            target=lambda each: reports.append(
                ps.run_fleet(spark, each, tasks=1, types=["double"], isolation="thread")
            ),
            args=(each,),
        )
        for each in (app, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [report.tasks for report in reports] == [1, 1]
    assert sum(report.completed for report in reports) == len(completions(app)) == 60
    assert check_store(app.queue.backend) == []


def test_a_liveness_row_that_expired_by_itself_costs_no_task(spark, sqlite_app, tmp_path, monkeypatch):
    """As after a driver that was frozen, or away from the store: tasks end in peace and are sent out again."""
    # no beat comes but the one that is asked for
    monkeypatch.setattr("penstock.liveness.beat_seconds", lambda _: 1500.0)
    fleet_jobs.double.options(priority=0).submit(number=1)
    fleet_jobs.wait_for.submit_many([{"file": str(tmp_path / "go"), "folder": str(tmp_path)}] * 4)

    def put_out():
        until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2, "two jobs at work")
        pids = [int(file.name) for file in tmp_path.glob("[0-9]*")]
        connection = apsw.Connection(sqlite_app.url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(60_000)
        connection.execute("DELETE FROM owner WHERE pid = ?", (os.getpid(),))
        assert connection.changes() == 1
        connection.close()
        until(lambda: not any(map(psutil.pid_exists, pids)), "the end of the task's first outing")
        (tmp_path / "go").touch()

    helper = threading.Thread(target=put_out)
    helper.start()
    report = ps.run_fleet(spark, sqlite_app, tasks=1, capacity=2, grace=0.2)
    helper.join()
    assert (report.completed, report.failed, report.tasks) == (5, 0, 1)
    assert max(job.failures for job in sqlite_app.queue.list_jobs()) == 0


def test_executors_with_another_store_in_its_place_are_named(spark, sqlite_app, monkeypatch):
    monkeypatch.setattr(_driver._Fleet, "_run_task", lambda *_: _task.TaskOutcome(0, was_stopped=True))
    with pytest.raises(
        PenstockError, match=r"does not find this fleet in .*jobs\.db: is that the same store"
    ):
        ps.run_fleet(spark, sqlite_app, tasks=2)


def test_what_is_no_session_is_refused(sqlite_app):
    with pytest.raises(InvalidArgumentError, match="spark must be a SparkSession, got None"):
        ps.run_fleet(None, sqlite_app)


@pytest.mark.postgres
def test_a_task_has_one_connection(spark, postgres_database, tmp_path):
    """And the driver one, so that a fleet of hundreds fits a server."""
    import psycopg

    fleet_jobs.app.move_to(postgres_database)
    fleet_jobs.wait_for.submit_many([{"file": str(tmp_path / "go"), "folder": str(tmp_path)}] * 4)
    fleet_jobs.app.close()
    most = []

    def count():
        until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 4, "four jobs at work")
        with psycopg.connect(postgres_database) as connection:
            most.extend(
                connection.execute(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name = 'penstock'"
                ).fetchone()
            )
        (tmp_path / "go").touch()

    helper = threading.Thread(target=count)
    helper.start()
    assert ps.run_fleet(spark, fleet_jobs.app, tasks=2, capacity=2).completed == 4
    helper.join()
    assert most == [3]


@pytest.mark.postgres
@pytest.mark.parametrize("where", ["url", "option"])
def test_a_schema_is_named_in_the_url_or_as_an_option(spark, postgres_database, where):
    mark = "&" if "?" in postgres_database else "?"
    in_url = where == "url"
    url = f"{postgres_database}{mark}schema=shop" if in_url else postgres_database
    app = penstock.App(url, **({} if in_url else {"schema": "shop"}))
    app.job(fleet_jobs.double.function).submit(number=1)
    assert ps.run_fleet(spark, app, tasks=1, isolation="thread").completed == 1
    app.close()


def test_a_store_that_executors_do_not_see_is_named(sqlite_url):
    """Before anything is imported."""
    order = _task.TaskOrder(
        "spark:x:0", "owner", Parcel("nothing:app", (), b"", (), ()), store_at(sqlite_url), 1, "thread",
        ("double",), (), until_idle=True, seconds=None, grace=1.0,
    )  # fmt: skip
    with pytest.raises(BackendError, match=r"no file .*jobs\.db here; .* every executor sees the file"):
        _task._work(order, "name", 0)


def test_a_task_that_starts_when_the_fleet_is_over_takes_nothing(sqlite_app):
    fleet_jobs.double.submit(number=1)
    order = _task.TaskOrder(
        "spark:x:0", "no such owner", pack(sqlite_app), store_at(sqlite_app.url), 1, "thread",
        ("double",), (), until_idle=True, seconds=None, grace=1.0,
    )  # fmt: skip
    assert _task._work(order, "name", 3) == _task.TaskOutcome(3, was_stopped=True, began=False)
    assert fleet_jobs.double.app.queue.get_job_stats().pending_jobs == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tasks": 0}, "tasks"),
        ({"tasks": 1001}, "tasks"),
        ({"tasks": True}, "tasks"),
        ({"capacity": 0}, "capacity"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"grace": -1}, "grace"),
        ({"isolation": "container"}, "isolation"),
        ({"types": ["triple"]}, "triple"),
        ({"types": "double"}, "types"),
        ({"types": []}, "types is empty"),
        ({"tags": "a"}, "tags"),
        ({"tags": [1]}, "tags"),
        ({"progress": 3}, "progress"),
        ({"app": "app"}, "app"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_spark_is_asked(sqlite_url, arguments, field):
    fleet_jobs.app.move_to(sqlite_url)
    with pytest.raises(InvalidArgumentError, match=field) as caught:
        ps.run_fleet(None, **{"app": fleet_jobs.app, **arguments})
    assert caught.value.field in arguments
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_what_no_executor_could_use_is_refused(sqlite_url):
    with pytest.raises(InvalidArgumentError, match="belongs to one process"):
        memory = penstock.App("memory:")
        memory.job(fleet_jobs.double.function)
        ps.run_fleet(None, memory)
    with pytest.raises(InvalidArgumentError, match="no handlers"):
        ps.run_fleet(None, penstock.App(sqlite_url))
    limited = penstock.App(sqlite_url)
    limited.job(memory=10**8)(fleet_jobs.double.function)
    with pytest.raises(InvalidArgumentError, match="limits"):
        ps.run_fleet(None, limited, isolation="thread")


@pytest.fixture
def invoke(spark, monkeypatch):
    """Runs the command on the session of these tests."""

    @contextmanager
    def this_session(_master):
        yield spark

    monkeypatch.setattr(importlib.import_module("penstock.cli.fleet"), "spark_session", this_session)
    return lambda *arguments: CliRunner().invoke(cli, ["fleet", "tests.spark.fleet_jobs:app", *arguments])


def test_the_command_runs_a_fleet_and_reports_its_figures(invoke, sqlite_app):
    fleet_jobs.double.submit_many([{"number": number} for number in range(5)])
    arguments = ("--url", sqlite_app.url, "--tasks", "1", "--isolation", "thread")
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["completed"], report["failed"], report["tasks"]) == (5, 0, 1)
    again = invoke(*arguments, "--types", "double,never", "--tags", "none", "--max-seconds", "0")
    assert again.stdout.startswith("0 jobs completed, 0 attempts failed, 1 of 1 tasks, ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:app"], "no module 'nowhere'"),
        (["tests.spark.fleet_jobs:app", "--url", "memory:"], "cannot use memory:"),
        (["tests.spark.fleet_jobs:app", "--tasks", "0"], "--tasks"),
        (["tests.spark.fleet_jobs:app", "--max-seconds", "-1"], "max"),
        (["tests.spark.fleet_jobs:app", "--py-file", "gone.py"], "there is no file gone.py"),
        (["tests.spark.fleet_jobs:app", "--types", "xx"], "'xx'"),
        (["tests.spark.fleet_jobs:app", "--grace", "soon"], "grace"),
    ],
)
def test_what_is_wrong_with_the_command_is_said_before_spark_starts(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["penstock.cli.fleet"], "spark_session", pytest.fail)
    try:
        assert run(["fleet", *arguments]) == 2
    finally:
        fleet_jobs.app.url = None
    assert words in capsys.readouterr().err
