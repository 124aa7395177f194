"""Temporary settings of a Spark session and of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

__all__ = ["environment", "temporarily"]


@contextmanager
def temporarily(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session inside the block, and restore them afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, previous in before.items():
            if previous is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, previous)


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the block, and restore it afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
