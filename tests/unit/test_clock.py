"""Clocks, and times as integer microseconds."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import Clock, SystemClock, from_micros, to_micros
from penstock.errors import InvalidArgumentError
from penstock.testing import ManualClock

FIRST, LAST = datetime(1970, 1, 1), datetime(2199, 12, 31, 23, 59, 59, 999_999)


@given(st.datetimes(FIRST, LAST, timezones=st.just(UTC)))
def test_a_time_survives_the_way_to_microseconds_and_back(moment):
    micros = to_micros(moment)
    assert type(micros) is int
    assert from_micros(micros) == moment
    assert from_micros(micros).tzinfo is UTC


@given(st.integers(0, to_micros(LAST.replace(tzinfo=UTC))))
def test_microseconds_survive_the_way_to_a_time_and_back(micros):
    assert to_micros(from_micros(micros)) == micros


def test_other_time_zones_mean_the_same_moment():
    moment = datetime(2030, 6, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert from_micros(to_micros(moment)) == moment
    assert from_micros(to_micros(moment)).hour == 6


def test_the_system_clock_is_aware():
    before = datetime.now(UTC)
    assert before <= SystemClock().now() <= datetime.now(UTC)
    assert isinstance(SystemClock(), Clock)


class TestManualClock:
    def test_it_stands_still_until_it_is_moved(self):
        clock = ManualClock()
        assert clock.now() == clock.now()
        assert isinstance(clock, Clock)

    def test_it_moves_by_seconds_and_timedeltas_both_ways(self):
        clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
        assert clock.advance(90) == datetime(2030, 1, 1, 0, 1, 30, tzinfo=UTC)
        clock.advance(timedelta(days=1))
        clock.advance(-30)
        assert clock.now() == datetime(2030, 1, 2, 0, 1, tzinfo=UTC)

    def test_it_jumps_and_speaks_utc(self):
        clock = ManualClock()
        clock.set(datetime(2031, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
        assert clock.now() == datetime(2031, 1, 1, tzinfo=UTC)
        assert repr(clock) == "ManualClock(2031-01-01T00:00:00+00:00)"

    def test_naive_times_are_refused(self):
        with pytest.raises(InvalidArgumentError):
            ManualClock(datetime(2030, 1, 1))
        with pytest.raises(InvalidArgumentError):
            ManualClock().set(datetime(2030, 1, 1))
