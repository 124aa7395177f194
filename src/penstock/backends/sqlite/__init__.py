"""The embedded store: one SQLite file, any number of threads and processes."""

from penstock.backends.sqlite.backend import SqliteBackend, open_sqlite

__all__ = ["SqliteBackend", "open_sqlite"]
