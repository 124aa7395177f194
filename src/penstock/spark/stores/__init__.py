"""The stores that Spark reads from and writes to: one class per kind of store, chosen here by the name of its driver."""

from __future__ import annotations

from typing import Final

from penstock.backends.drivers import shared_driver_for
from penstock.errors import InvalidArgumentError
from penstock.spark.stores.base import PRIVATE, FileIdentity, SparkStore
from penstock.spark.stores.postgres import PostgresSparkStore
from penstock.spark.stores.sqlite import SqliteSparkStore
from penstock.spark.stores.staging import Staging

__all__ = ["PRIVATE", "FileIdentity", "SparkStore", "Staging", "store_at"]

_STORES: Final[dict[str, type[SparkStore]]] = {"sqlite": SqliteSparkStore, "postgresql": PostgresSparkStore}


def store_at(url: str) -> SparkStore:
    """Return the store that a url names; opens nothing.

    Raises:
        InvalidArgumentError: not the url of a store, or of one that executors cannot open.
    """
    driver = shared_driver_for(url)
    if driver.name not in _STORES:
        raise InvalidArgumentError(
            f"Spark cannot use a store at {driver.prefix}; known are {' and '.join(_STORES)}",
            field="url",
            value=url,
        )
    driver.options_in(url)  # refuses a malformed url
    return _STORES[driver.name](driver.absolute_url(url))
