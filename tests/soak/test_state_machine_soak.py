"""The model and each store, driven together for as long as one likes: PENSTOCK_SOAK_EXAMPLES, PENSTOCK_SOAK_STEPS."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.machine import machine_on

EXAMPLES = int(os.environ.get("PENSTOCK_SOAK_EXAMPLES", "5000"))
STEPS = int(os.environ.get("PENSTOCK_SOAK_STEPS", "100"))
SHARE = {"memory": 1.0, "sqlite": 0.5, "postgres": 0.1}


@pytest.mark.soak
@pytest.mark.parametrize("kind", list(SHARE))
def test_a_store_does_what_the_model_does_for_a_long_time(kind: str, new_store: Any) -> None:
    run_state_machine_as_test(
        lambda: machine_on(new_store, kind),
        settings=settings(
            max_examples=max(1, int(EXAMPLES * SHARE[kind])),
            stateful_step_count=STEPS,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
