"""`penstock fleet`: run an app's jobs on Spark executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli._loading import check_shared, load_app
from penstock.cli._output import counted, emit, emit_json, stderr_console
from penstock.cli._spark import Master, spark_session
from penstock.cli._store import AsJson
from penstock.cli._values import listed
from penstock.cli.worker import IsolationChoice
from penstock.errors import InvalidArgumentError
from penstock.job import JobStats

__all__ = ["fleet"]


def fleet(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", envvar="PENSTOCK_APP", help="The app, such as shop.jobs:app."),
    ],
    tasks: Annotated[
        int, typer.Option("--tasks", "-n", min=1, max=1000, help="Spark tasks, each a worker.")
    ] = 8,
    capacity: Annotated[
        int, typer.Option("--capacity", "-c", min=1, max=1000, help="Jobs at a time in each task.")
    ] = 4,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle/--forever", help="End when nothing is left to do, or go on until the time is over."
        ),
    ] = True,
    max_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds after which no job is begun; 0 is no limit.")
    ] = 600.0,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tags", "-t", help="Only jobs that have all of these; a,b or repeated."),
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option(help="Only these of the app's types; a,b or repeated.")
    ] = None,
    isolation: Annotated[
        IsolationChoice, typer.Option(help="A process for each job, or a thread of the task.")
    ] = IsolationChoice.PROCESS,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running jobs may go on when the fleet ends.")
    ] = 10.0,
    py_file: Annotated[
        list[str] | None,
        typer.Option(
            "--py-file", metavar="FILE", help="A .py, .zip or .egg file for the executors; may be repeated."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The store, instead of the app's own; PENSTOCK_URL is for apps without one.",
            show_default=False,
        ),
    ] = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Run the jobs of an app on Spark: each Spark task is a worker.

    It ends when nothing is left to do, when the time is over, or with SIGTERM or Ctrl-C. Running jobs may then finish
    within the grace; a second signal does not wait for them.

    Examples:
        penstock fleet shop.jobs:app
        penstock fleet shop.jobs:app --master spark://host:7077 --tasks 32 --py-file shop.zip
        penstock fleet shop.jobs:app --forever --max-seconds 0
    """
    found = load_app(app)
    if url is not None:
        found.url = url
    check_shared(found)
    missing = [file for file in py_file or () if not Path(file).is_file()]
    if missing:
        raise InvalidArgumentError(f"--py-file: there is no file {', '.join(missing)}", field="py_file")
    with spark_session(master) as spark, _told() as progress:
        from penstock.spark import run_fleet  # noqa: PLC0415  # needs Spark

        if py_file:
            spark.addArtifacts(*py_file, pyfile=True)
        report = run_fleet(
            spark,
            found,
            tasks,
            capacity,
            until_idle,
            max_seconds or None,
            isolation=isolation.value,
            grace=grace,
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


@contextmanager
def _told() -> Iterator[Callable[[JobStats], None]]:
    """Show on a terminal how the store is doing."""
    with stderr_console().status("Starting tasks") as status:

        def show(stats: JobStats) -> None:
            status.update(
                f"{stats.pending_jobs + stats.failed_jobs} waiting, {stats.running_jobs} running, "
                f"{stats.completed_jobs} completed, {stats.stopped_jobs} stopped"
            )

        yield show
