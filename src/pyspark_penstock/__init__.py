"""Registers the format `penstock`: Spark imports every module named `pyspark_*` and uses its `DefaultSource`.

If one such module cannot be imported, Spark refuses every Python data source. So an error of this import is suppressed.
"""

import contextlib

with contextlib.suppress(Exception):
    from penstock.spark.source import PenstockSource as DefaultSource  # noqa: F401 - the name that Spark expects
