"""Helpers of the commands that need Spark, which is imported only when one of them runs."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from penstock.backends.drivers import default_url
from penstock.cli._output import stderr_console
from penstock.cli._store import CONNECT_TIMEOUT, Store
from penstock.errors import InvalidArgumentError, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Master", "Urls", "check_places", "spark_session", "urls_or_default"]

Urls: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--url", "-u", help="A store; may be repeated. Default: $PENSTOCK_URL, else sqlite:///penstock.db."
    ),
]
Master: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="PENSTOCK_SPARK_MASTER",
        help="The Spark master, such as spark://host:7077. Default: this machine.",
    ),
]


def urls_or_default(urls: list[str] | None) -> list[str]:
    return urls or [default_url()]


def check_places(
    lake: Path | None = None,
    urls: Sequence[str] = (),
    *,
    connect_timeout: str = CONNECT_TIMEOUT,
    makes_lake: bool = False,
) -> None:
    """Check a lake and stores before Spark starts, which takes many seconds.

    Args:
        lake: the folder of a lake.
        urls: stores.
        connect_timeout: how long to try to connect to a server.
        makes_lake: the folder may be empty or missing.

    Raises:
        InvalidArgumentError: there is no lake, or no store, or the extra is not installed.
        BackendError: one of them is too new for this code, damaged, or does not answer.
    """
    with _extra():
        from penstock.spark import session  # noqa: F401, PLC0415  # raises if the extra is missing
        from penstock.spark.lake.manifest import LakeFolder  # noqa: PLC0415  # seconds, and an extra
    if lake is not None and makes_lake:
        LakeFolder(lake).check_usable()
    elif lake is not None:
        LakeFolder(lake).check()
    for url in urls:
        with Store(url, connect_timeout).open():
            pass


@contextmanager
def spark_session(master: str | None) -> Iterator[SparkSession]:
    """Start Spark for one command, and end its Java process however the command ends.

    Raises:
        InvalidArgumentError: the extra is not installed.
        PenstockError: there is no Java, or its process ended.
    """
    with _extra():
        from penstock.spark import session  # noqa: PLC0415  # seconds, and an extra
        from penstock.spark.gateway import end_java, has_java  # noqa: PLC0415  # the same
    is_own = not has_java()  # the calling program may have a session
    with _quiet_interrupts(), _ending_on_sigterm():
        try:
            with stderr_console().status("Starting Spark"):
                spark = session(master)
            with _plain_interrupts():
                yield spark
                with suppress(Exception):  # it may have ended already
                    spark.stop()
        except Exception as error:
            if type(error).__name__ != "Py4JNetworkError":
                raise
            raise PenstockError("the connection to Spark is lost: did its Java process end?") from error
        finally:
            if is_own:
                end_java()


class _TerminatedError(BaseException):
    """SIGTERM was received."""


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Unwind the command on SIGTERM, so that its Java process is ended, and then end by the signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    except _TerminatedError:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt and do nothing else.

    PySpark's own handler first asks Java to cancel its jobs. It may interrupt another request, which then fails with a
    traceback; the Java process is ended anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Do not log the errors of py4j, the bridge to Java, on Ctrl-C: they are also raised.

    Some of them go to the root logger.
    """
    if logging.root.handlers:
        yield
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not ("py4j" in Path(record.pathname).parts or _is_interrupt(record)))
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)


def _is_interrupt(record: logging.LogRecord) -> bool:
    return record.exc_info is not None and isinstance(record.exc_info[1], KeyboardInterrupt)


@contextmanager
def _extra() -> Iterator[None]:
    """Turn the ImportError of a missing extra into an argument error."""
    try:
        yield
    except ImportError as error:
        raise InvalidArgumentError(str(error)) from error
