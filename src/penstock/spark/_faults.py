"""Errors of Spark: the part of a message that helps, and whether tasks failed on their rows."""

from __future__ import annotations

import re
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from penstock.errors import InvalidArgumentError, invalid

__all__ = ["check_running", "is_of_tasks", "is_stopped", "short"]

#: Modules that define the errors of the JVM and of a Connect server; errors raised in Python are in other modules.
_OF_SPARK: Final = ("pyspark.errors.exceptions.captured", "pyspark.errors.exceptions.connect")
#: In the message of a Spark job that ended for a reason other than its rows.
_OUTSIDE: Final = re.compile(
    r"ExecutorLostFailure|SPARK_JOB_CANCELLED|OPERATION_CANCELED|Job \S+ cancelled|SparkContext was shut down"
)
#: In a message, before the error of the last failed task.
_CAUSE: Final = "most recent failure: "
#: The first line of every error of py4j.
_CALLING: Final = "An error occurred while calling "


def is_of_tasks(error: BaseException) -> bool:
    """Return whether tasks failed while they processed rows.

    False if the plan is wrong, the Spark job was cancelled, the session was stopped, or an executor or the JVM was lost:
    then no row is the cause.
    """
    if isinstance(error, AnalysisException):
        return False
    is_spark = isinstance(error, PySparkException) and type(error).__module__ in _OF_SPARK
    return (is_spark or isinstance(error, Py4JJavaError)) and not _OUTSIDE.search(str(error))


def short(error: BaseException) -> str:
    """Return the last line of the Python traceback in a message of Spark, else the last task's error, else the first line."""
    text = str(error).partition("JVM stacktrace:")[0]  # added by Connect
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    messages = [
        line for line in lines if not line.startswith(("at ", "File ", "Driver stacktrace", "...", _CALLING))
    ]
    python = [
        line
        for line in messages
        if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))
    ]
    tasks = [line.partition(_CAUSE)[2].partition("): ")[2] for line in messages if _CAUSE in line]
    chosen: Any = (python or [each for each in tasks if each] or messages or ["a task failed"])[0]
    return str(chosen).removeprefix(": ").removeprefix("org.apache.spark.SparkException: ")[:2000]


def is_stopped(spark: Any) -> bool:
    """Return whether a session was stopped; always False for Spark Connect, which does not say."""
    context = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None  # noqa: SLF001 - there is no public way


def check_running(spark: Any) -> None:
    """Refuse a value that is not a session, and a stopped session.

    Raises:
        InvalidArgumentError: it is one of these.
    """
    if not callable(getattr(spark, "createDataFrame", None)):
        raise invalid("spark", "a SparkSession", spark)
    if is_stopped(spark):
        raise InvalidArgumentError("spark is a session that was stopped; start another one", field="spark")
