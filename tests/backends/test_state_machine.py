"""The model and each store, driven together through random lives."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.machine import machine_on
from tests.stores import STORES

EXAMPLES = {"memory": (60, 30), "sqlite": (10, 30), "postgres": (10, 25)}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", STORES[1:])
def test_a_store_does_what_the_model_does(kind: str, new_store: Any) -> None:
    """B17, B20: every verb, several workers, keys, dependencies, retries, leases, crashes between calls."""
    examples, steps = EXAMPLES[kind]
    run_state_machine_as_test(
        lambda: machine_on(new_store, kind),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
