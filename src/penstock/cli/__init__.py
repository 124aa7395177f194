"""The command line: `penstock <command>`, one module per command.

A command is a function with annotated options (typer) in `COMMANDS`. Its docstring is its help, with a section
"Examples:". Commands share option groups (`_store`, `_selection`), settings from variables and the settings file
(`_command`, `_parameters`, `_settings`), and printing (`_output`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from penstock.cli._command import Command, Group, add_command, name_variables, path_of
from penstock.cli._output import emit, fail, note
from penstock.cli._parameters import adopted
from penstock.cli._settings import ALIASES, read_settings
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
from penstock.cli.schedules import schedules
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
    "schedules": schedules,
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

#: The exit codes of commands, and when they occur.
EXIT_CODES: Final[dict[int, str]] = {
    0: "success",
    1: "failure: the store does not answer or refuses, a named job does not exist or did not succeed, an audit found "
    "violations, or the doctor found problems",
    2: "an error in the command, its input or its settings, such as an unknown option, malformed JSON, a url that "
    "names no store, or an extra that is not installed; nothing was done",
    130: "interrupted (Ctrl-C)",
    141: "the program that reads the output has ended, such as `head`",
}

COMPLETE_VARIABLE: Final = "_PENSTOCK_COMPLETE"
COMMAND_CLASSES: Final = {"submit": SubmitCommand, "report": ReportCommand}


class _Root(Group):
    """The root command, which reads the settings file before the arguments of a command are parsed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name_variables(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self.params = [adopted(each) for each in self.params]  # typer adds options for completion late
        rest = super().parse_args(ctx, args)
        # Neither help nor completion needs the file, which may be what is wrong.
        if {"-h", "--help"}.isdisjoint(args) and not ctx.resilient_parsing:
            ctx.obj = read_settings(ctx.params["config"], ctx)
            ctx.default_map = ctx.obj.defaults
        return rest


app = typer.Typer(
    name="penstock",
    cls=_Root,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: ALIASES.get(name, name),
    },
)
for _name, _function in COMMANDS.items():
    add_command(app, _name, _function, COMMAND_CLASSES.get(_name, Command))
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def _show_version(value: bool) -> None:
    if value:
        emit(version_line())
        raise typer.Exit


@app.callback()
def _root(
    config: Annotated[  # read by _Root
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="PENSTOCK_CONFIG",
            help="The settings file. Default: penstock.toml in this folder, or [tool.penstock] of its pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[  # read by its callback
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A durable job queue on SQLite or PostgreSQL."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments, by default those of the process, and return the exit code.

    An error of the user is one line on stderr; a traceback is an error of Penstock.
    """
    if sys.stdout is None:  # closed, as by `>&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without Unicode gets escapes
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    if os.environ.get(COMPLETE_VARIABLE):  # a shell asks for completions
        try:
            command._main_shell_completion({}, "penstock")  # noqa: SLF001  # as its own main does
        except SystemExit as end:
            return int(end.code or 0)
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
    """Print an argument error in one line, with the command that prints help."""
    ctx = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: the message is the help
        note(error.format_message()) if ctx is None else sys.stderr.write(f"{ctx.get_help()}\n")
        return 2
    path = "penstock" if ctx is None else " ".join(["penstock", *path_of(ctx)])
    fail(f"{error.format_message().rstrip('.')} (see {path} --help)")
    return int(error.exit_code)


def _reasons(error: PenstockError) -> str:
    """Return the text of an error; for a group of errors, the text of each one."""
    parts = getattr(error, "exceptions", None)
    return str(error) if parts is None else "; ".join(str(part) for part in parts)
