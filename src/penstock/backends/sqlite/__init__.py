"""The embedded store: one SQLite file, any number of threads and processes."""

from penstock.backends.sqlite.backend import SqliteBackend, open_sqlite
from penstock.backends.sqlite.migrate import list_steps, migrate_file, migration_sql

__all__ = ["SqliteBackend", "list_steps", "migrate_file", "migration_sql", "open_sqlite"]
