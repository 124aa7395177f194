"""The public conformance suite on every store we ship, and on the model it is compared with."""

from penstock.testing import BackendConformance


class TestConformance(BackendConformance):
    """Runs on each store of the `make_backend` fixture."""
