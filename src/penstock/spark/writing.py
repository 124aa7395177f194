"""`write`: store a DataFrame as jobs and return a report, which `DataFrame.write` does not."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
from pyspark.sql import DataFrame

from penstock.errors import BackendError, invalid
from penstock.spark._report import Report
from penstock.spark._session import register
from penstock.spark.sink import Written
from penstock.spark.stores import store_at

__all__ = ["WriteReport", "write"]


class WriteReport(Report, frozen=True):
    """What a write did.

    Attributes:
        added: rows that became jobs.
        skipped: rows whose id or idempotency key was stored already.
        seconds: how long it took.
    """

    added: int
    skipped: int
    seconds: float


def write(
    frame: DataFrame,
    url: str,
    *,
    ids: Literal["generate"] | None = None,
    atomic: bool = True,
    staging_dir: str | None = None,
) -> WriteReport:
    """Store the rows of a DataFrame as jobs, as `frame.write.format("penstock")` does, and return how many were added.

    Args:
        frame: with the columns of the sink.
        url: the store.
        ids: "generate": rows without `id` and `idempotency_key` get random ids.
        atomic: False: publish in portions; required above 1,000,000 rows.
        staging_dir: SQLite: a folder that driver and executors share, for rows that are not published yet.

    Raises:
        InvalidArgumentError: wrong arguments.
        BackendError: the rows were written, but Spark's driver runs on another machine and could not report.
        PySparkException: the write was refused or failed; its text says why.
    """
    if not hasattr(frame, "write"):
        raise invalid("frame", "a DataFrame", frame)
    options: dict[str, Any] = {"ids": ids, "stagingDir": staging_dir, "atomic": atomic}
    began = time.monotonic()
    register(frame.sparkSession)
    with tempfile.TemporaryDirectory(prefix="penstock-write-") as folder:
        file = Path(folder) / "report.json"
        writer = frame.write.format("penstock").option("url", store_at(url).url)
        for name, value in options.items():
            if value is not None:
                writer = writer.option(name, value)
        writer.option("reportFile", str(file)).mode("append").save()
        try:
            written = msgspec.json.decode(file.read_bytes(), type=Written)
        except FileNotFoundError as error:
            raise BackendError(
                "the rows were written, but Spark's driver runs on another machine and could not report how many"
            ) from error
    return WriteReport(written.added, written.skipped, time.monotonic() - began)
