"""Pure functions from DataFrames to DataFrames: what the journal says about attempts, jobs, hours and flows.

Built-in functions only, so that Spark can optimise across them and no Python runs per row.
"""

from penstock.spark.transforms.attempts import attempts
from penstock.spark.transforms.flows import flows
from penstock.spark.transforms.hourly import hourly
from penstock.spark.transforms.latest import latest

__all__ = ["attempts", "flows", "hourly", "latest"]
