"""What Spark says when something failed: what a person wants to read of it, and whether rows are to blame."""

from __future__ import annotations

import re
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from penstock.errors import InvalidArgumentError, shown

__all__ = ["check_running", "is_of_tasks", "is_stopped", "short"]

#: Where the errors of the JVM, or of a Connect server, are defined. Those that Python itself raises lie elsewhere.
_OF_SPARK: Final = ("pyspark.errors.exceptions.captured", "pyspark.errors.exceptions.connect")
#: What a job says that did not come to its end for a reason outside of its rows.
_OUTSIDE: Final = re.compile(
    r"ExecutorLostFailure|SPARK_JOB_CANCELLED|OPERATION_CANCELED|Job \S+ cancelled|SparkContext was shut down"
)
#: Where Spark's words begin after those of the layers around it.
_CAUSE: Final = "most recent failure: "
#: What the bridge to Java says first, whatever happened.
_CALLING: Final = "An error occurred while calling "


def is_of_tasks(error: BaseException) -> bool:
    """Return whether tasks failed while they worked on rows.

    Not so if the plan is wrong, if somebody cancelled the job or stopped the session, or if an executor or the JVM is
    lost: then no row is to blame.
    """
    if isinstance(error, AnalysisException):
        return False
    is_spark = isinstance(error, PySparkException) and type(error).__module__ in _OF_SPARK
    return (is_spark or isinstance(error, Py4JJavaError)) and not _OUTSIDE.search(str(error))


def short(error: BaseException) -> str:
    """Return the last line of a Python traceback in Spark's message, else what the last task said, else its first line."""
    text = str(error).partition("JVM stacktrace:")[0]  # what Connect adds
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [
        line for line in lines if not line.startswith(("at ", "File ", "Driver stacktrace", "...", _CALLING))
    ]
    python = [
        line for line in told if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))
    ]
    tasks = [line.partition(_CAUSE)[2].partition("): ")[2] for line in told if _CAUSE in line]
    chosen: Any = (python or [each for each in tasks if each] or told or ["a task failed"])[0]
    return str(chosen).removeprefix(": ").removeprefix("org.apache.spark.SparkException: ")[:2000]


def is_stopped(spark: Any) -> bool:
    """Return whether a session is over; of a session on Connect that is not known here."""
    context = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None  # noqa: SLF001 - told nowhere else


def check_running(spark: Any) -> None:
    """Refuse what is no session, or one that is over.

    Raises:
        InvalidArgumentError: says which.
    """
    if not callable(getattr(spark, "createDataFrame", None)):
        raise InvalidArgumentError(f"spark must be a SparkSession, got {shown(spark)}", field="spark")
    if is_stopped(spark):
        raise InvalidArgumentError("spark is a session that was stopped; start another one", field="spark")
