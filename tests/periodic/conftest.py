from tests.stores import postgres_url, shared_store

__all__ = ["postgres_url", "shared_store"]
