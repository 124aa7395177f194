"""The lake: the journal and what follows from it as Parquet tables in one folder."""

from penstock.spark.lake._reading import read_table
from penstock.spark.lake._sync import SyncProgress, SyncReport, sync

__all__ = ["SyncProgress", "SyncReport", "read_table", "sync"]
