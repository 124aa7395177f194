from tests.stores import postgres_schemas, postgres_url, shared_store

__all__ = ["postgres_schemas", "postgres_url", "shared_store"]
