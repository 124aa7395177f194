"""The Java process of a session: started here, and ended in every case.

PySpark can start it, too. But when PySpark is interrupted while it waits for Java, it removes the folder of the file into
which Java is about to write its port: Java's main thread then fails, its other threads go on, and the process never ends.

How the process ends:

    the start is interrupted or fails     its process group is ended here, before the error is raised
    this process exits                    likewise, by `atexit`
    this process is killed                Java reads its standard input, a pipe from this process, and exits at its end.
                                          The folder for its answer is kept, so that its main thread gets that far.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.spark._settings import environment

__all__ = ["JavaProcess", "end_java", "has_java", "java_started", "without_signals"]

_POLL_SECONDS: Final = 0.05
#: A start takes seconds, or minutes if packages are downloaded or the machine is busy.
_START_SECONDS: Final = 600.0
#: How long to wait for Java to exit by itself, and then after SIGTERM.
_EXIT_SECONDS: Final = 10.0
_TERM_SECONDS: Final = 5.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_RUNNING: list[JavaProcess] = []
#: Set while the process is ended, and afterwards until the next one starts.
_ENDING: Final = threading.Event()


@contextlib.contextmanager
def java_started(settings: Mapping[str, str]) -> Iterator[None]:
    """Start Java for the session that the block creates, unless one runs; end it if the block raises.

    Raises:
        PenstockError: Java ended instead of answering.
    """
    if has_java() or os.name == "nt":
        yield
        return
    with without_signals():
        java = JavaProcess(settings)
        _RUNNING.append(java)
        _ENDING.clear()
        logging.getLogger().addFilter(_is_no_echo)  # once, however often it is added
    try:
        java.connect()
        yield
    except BaseException:
        # With SIGKILL: Java prints a stack trace when it is asked to exit during its start.
        end_java(term_seconds=0.0)
        raise


def has_java() -> bool:
    """Return whether this process is connected to a Java process, started here or by PySpark."""
    return SparkContext._gateway is not None  # noqa: SLF001 - there is no public way


def end_java(term_seconds: float = _TERM_SECONDS) -> None:
    """End the Java process that was started here, and reset PySpark, so that the next session starts another.

    Args:
        term_seconds: how long to wait after SIGTERM, before SIGKILL.
    """
    if not _RUNNING:
        return
    with without_signals():
        _stop_finalizer()
        while _RUNNING:
            _RUNNING.pop().end(term_seconds=term_seconds)
        _forget_gateway()


class JavaProcess:
    """A Java process that runs Spark's driver, in its own process group, so that Ctrl-C in a terminal does not reach it.

    Attributes:
        process: Spark's launcher, which replaces itself by Java.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-java-"))
        self._owner = os.getpid()
        self._answer = self._folder / "answer"
        home = Path(_find_spark_home())
        command = [str(home / "bin" / "spark-submit")]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        self.process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - Spark's own launcher
            command,
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._answer),
            },
            start_new_session=True,
        )

    def connect(self) -> None:
        """Wait until Java has written its port, and connect PySpark to it."""
        port, secret = self._wait()
        with environment("PYSPARK_GATEWAY_PORT", str(port)), environment("PYSPARK_GATEWAY_SECRET", secret):
            gateway = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark has no types here
        gateway.proc = self.process
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as PySpark does for its own process
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> tuple[int, str]:
        until = time.monotonic() + _START_SECONDS
        while not self._answer.is_file():
            code = self.process.poll()
            if code is not None:
                raise PenstockError(
                    f"Spark could not be started: Java ended with exit code {code}; its output above may say more"
                )
            if time.monotonic() > until:
                raise PenstockError(
                    f"Spark could not be started: Java did not answer in {_START_SECONDS:.0f} s"
                )
            time.sleep(_POLL_SECONDS)
        with self._answer.open("rb") as file:
            port = int(read_int(file))  # type: ignore[no-untyped-call]  # the same
            secret = str(UTF8Deserializer().loads(file))  # type: ignore[no-untyped-call]  # the same
            return port, secret

    def end(self, *, exit_seconds: float = 0.0, term_seconds: float = _TERM_SECONDS) -> None:
        """End the process and its children, and wait until they have ended.

        Args:
            exit_seconds: how long to wait for it to exit by itself, after its standard input was closed.
            term_seconds: how long to wait after SIGTERM, before SIGKILL.
        """
        if self._owner != os.getpid():  # in a forked copy: the parent owns the process
            return
        if term_seconds:
            self._close_pipe()
            if not self._has_ended(exit_seconds):
                self._signal(signal.SIGTERM)
                self._has_ended(term_seconds)
        # Also if the first process has ended: until it is waited for, its group keeps its id.
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._close_pipe()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_pipe(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def _has_ended(self, seconds: float) -> bool:
        """Wait until the process has ended, without reaping it."""
        if self.process.returncode is not None:
            return True
        until = time.monotonic() + seconds
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, self.process.pid, flags) is None:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _signal(self, number: int) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


@contextlib.contextmanager
def without_signals() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    before: dict[int, Any] = {
        number: signal.signal(number, lambda *signalled: received.append(signalled)) for number in _SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if received:
            signal.raise_signal(received[0][0])


def _forget_gateway() -> None:
    """Reset PySpark's globals, which refer to a process that has ended."""
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.close()


def _stop_finalizer() -> None:
    """Keep py4j from sending the objects that Python has freed to a process that is about to end.

    A thread of py4j does that at any time. One command may be under way: Java's end interrupts it, and py4j logs that as
    an error of the root logger, with a traceback.
    """
    _ENDING.set()
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way
    if gateway is not None:
        client = gateway._gateway_client  # noqa: SLF001 - the same
        client.is_connected = False
        client.finalizer_deque.clear()


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is something else than a command that Java's end has interrupted."""
    return record.module != "java_gateway" or not _ENDING.is_set()


@atexit.register
def _end_at_exit() -> None:
    with without_signals():
        if _RUNNING:
            _stop_finalizer()
        while _RUNNING:
            _RUNNING.pop().end(exit_seconds=_EXIT_SECONDS)
