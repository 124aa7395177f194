import importlib.util
from typing import Any

import pytest

# Where Spark is missing, tests/spark/test_presence.py says so.
collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]


@pytest.fixture(scope="session")
def story(spark, tmp_path_factory) -> dict[str, Any]:
    """A lake that two random stores were synced into, several times; and what was seen on the way."""
    from tests.spark.lake.support import RandomStore, files_of

    from penstock.spark import sync

    folder = tmp_path_factory.mktemp("story")
    one, two = RandomStore(folder, "one"), RandomStore(folder, "two")
    lake = folder / "lake"
    reports = []
    one.stir(1, 300)
    reports.append(sync(spark, one.url, lake))
    one.stir(2, 120)
    two.stir(3, 120)
    new = len(one.entries()) - reports[0].events + len(two.entries())
    reports.append(sync(spark, [one.url, two.url], lake, events_per_batch=new // 3 + 1))
    before = files_of(lake)
    reports.append(sync(spark, [one.url, two.url], lake))
    return {"lake": lake, "stores": [one, two], "reports": reports, "before": before, "after": files_of(lake)}
