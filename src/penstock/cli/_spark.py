"""What the commands that need Spark have in common. Spark is imported when one of them runs, never before."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from penstock.cli._output import stderr_console
from penstock.cli._store import open_store
from penstock.connection import default_url
from penstock.errors import BackendError, InvalidArgumentError, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Master", "Urls", "check_places", "spark_session", "urls_or_default"]

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


def check_places(lake: Path | None = None, urls: Sequence[str] = ()) -> None:
    """Refuse what is not there before Spark is started for it, which takes many seconds.

    Raises:
        InvalidArgumentError: there is no lake, or no store, or the extra is not installed.
        BackendError: one of them is too new for this code, or damaged.
    """
    with _extra():
        from penstock.spark import session  # noqa: F401, PLC0415  # says what is missing
        from penstock.spark.lake._manifest import LakeFolder  # noqa: PLC0415  # seconds, and an extra
    if lake is not None:
        LakeFolder(lake).check()
    for url in urls:
        try:
            with open_store(url):
                pass
        except BackendError as error:
            if not error.retryable:  # a store that is away may be back when Spark is up
                raise


@contextmanager
def spark_session(master: str | None) -> Iterator[SparkSession]:
    """Start Spark for one command.

    Raises:
        InvalidArgumentError: the extra is not installed.
        PenstockError: there is no Java, or it went away.
    """
    with _extra():
        from penstock.spark import session  # noqa: PLC0415  # seconds, and an extra
    with stderr_console().status("Starting Spark"):
        spark = session(master)
    try:
        with _quiet_interrupts():
            yield spark
    except Exception as error:
        if type(error).__name__ != "Py4JNetworkError":
            raise
        raise PenstockError("Spark has gone away: was its process ended?") from error
    finally:
        with suppress(Exception):  # what is gone need not be stopped: a signal may have reached Java too
            spark.stop()


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Keep the bridge to Java from logging Ctrl-C as an error, with its traceback; other warnings are shown as ever."""
    if logging.root.handlers:
        yield
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not (record.name.startswith("py4j") or _is_interrupt(record)))
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)


def _is_interrupt(record: logging.LogRecord) -> bool:
    return record.exc_info is not None and isinstance(record.exc_info[1], KeyboardInterrupt)


@contextmanager
def _extra() -> Iterator[None]:
    """Name the extra, if it is missing."""
    try:
        yield
    except ImportError as error:
        raise InvalidArgumentError(str(error)) from error
