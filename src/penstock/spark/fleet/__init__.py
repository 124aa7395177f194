"""The fleet: Spark tasks that are workers. See `run_fleet`."""

from penstock.spark.fleet._driver import FleetReport, run_fleet

__all__ = ["FleetReport", "run_fleet"]
