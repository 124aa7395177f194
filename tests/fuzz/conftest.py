from tests.stores import postgres_database, postgres_databases, postgres_store, postgres_url

__all__ = ["postgres_database", "postgres_databases", "postgres_store", "postgres_url"]
