"""Spark's settings, for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

__all__ = ["temporarily"]


@contextmanager
def temporarily(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session have other settings inside, and its own again afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, kept in before.items():
            if kept is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, kept)
