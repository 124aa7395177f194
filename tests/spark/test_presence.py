import importlib.util
import os

import pytest


def test_spark_is_installed():
    """The rest of this folder is left out where it is not: loudly at home, as a failure where everything must run."""
    if importlib.util.find_spec("pyspark") is None:
        message = "pyspark is missing: pip install -e '.[dev]'"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(message)
        pytest.skip(message)


def test_one_process_runs_all_that_need_spark(request):
    """Some versions of pytest and xdist do not go together: groups are ignored, and the tests take twice as long."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("tests are not distributed by group")
    assert request.node.nodeid.endswith("@spark")
