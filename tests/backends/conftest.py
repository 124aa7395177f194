"""The stores that the tests of this folder run on."""

import pytest
from tests.stores import make_backend, new_store, postgres_schemas, postgres_url

__all__ = ["make_backend", "new_store", "postgres_schemas", "postgres_url"]

pytest.register_assert_rewrite("penstock.testing.conformance")
