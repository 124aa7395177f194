"""Penstock on Spark: stores as tables, DataFrames as jobs.

    from penstock import spark as ps

    spark = ps.session()
    spark.read.format("penstock").option("url", url).load().groupBy("status").count().show()

Needs the extra [spark]. Every name is imported when it is first used: the processes in which Spark
runs a data source import this package for each query, and do not need the rest of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._extras import how_to_install

if TYPE_CHECKING:
    from penstock.spark._session import register, session
    from penstock.spark.auditing import audit
    from penstock.spark.fleet import FleetReport, run_fleet
    from penstock.spark.frames import FramesReport, run_frames
    from penstock.spark.lake import SyncProgress, SyncReport, read_table, sync
    from penstock.spark.transforms import attempts, flows, hourly, latest
    from penstock.spark.writing import WriteReport, write

__all__ = [
    "FleetReport",
    "FramesReport",
    "SyncProgress",
    "SyncReport",
    "WriteReport",
    "attempts",
    "audit",
    "flows",
    "hourly",
    "latest",
    "read_table",
    "register",
    "run_fleet",
    "run_frames",
    "session",
    "sync",
    "write",
]

_HOMES = {
    "FleetReport": "fleet",
    "FramesReport": "frames",
    "SyncProgress": "lake",
    "SyncReport": "lake",
    "WriteReport": "writing",
    "attempts": "transforms",
    "audit": "auditing",
    "flows": "transforms",
    "hourly": "transforms",
    "latest": "transforms",
    "read_table": "lake",
    "register": "_session",
    "run_fleet": "fleet",
    "run_frames": "frames",
    "session": "_session",
    "sync": "lake",
    "write": "writing",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "penstock":
            raise
        raise ImportError(
            f"penstock.spark needs an extra: {how_to_install('spark')} ({error.name} is missing)",
            name=error.name,
        ) from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
