"""The command line: `penstock <command>`, one module a command.

A command is a function with annotated options (typer); it is added to `COMMANDS` by its name. Its docstring is its help,
with a section "Examples:". What is around it stands in modules of their own: variables and the file (`_command`,
`_settings`), the store (`_store`), what is printed (`_output`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from penstock.cli._command import Command, Group, adopt
from penstock.cli._output import emit, fail, note
from penstock.cli._settings import SETTINGS_KEY, read_settings
from penstock.cli.archive import archive
from penstock.cli.audit import audit
from penstock.cli.bench import bench
from penstock.cli.blocking import block, unblock
from penstock.cli.changing import cancel, delete, redrive
from penstock.cli.doctor import doctor
from penstock.cli.fleet import fleet
from penstock.cli.journal import journal
from penstock.cli.listing import list_jobs
from penstock.cli.metrics import metrics
from penstock.cli.migrate import migrate
from penstock.cli.pipeline import pipeline
from penstock.cli.report import ReportCommand, report
from penstock.cli.show import show
from penstock.cli.stats import stats
from penstock.cli.submit import SubmitCommand, submit
from penstock.cli.top import top
from penstock.cli.version import version, version_line
from penstock.cli.worker import worker
from penstock.errors import InvalidArgumentError, PenstockError

__all__ = ["COMMANDS", "EXIT_CODES", "GROUPS", "app", "main", "run"]

COMMANDS: Final[dict[str, Callable[..., Any]]] = {
    "worker": worker,
    "submit": submit,
    "list": list_jobs,
    "show": show,
    "stats": stats,
    "journal": journal,
    "cancel": cancel,
    "redrive": redrive,
    "delete": delete,
    "block": block,
    "unblock": unblock,
    "top": top,
    "doctor": doctor,
    "metrics": metrics,
    "bench": bench,
    "fleet": fleet,
    "archive": archive,
    "audit": audit,
    "report": report,
    "version": version,
}
GROUPS: Final[dict[str, typer.Typer]] = {"migrate": migrate, "pipeline": pipeline}

#: What a command can exit with, and when.
EXIT_CODES: Final[dict[int, str]] = {
    0: "done",
    1: "it failed: the store is away or refuses, a job that was asked for does not exist or did not succeed, "
    "an audit or the doctor found something",
    2: "a mistake in the command, its input or its settings, such as an unknown option, malformed JSON, a url that "
    "names no store or an extra that is not installed; nothing was done",
    130: "interrupted (Ctrl-C)",
    141: "whoever read its output went away, such as `head`",
}

OWN_PARSING: Final = {"submit": SubmitCommand, "report": ReportCommand}

app = typer.Typer(
    name="penstock",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in COMMANDS.items():
    app.command(_name, cls=OWN_PARSING.get(_name, Command))(_command)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)
adopt(app)


def _show_version(value: bool) -> None:
    if value:
        emit(version_line())
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="PENSTOCK_CONFIG",
            help="Settings; else penstock.toml in this folder, or [tool.penstock] of its pyproject.toml.",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001  # done by its callback
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A durable job queue on SQLite or PostgreSQL."""
    if ctx.meta.get("penstock.wants_help"):
        return  # help must not depend on a file that may be what is wrong
    found = read_settings(
        config,
        ctx.command,
        lambda command, path: typer.Context(command, info_name=path[-1], parent=ctx),
    )
    ctx.meta[SETTINGS_KEY] = found
    ctx.default_map = found.defaults


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments, by default the process's own, and return the exit code.

    What a user did wrong is one line on stderr; a traceback is a fault of ours.
    """
    if sys.stdout is None:  # closed, as by `>&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for as long as the process lives
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that knows no letters beyond ASCII gets their numbers
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        with command.make_context("penstock", given or ["--help"]) as ctx:
            command.invoke(ctx)
        sys.stdout.flush()
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except typer.TyperException as error:
        return _misused(error)
    except InvalidArgumentError as error:
        fail(str(error))
        return 2
    except PenstockError as error:
        fail(_reasons(error))
        return 1
    except BrokenPipeError:  # `penstock … | head`
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return 1
    return 0


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(run())


def _misused(error: Any) -> int:
    """Say what is wrong with the arguments, in one line, and where to find help."""
    ctx = getattr(error, "ctx", None)
    if (
        type(error).__name__ == "NoArgsIsHelpError"
    ):  # a group without a command: the message is the help itself
        note(error.format_message()) if ctx is None else sys.stderr.write(f"{ctx.get_help()}\n")
        return 2
    path = "penstock" if ctx is None else " ".join(["penstock", *_path(ctx)])
    fail(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return int(error.exit_code)


def _path(ctx: Any) -> list[str]:
    return [] if ctx.parent is None else [*_path(ctx.parent), ctx.info_name]


def _reasons(error: PenstockError) -> str:
    """Return an error's text; of several that came together, each one's."""
    parts = getattr(error, "exceptions", None)
    return str(error) if parts is None else "; ".join(str(part) for part in parts)
