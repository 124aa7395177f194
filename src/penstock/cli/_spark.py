"""What the commands that need Spark have in common. Spark is imported when one of them runs, never before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from penstock.cli._output import stderr_console
from penstock.connection import default_url
from penstock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Master", "Urls", "spark_session", "urls_or_default"]

Urls: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--url", "-u", help="The store; may be given several times. Default: $PENSTOCK_URL."),
]
Master: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="PENSTOCK_SPARK_MASTER", help="Spark's master, such as spark://host:7077; else this machine."
    ),
]


def urls_or_default(urls: list[str] | None) -> list[str]:
    return urls or [default_url()]


@contextmanager
def spark_session(master: str | None) -> Iterator[SparkSession]:
    """Start Spark for one command.

    Raises:
        InvalidArgumentError: the extra is not installed.
        PenstockError: there is no Java.
    """
    try:
        from penstock.spark import session  # noqa: PLC0415  # seconds, and an extra
    except ImportError as error:
        raise InvalidArgumentError(str(error)) from error
    with stderr_console().status("Starting Spark"):
        spark = session(master)
    try:
        yield spark
    finally:
        spark.stop()
