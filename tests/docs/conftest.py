"""A PostgreSQL server for the pages that need one."""

from tests.stores import postgres_database, postgres_url

__all__ = ["postgres_database", "postgres_url"]
