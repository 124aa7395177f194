"""A PostgreSQL server for the pages that need one."""

import sys
from collections.abc import Iterator

import pytest
from tests.stores import postgres_database, postgres_url

__all__ = ["postgres_database", "postgres_url"]


@pytest.fixture(autouse=True)
def no_tracer_left_behind() -> Iterator[None]:
    """A page may set up tracing, which a program does once; the tests after it are not traced."""
    yield
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and trace._TRACER_PROVIDER is not None:
        trace._TRACER_PROVIDER = None
        trace._TRACER_PROVIDER_SET_ONCE = type(trace._TRACER_PROVIDER_SET_ONCE)()
