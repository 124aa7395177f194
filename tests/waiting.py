"""Waiting for what will be so soon."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
