"""The stores that the tests of this folder run on."""

from tests.stores import empty_sqlite_store, new_store, postgres_schemas, postgres_url

__all__ = ["empty_sqlite_store", "new_store", "postgres_schemas", "postgres_url"]
