"""When the silence of owners counts, by what is recorded of the passes of upkeep."""

import pytest

from penstock.backends.engine.liveness import next_pass
from penstock.backends.engine.store import UpkeepPass

LIVENESS = 15


def judged(*gaps: float) -> list[bool]:
    """Return for each pass after the first whether it judged owners by their silence."""
    last, now = next_pass(UpkeepPass(None, 0, 0), 1000, LIVENESS, begins=True), 1000.0
    found = []
    for gap in gaps:
        now += gap
        last = next_pass(last, int(now), LIVENESS, begins=True)
        found.append(last.judges_from <= int(now))
    return found


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([2, 2, 7], [True, True, True]),
        ([2, 8, 2], [True, False, False]),
        ([2, 20, 5, 5, 5, 5], [True, False, False, False, True, True]),
        ([2, 20, 2, 20], [True, False, False, False]),
        ([7, 13], [True, False]),
        ([60, 60, 60], [False, True, True]),
        ([10, 10, 10], [False, False, True]),
        ([60, 60, 600], [False, True, False]),
        ([2, 20, 16, 2], [True, False, True, True]),
    ],
)
def test_silence_counts_one_liveness_period_after_an_unusual_gap(
    gaps: list[float], expected: list[bool]
) -> None:
    assert judged(*gaps) == expected


def test_the_first_pass_of_all_finds_no_gap() -> None:
    assert next_pass(UpkeepPass(None, 0, 0), 10**9, LIVENESS, begins=True).judges_from == 0


def test_a_pass_that_goes_on_keeps_the_gap_before_it() -> None:
    began = next_pass(UpkeepPass(1000, 0, 0), 1060, LIVENESS, begins=True)
    later = next_pass(began, 1061, LIVENESS, begins=False)
    assert (later.passed_at, later.gap) == (1061, 60)
    assert next_pass(later, 1121, LIVENESS, begins=True).judges_from == began.judges_from


def test_a_clock_that_was_set_back_puts_nothing_off_for_long() -> None:
    waiting = next_pass(UpkeepPass(1000, 2, 0), 5000, LIVENESS, begins=True)
    assert waiting.judges_from == 5000 + LIVENESS
    assert next_pass(waiting, 2000, LIVENESS, begins=True).judges_from == 2000 + LIVENESS
