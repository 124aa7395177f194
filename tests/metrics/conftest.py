from tests.stores import postgres_database, postgres_schemas, postgres_url, shared_store  # noqa: F401  # fixtures
