"""The lake: the journal and tables derived from it, as Parquet files in one folder."""

from penstock.spark.lake._sync import SyncProgress, SyncReport, sync
from penstock.spark.lake.reading import read_table

__all__ = ["SyncProgress", "SyncReport", "read_table", "sync"]
