"""`penstock worker`: run an app's jobs."""

from __future__ import annotations

import os
import threading
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli._loading import check_shared, load_app
from penstock.cli._logs import LEVELS, log_everything, log_to_stderr
from penstock.cli._processes import run_processes
from penstock.cli._values import listed
from penstock.errors import InvalidArgumentError
from penstock.worker import Worker
from penstock.worker._signals import stopping_on_signals

__all__ = ["IsolationChoice", "worker"]


class IsolationChoice(StrEnum):
    """Where jobs run."""

    PROCESS = "process"
    THREAD = "thread"


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


def worker(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", envvar="PENSTOCK_APP", help="The app, such as shop.jobs:app."),
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", envvar="PENSTOCK_CONCURRENCY", help="Jobs at a time.")
    ] = 4,
    prefetch: Annotated[
        int,
        typer.Option(
            envvar="PENSTOCK_PREFETCH", help="Jobs taken ahead of a free slot; for very short jobs."
        ),
    ] = 0,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", "-p", envvar="PENSTOCK_PROCESSES", help="Workers to run, each a process."
        ),
    ] = 1,
    tags: Annotated[
        list[str] | None,
        typer.Option(
            "--tags", "-t", envvar="PENSTOCK_TAGS", help="Only jobs that have all of these; a,b or repeated."
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(envvar="PENSTOCK_TYPES", help="Only these of the app's types; a,b or repeated."),
    ] = None,
    isolation: Annotated[
        IsolationChoice,
        typer.Option(envvar="PENSTOCK_ISOLATION", help="A process for each job, or a thread."),
    ] = IsolationChoice.PROCESS,
    grace: Annotated[
        float, typer.Option(envvar="PENSTOCK_GRACE", help="Seconds for running jobs after the first SIGTERM.")
    ] = 30.0,
    stop_grace: Annotated[
        float,
        typer.Option(envvar="PENSTOCK_STOP_GRACE", help="Seconds for a job to end when its time is over."),
    ] = 5.0,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The store, instead of the app's own; PENSTOCK_URL is for apps without one.",
            show_default=False,
        ),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when nothing is ready, running or waiting for a retry.")
    ] = False,
    log_level: Annotated[
        str, typer.Option(envvar="PENSTOCK_LOG_LEVEL", help=f"One of {', '.join(LEVELS)}.")
    ] = "info",
    log_format: Annotated[
        LogFormat,
        typer.Option(envvar="PENSTOCK_LOG_FORMAT", help="Lines to read, or a JSON object a line."),
    ] = LogFormat.TEXT,
    stop_on_eof: Annotated[bool, typer.Option("--stop-on-eof", hidden=True)] = False,
) -> None:
    """Run the jobs of an app until SIGTERM or Ctrl-C.

    The first one lets running jobs finish within the grace and exits 0; the second hands them back at once.

    Examples:
        penstock worker shop.jobs:app
        penstock worker shop.jobs:app --concurrency 8 --processes 2
        penstock worker shop.jobs:app --tags gpu --until-idle
        penstock worker shop.jobs:app --log-format json
    """
    if log_level.lower() not in LEVELS:
        raise InvalidArgumentError(
            f"--log-level must be one of {', '.join(LEVELS)}, got {log_level!r}", field="log_level"
        )
    handler = log_to_stderr(log_level, log_format.value)
    # Until the worker runs, which has its own way to stop, and after it, there is nothing to hand back.
    with stopping_on_signals(lambda: os._exit(0)):
        found = load_app(app)
        if url is not None:
            found.url = url
        check_shared(found)
        made = Worker(
            found,
            concurrency,
            prefetch,
            isolation=isolation.value,
            grace=grace,
            stop_grace=stop_grace,
            tags=listed(tags),
            types=listed(types) or None,
        )
        log_everything(handler, log_level, made.name)
        if processes != 1:
            run_processes(processes)
        if stop_on_eof:
            threading.Thread(target=_stop_at_eof, args=(made,), daemon=True).start()
        try:
            made.run(until_idle=until_idle)
        finally:
            found.close()


def _stop_at_eof(made: Worker) -> None:
    """Hand back and end when whoever started this process is gone: nothing is ever written to its stdin.

    At once, as a single worker's jobs die with it: nobody is left who could end this process.
    """
    while os.read(0, 1):
        continue
    made.stop()
    made.stop()
