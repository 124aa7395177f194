"""Pure functions from DataFrames to DataFrames: attempts, jobs, hourly metrics and flows from the journal.

They use built-in functions only, so that Spark can optimise across them and no Python runs per row.
"""

from penstock.spark.transforms.attempts import attempts
from penstock.spark.transforms.flows import flows
from penstock.spark.transforms.hourly import hourly
from penstock.spark.transforms.latest import latest

__all__ = ["attempts", "flows", "hourly", "latest"]
