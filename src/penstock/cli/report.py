"""`penstock report`: the history of a queue from a lake, as a page and as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli._command import Command
from penstock.cli._output import note, stderr_console
from penstock.cli._spark import Master, check_places, spark_session
from penstock.errors import InvalidArgumentError

__all__ = ["ReportCommand", "report"]


class ReportCommand(Command):
    """Accepts `--json` without a file; the numbers then go to stdout."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for place, word in enumerate(args):
            given.append(word)
            if word == "--json" and not _is_value(args[place + 1 : place + 2]):
                given.append("-")
        return super().parse_args(ctx, given)


def _is_value(words: list[str]) -> bool:
    return bool(words) and (words[0] == "-" or not words[0].startswith("-"))


def report(
    lake: Annotated[
        Path, typer.Option("--lake", "-l", envvar="PENSTOCK_LAKE", help="The folder of the lake.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the page to this file, such as report.html.")
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the numbers to this file as JSON; without a file, or with -, to stdout.",
        ),
    ] = None,
    master: Master = None,
) -> None:
    """Write a page with plots about the jobs in a lake.

    It shows throughput, waiting times, failures, workers, slow jobs and flows.

    Examples:
        penstock report --lake lake --out report.html
        penstock report --lake lake --json
    """
    if out is None and json_file is None:
        raise InvalidArgumentError(
            "name a file to write: --out report.html, --json FILE, or both", field="out"
        )
    for path in (out, json_file):
        if path is not None and str(path) != "-" and not Path(path).absolute().parent.is_dir():
            raise InvalidArgumentError(f"there is no folder for {path}", field="out", value=str(path))
    check_places(lake)
    with spark_session(master) as spark:
        from penstock.spark.lake.files import write_as  # noqa: PLC0415  # needs Spark
        from penstock.spark.lake.manifest import LakeFolder  # noqa: PLC0415  # the same
        from penstock.spark.reporting import report_figures, report_page  # noqa: PLC0415  # the same

        with stderr_console().status("Reading the lake"):
            figures = report_figures(spark, lake)
    if json_file is not None:
        text = json.dumps(figures, ensure_ascii=False, indent=1)
        if json_file == "-":
            typer.echo(text)
        else:
            write_as(LakeFolder(lake).mode, Path(json_file), text + "\n")
    if out is not None:
        write_as(LakeFolder(lake).mode, out, report_page(figures))
        note(f"Open {out}")
