"""When a schedule ticks: fields, zones, and the two nights a year on which a clock lies."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.schedules import Cron, Every, Periodic
from penstock.errors import InvalidArgumentError

BERLIN = ZoneInfo("Europe/Berlin")


def ticks(rule, start, count):
    found = [rule.after(start)]
    while len(found) < count:
        found.append(rule.after(found[-1]))
    assert all(tick.tzinfo is UTC for tick in found)
    return found


def local(rule, start, count, tz=BERLIN):
    return [tick.astimezone(tz).strftime("%d. %H:%M %Z") for tick in ticks(rule, start, count)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/5 * * * *", ["2026-01-01 00:05", "2026-01-01 00:10"]),
        ("0 3 * * *", ["2026-01-01 03:00", "2026-01-02 03:00"]),
        ("30 9 * * mon-fri", ["2026-01-01 09:30", "2026-01-02 09:30", "2026-01-05 09:30"]),
        ("0 0 1 * *", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("  0   3  *  *  *  ", ["2026-01-01 03:00"]),
    ],
)
def test_it_ticks_as_cron_does(expression, expected):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    found = ticks(Cron(expression), start, len(expected))
    assert [f"{tick:%Y-%m-%d %H:%M}" for tick in found] == expected


def test_a_tick_is_later_than_the_moment_it_is_asked_for():
    rule = Cron("*/5 * * * *")
    tick = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    assert rule.after(tick - timedelta(microseconds=1)) == tick
    assert rule.after(tick) == tick + timedelta(minutes=5)
    assert rule.after(tick + timedelta(microseconds=1)) == tick + timedelta(minutes=5)


def test_it_is_utc_unless_a_zone_is_given():
    start = datetime(2026, 7, 1, tzinfo=UTC)
    assert Cron("0 3 * * *").after(start).hour == 3
    assert Cron("0 3 * * *", tz="Europe/Berlin").after(start).hour == 1
    assert Cron("0 3 * * *", tz=timezone(timedelta(hours=2))).after(start).hour == 1
    # Whatever zone the question comes in.
    assert Cron("0 3 * * *").after(start.astimezone(ZoneInfo("Asia/Tokyo"))).hour == 3


def test_in_the_hour_that_is_skipped():
    """29 March 2026, Berlin: 02:00 is 03:00."""
    eve = datetime(2026, 3, 28, 12, tzinfo=BERLIN)
    night = datetime(2026, 3, 29, 0, 45, tzinfo=BERLIN)
    assert local(Cron("30 2 * * *", tz=BERLIN), eve, 2) == ["29. 03:00 CEST", "30. 02:30 CEST"]
    assert local(Cron("15,45 2 * * *", tz=BERLIN), eve, 2) == ["29. 03:00 CEST", "30. 02:15 CEST"]
    assert local(Cron("30 * * * *", tz=BERLIN), night, 3) == [
        "29. 01:30 CET",
        "29. 03:30 CEST",
        "29. 04:30 CEST",
    ]
    assert local(Cron("0 */2 * * *", tz=BERLIN), eve, 8)[6:] == ["29. 04:00 CEST", "29. 06:00 CEST"]


def test_in_the_hour_that_comes_twice():
    """25 October 2026, Berlin: 03:00 is 02:00 again."""
    eve = datetime(2026, 10, 24, 12, tzinfo=BERLIN)
    night = datetime(2026, 10, 25, 1, 45, tzinfo=BERLIN)
    assert local(Cron("30 2 * * *", tz=BERLIN), eve, 2) == ["25. 02:30 CEST", "26. 02:30 CET"]
    assert local(Cron("*/30 * * * *", tz=BERLIN), night, 5) == [
        "25. 02:00 CEST",
        "25. 02:30 CEST",
        "25. 02:00 CET",
        "25. 02:30 CET",
        "25. 03:00 CET",
    ]


@settings(max_examples=40, deadline=None)
@given(
    expression=st.sampled_from(
        [
            "30 2 * * *",
            "15,45 2 * * *",
            "*/20 * * * *",
            "0 */2 * * *",
            "30 1-4 * * *",
            "0 3 * * sun",
            "* 2 * * *",
        ]
    ),
    # Nights on which the clocks change, there or elsewhere, and a plain one.
    night=st.sampled_from(
        [
            ("Europe/Berlin", datetime(2026, 3, 28, 20)),
            ("Europe/Berlin", datetime(2026, 10, 24, 20)),
            ("America/New_York", datetime(2026, 3, 8, 2)),
            ("America/New_York", datetime(2026, 11, 1, 1)),
            ("Australia/Lord_Howe", datetime(2026, 4, 4, 10)),  # by half an hour
            ("Australia/Lord_Howe", datetime(2026, 10, 3, 10)),
            ("UTC", datetime(2026, 6, 1)),
        ]
    ),
    before=st.timedeltas(timedelta(0), timedelta(hours=6)),
    between=st.timedeltas(timedelta(0), timedelta(hours=12)),
)
def test_where_one_begins_to_look_makes_no_difference(expression, night, before, between):
    """A ticker that starts later, and one that looks back from now, see the ticks of one that was always there."""
    zone, around = night
    rule = Cron(expression, tz=zone)
    start = around.replace(tzinfo=UTC) - before
    later = start + between
    walked = [rule.after(start)]
    while walked[-1] <= later:
        walked.append(rule.after(walked[-1]))
    assert walked == sorted(set(walked))
    assert rule.after(later) > later
    if zone != "Australia/Lord_Howe":  # there, a tick right after the change may be left out
        assert rule.after(later) == walked[-1]


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "* * * * * *", "@daily", "60 * * * *", "* 24 * * *", "a b c d e", "*/0 * * * *", "0 0 30 2 *",
     "5-1 * * * *", None, 5, "0 0 31 2 *", "* * */20 * 1L"],
)  # fmt: skip
def test_what_is_no_cron_expression_is_refused(expression):
    with pytest.raises(InvalidArgumentError) as caught:
        Cron(expression)
    assert caught.value.field == "expression"


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="0123456789*/,-LW#? mon\t\0é", max_size=30))
def test_any_text_is_a_rule_or_a_typed_error(text):
    try:
        rule = Cron(text)
    except InvalidArgumentError:
        return
    assert rule.after(datetime(2026, 1, 1, tzinfo=UTC)) > datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("tz", ["Europe/Nowhere", "", None, 5, "../../etc/passwd", "\0"])
def test_what_is_no_zone_is_refused(tz):
    with pytest.raises(InvalidArgumentError) as caught:
        Cron("* * * * *", tz=tz)
    assert caught.value.field == "tz"


def test_an_interval_ticks_at_its_multiples():
    start = datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)
    assert [tick.second for tick in ticks(Every(20), start, 3)] == [20, 40, 0]
    assert ticks(Every(timedelta(hours=1)), start, 1) == [datetime(2026, 1, 1, 1, tzinfo=UTC)]
    assert Every(10).after(datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)).second == 20


@pytest.mark.parametrize("interval", [0, -1, 0.5, "5", None, float("nan"), True, timedelta(days=4000)])
def test_what_is_no_interval_is_refused(interval):
    with pytest.raises(InvalidArgumentError) as caught:
        Every(interval)
    assert caught.value.field == "interval"


def test_an_unknown_word_for_missed_ticks_is_refused():
    with pytest.raises(InvalidArgumentError, match="latest"):
        Periodic("x", Every(5), lambda tick: None, missed="some")
