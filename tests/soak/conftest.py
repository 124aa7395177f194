"""The stores that the tests of this folder run on, and the Spark session of those that need one."""

from tests.spark.conftest import spark
from tests.stores import new_store, postgres_database, postgres_schemas, postgres_url

__all__ = ["new_store", "postgres_database", "postgres_schemas", "postgres_url", "spark"]
