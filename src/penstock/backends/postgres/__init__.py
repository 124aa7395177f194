"""The shared store: a schema of a PostgreSQL database, any number of machines."""

from penstock.backends.postgres.backend import PostgresBackend, open_postgres
from penstock.backends.postgres.migrate import drop_schema, list_steps, migrate, migration_sql

__all__ = ["PostgresBackend", "drop_schema", "list_steps", "migrate", "migration_sql", "open_postgres"]
