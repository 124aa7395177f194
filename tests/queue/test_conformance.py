"""The public conformance suite of the queue, on every store we ship and on the model."""

from tests.stores import make_backend, new_store, postgres_schemas, postgres_url

from penstock.testing import QueueConformance

__all__ = ["make_backend", "new_store", "postgres_schemas", "postgres_url"]


class TestQueueConformance(QueueConformance):
    """Runs on each store of the `make_backend` fixture."""
