"""The command line: `penstock <command>`, one module a command.

A command is a function with annotated options (typer); it is added to `COMMANDS` by its name. What a user did wrong is one
line on stderr and exit code 2; what failed is one line and exit code 1.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import typer

from penstock.cli.archive import archive
from penstock.cli.audit import audit
from penstock.cli.pipeline import pipeline
from penstock.cli.report import report
from penstock.cli.version import version
from penstock.cli.worker import worker
from penstock.errors import InvalidArgumentError, PenstockError

__all__ = ["COMMANDS", "GROUPS", "app", "main"]

COMMANDS: Final[dict[str, Callable[..., Any]]] = {
    "archive": archive,
    "audit": audit,
    "report": report,
    "version": version,
    "worker": worker,
}
GROUPS: Final[dict[str, typer.Typer]] = {"pipeline": pipeline}

app = typer.Typer(
    name="penstock",
    help="A durable job queue on SQLite or PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


@app.callback()
def _root() -> None:
    """Keep `penstock` a group, however many commands it has."""


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        app()
    except InvalidArgumentError as error:
        _fail(str(error), 2)
    except PenstockError as error:
        _fail(str(error), 1)
    except BrokenPipeError:  # `penstock … | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    print(f"penstock: {message}", file=sys.stderr)  # noqa: T201  # this is what a command line does
    sys.exit(code)
