"""Thousands of killed writers."""

import os

import pytest
from tests.sqlite.test_durability import kill

ROUNDS = int(os.environ.get("PENSTOCK_SOAK_ROUNDS", "5000"))


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("threads", [1, 4, 8])
def test_thousands_of_killed_writers_lose_nothing_acknowledged(tmp_path, threads):
    """B18, B20, RELIABILITY F1, F2."""
    found = kill(tmp_path, ROUNDS, seed=1000 + threads, threads=threads)
    assert found["wrong"] == []
    assert found["stored"] > ROUNDS
