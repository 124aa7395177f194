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
