"""Reading tables of a lake, all as of the same batch, while another batch may be running."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import BackendError, check_known
from penstock.spark.lake._work import Work
from penstock.spark.lake.manifest import LakeFolder, Manifest
from penstock.spark.tables import LAKE_TABLES

__all__ = ["Snapshot", "read_table", "snapshot"]


class Snapshot(NamedTuple):
    """Tables as of one batch, by name, and its manifest."""

    manifest: Manifest
    tables: dict[str, DataFrame]


def read_table(spark: SparkSession, lake: str | os.PathLike[str], name: str) -> DataFrame:
    """Return a table of a lake: `events`, `attempts`, `jobs`, `hourly` or `flows`.

    The DataFrame is the table as of the latest committed batch, and stays readable for a day: files that later batches
    replace are kept that long.

    Raises:
        InvalidArgumentError: there is no such lake or table.
        BackendError: the lake was written by a newer version, or a file of the table is gone or damaged.
    """
    check_known("table of a lake", [name], LAKE_TABLES, field="name")
    return snapshot(spark, lake, [name]).tables[name]


def snapshot(spark: SparkSession, lake: str | os.PathLike[str], names: Iterable[str]) -> Snapshot:
    """Return several tables as of the same batch.

    Raises:
        InvalidArgumentError: there is no lake.
        BackendError: the lake was written by a newer version, or a file of a table is gone or damaged.
    """
    folder = LakeFolder(lake)
    folder.check()
    tables = [LAKE_TABLES[name] for name in names]
    while True:
        manifest = folder.current()
        work = Work(spark, folder, manifest)
        try:
            paths = {table.name: folder.hold(manifest, work.files(table)) for table in tables}
        except BackendError:
            if folder.current().number == manifest.number:
                raise
            # A batch has just replaced files of that manifest.
        else:
            return Snapshot(manifest, {table.name: work.frame(table, paths[table.name]) for table in tables})
