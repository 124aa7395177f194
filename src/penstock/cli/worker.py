"""`penstock worker`: run an app's jobs."""

from __future__ import annotations

import contextlib
import os
import threading
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from penstock.backends.drivers import default_url
from penstock.cli._loading import AppName, AppUrl, load_shared_app
from penstock.cli._logs import LEVELS, log_everything, log_to_stderr
from penstock.cli._processes import run_processes
from penstock.cli._settings import DURATION
from penstock.cli._store import CONNECT_TIMEOUT, ConnectTimeout, connect_options
from penstock.cli._values import as_duration, listed
from penstock.errors import InvalidArgumentError
from penstock.worker import Worker
from penstock.worker.signals import stopping_on_signals

__all__ = ["IsolationChoice", "tags_option", "types_option", "worker"]


class IsolationChoice(StrEnum):
    """Where jobs run."""

    PROCESS = "process"
    THREAD = "thread"


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


def tags_option(variable: str | None = None) -> Any:
    """Return the option --tags of a command that claims jobs."""
    return typer.Option(
        "--tags",
        "-t",
        metavar="TAG",
        envvar=variable,
        help="Claim only jobs that have all of these tags. Use a,b or repeat the option.",
        show_default=False,
    )


def types_option(variable: str | None = None) -> Any:
    """Return the option --type of a command that claims jobs."""
    return typer.Option(
        "--type",
        metavar="TYPE",
        envvar=variable,
        help="Claim only jobs of these types. Use a,b or repeat the option. Default: all types of the app.",
        show_default=False,
    )


def worker(
    app: AppName,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            "-c",
            envvar="PENSTOCK_CONCURRENCY",
            help="The number of jobs that run at a time.",
        ),
    ] = 4,
    prefetch: Annotated[
        int,
        typer.Option(
            envvar="PENSTOCK_PREFETCH",
            help="Jobs to claim before a slot is free; useful for very short jobs.",
        ),
    ] = 0,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", "-p", envvar="PENSTOCK_PROCESSES", help="The number of worker processes to run."
        ),
    ] = 1,
    tags: Annotated[list[str] | None, tags_option("PENSTOCK_TAGS")] = None,
    types: Annotated[list[str] | None, types_option("PENSTOCK_TYPES")] = None,
    isolation: Annotated[
        IsolationChoice,
        typer.Option(
            envvar="PENSTOCK_ISOLATION",
            help="Where a job runs: a process of its own, or a thread of the worker.",
        ),
    ] = IsolationChoice.PROCESS,
    grace: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_GRACE",
            metavar=DURATION,
            help="How long running jobs may continue after the first SIGTERM.",
        ),
    ] = "30s",
    stop_grace: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_STOP_GRACE",
            metavar=DURATION,
            help="How long a job may take to stop after a timeout or a cancellation.",
        ),
    ] = "5s",
    url: AppUrl = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when no job is ready, running or waiting for a retry.")
    ] = False,
    log_level: Annotated[
        str, typer.Option(envvar="PENSTOCK_LOG_LEVEL", help=f"One of {', '.join(LEVELS)}.")
    ] = "info",
    log_format: Annotated[
        LogFormat,
        typer.Option(envvar="PENSTOCK_LOG_FORMAT", help="Plain lines, or one JSON object per line."),
    ] = LogFormat.TEXT,
    stop_on_eof: Annotated[bool, typer.Option("--stop-on-eof", hidden=True)] = False,
    started_fd: Annotated[int | None, typer.Option("--started-fd", hidden=True)] = None,
) -> None:
    """Run the jobs of an app until SIGTERM or Ctrl-C.

    After the first signal, running jobs may finish within the grace, and the exit code is 0. A second signal releases them at once.

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
    # Before and after the worker runs, which handles signals itself, there are no jobs to release.
    with stopping_on_signals(lambda: os._exit(0)):
        found = load_shared_app(app, url)
        limit = connect_options(found.url or default_url(), connect_timeout)
        if (
            connect_timeout != CONNECT_TIMEOUT
        ):  # which is the store's own default, and only for the first connection
            found.move_to(found.url, **limit)
        made = Worker(
            found,
            concurrency,
            prefetch,
            isolation=isolation.value,
            grace=as_duration(grace, "--grace"),
            stop_grace=as_duration(stop_grace, "--stop-grace"),
            tags=listed(tags),
            types=listed(types) or None,
        )
        log_everything(handler, log_level, made.name)
        if processes != 1:
            run_processes(processes, until_idle=until_idle)
        if started_fd is not None:
            made.on_started = partial(_announce_start, started_fd)
        if stop_on_eof:
            threading.Thread(target=_stop_at_eof, args=(made,), daemon=True).start()
        try:
            made.run(until_idle=until_idle)
        finally:
            found.close()


def _announce_start(descriptor: int) -> None:
    """Notify the parent of `--processes` that this worker claims jobs."""
    with contextlib.suppress(OSError):  # the parent has ended, which closes stdin too
        os.write(descriptor, b"1")
        os.close(descriptor)


def _stop_at_eof(made: Worker) -> None:
    """Release all jobs and end when the parent has ended, which closes stdin.

    The second `stop` skips the grace: no parent is left that could end this process.
    """
    while os.read(0, 1):
        continue
    made.stop()
    made.stop()
