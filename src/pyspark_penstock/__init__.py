"""Found by Spark, which looks for modules named `pyspark_*`: the format `penstock` is known without a call of ours.

One such module that cannot be imported makes Spark refuse every Python source, also those of others. So whatever is
missing or broken, this one can be imported.
"""

import contextlib

with contextlib.suppress(Exception):
    from penstock.spark.source import PenstockSource as DefaultSource  # noqa: F401 - the name that Spark looks for
