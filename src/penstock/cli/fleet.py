"""`penstock fleet`: run an app's jobs on Spark executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.app import App
from penstock.backends.drivers import default_url, driver_for, open_backend
from penstock.backends.engine import arguments
from penstock.cli._loading import AppName, AppUrl, load_shared_app
from penstock.cli._output import emit, emit_json, stderr_console
from penstock.cli._settings import DURATION
from penstock.cli._spark import Master, spark_session
from penstock.cli._store import CONNECT_TIMEOUT, AsJson, ConnectTimeout, connect_options
from penstock.cli._text import counted
from penstock.cli._values import as_duration, as_seconds, listed
from penstock.cli.worker import IsolationChoice, tags_option, types_option
from penstock.errors import InvalidArgumentError
from penstock.job import JobStats
from penstock.worker.arguments import checked_tasks

__all__ = ["fleet"]


def fleet(
    app: AppName,
    tasks: Annotated[
        int,
        typer.Option(
            "--tasks", "-n", min=1, max=1000, help="The number of Spark tasks; each one is a worker."
        ),
    ] = 8,
    capacity: Annotated[
        int, typer.Option("--capacity", "-c", min=1, max=1000, help="Jobs that each task runs at a time.")
    ] = 4,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle/--forever", help="End when no job is left to run, or only when the time is over."
        ),
    ] = True,
    max_seconds: Annotated[
        str, typer.Option(metavar=DURATION, help="How long to claim jobs; 0 is no limit.")
    ] = "10m",
    tags: Annotated[list[str] | None, tags_option()] = None,
    types: Annotated[list[str] | None, types_option()] = None,
    isolation: Annotated[
        IsolationChoice, typer.Option(help="Where a job runs: a process of its own, or a thread of the task.")
    ] = IsolationChoice.PROCESS,
    grace: Annotated[
        str, typer.Option(metavar=DURATION, help="How long running jobs may continue when the fleet ends.")
    ] = "10s",
    py_file: Annotated[
        list[str] | None,
        typer.Option(
            "--py-file",
            metavar="FILE",
            help="A .py, .zip or .egg file to send to the executors; may be repeated.",
        ),
    ] = None,
    url: AppUrl = None,
    master: Master = None,
    as_json: AsJson = False,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
) -> None:
    """Run the jobs of an app on Spark: each Spark task is a worker.

    It ends when no job is left to run, when the time is over, or with SIGTERM or Ctrl-C. Running jobs may then finish
    within the grace; a second signal stops them at once.

    Examples:
        penstock fleet shop.jobs:app
        penstock fleet shop.jobs:app --master spark://host:7077 --tasks 32 --py-file shop.zip
        penstock fleet shop.jobs:app --forever --max-seconds 8h
    """
    seconds = as_seconds(max_seconds, "max_seconds") or None
    found = load_shared_app(app, url)
    missing = [file for file in py_file or () if not Path(file).is_file()]
    if missing:
        raise InvalidArgumentError(f"--py-file: there is no file {', '.join(missing)}", field="py_file")
    # Checked before Spark starts, which takes seconds.
    grace_period = as_duration(grace, "grace")
    checked_tasks(found, listed(types) or None, isolation.value)
    arguments.tags(listed(tags))
    _check_server(found, connect_timeout)
    with spark_session(master) as spark, _status() as progress:
        from penstock.spark import run_fleet  # noqa: PLC0415  # needs Spark

        if py_file:
            spark.addArtifacts(*py_file, pyfile=True)
        report = run_fleet(
            spark,
            found,
            tasks,
            capacity,
            until_idle,
            seconds,
            isolation=isolation.value,
            grace=grace_period,
            types=listed(types) or None,
            tags=listed(tags),
            progress=progress,
        )
    if as_json:
        emit_json(msgspec.structs.asdict(report))
    else:
        emit(
            f"{counted(report.completed, 'job')} completed, {counted(report.failed, 'attempt')} failed, "
            f"{report.tasks} of {tasks} tasks, {report.seconds:.1f} s"
        )


def _check_server(app: App, connect_timeout: str) -> None:
    """Open and close the app's store if it is on a server, so that one that does not answer is refused at once."""
    connection = app.connection()
    url = connection["url"] or default_url()
    if driver_for(url).is_server:
        open_backend(**connection | connect_options(url, connect_timeout)).close()


@contextmanager
def _status() -> Iterator[Callable[[JobStats], None]]:
    """Show the counts of the store on a terminal."""
    with stderr_console().status("Starting tasks") as status:

        def show(stats: JobStats) -> None:
            status.update(
                f"{stats.pending_jobs + stats.failed_jobs} waiting, {stats.running_jobs} running, "
                f"{stats.completed_jobs} completed, {stats.stopped_jobs} stopped"
            )

        yield show
