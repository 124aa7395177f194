"""The stores that the tests of this folder run on."""

from tests.stores import new_store, postgres_schemas, postgres_url

__all__ = ["new_store", "postgres_schemas", "postgres_url"]
