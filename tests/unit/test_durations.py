"""Durations: a timedelta, a number of seconds, or text, wherever one is accepted."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import App, InvalidArgumentError, RetryPolicy, TemporaryError, Timeouts, Worker
from penstock.app.schedules import Every
from penstock.cli._values import as_duration
from penstock.durations import duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("5min", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1.5h ", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("250ms", 0.25),
        ("1m30s250ms", 90.25),
        ("2d6h", 194_400),
        ("0s", 0),
    ],
)
def test_text_is_read_as_people_write_it(text, seconds):
    assert duration(text, "delay") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "m",
        "90",
        "1.5",
        "5x",
        "5 minutes please",
        "-5m",
        "+5m",
        "5M",
        "1h1h",
        "30m1h",
        "1h30",
        "30 1h",
        "1,5h",
        ".5h",
        "1.h",
        "1e3s",
        "nan",
        "inf",
        "\u0665m",
        "5m\0",
        "\ud800",
        "1" * 400,
        "9" * 5000 + "s",
    ],
    ids=lambda text: ascii(text[:10]),
)
def test_other_text_is_refused_by_field_and_value_with_an_example(text):
    with pytest.raises(InvalidArgumentError, match='delay must be a duration such as "90s", "5m"') as refused:
        duration(text, "delay")
    assert refused.value.field == "delay"
    assert refused.value.value == text


@pytest.mark.parametrize(
    "value", [True, None, b"5m", [], float("nan"), float("inf"), float("-inf"), 5j, object()]
)
def test_what_is_no_duration_at_all_says_what_is_one(value):
    with pytest.raises(InvalidArgumentError, match='seconds or text such as "5m"'):
        duration(value, "delay")


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), 1e300, -1e300, "999999999999999w", -1, timedelta.min],
    ids=["huge", "-huge", "1e300", "-1e300", "text", "-1", "min"],
)
def test_what_is_out_of_range_names_the_limit(value):
    with pytest.raises(InvalidArgumentError, match=r"must be at (most 3650 days|least 0)"):
        duration(value, "delay")


def test_zero_is_refused_where_nothing_would_be_left():
    with pytest.raises(InvalidArgumentError, match="timeout must be more than 0, got '0s'"):
        duration("0s", "timeout", positive=True)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), (" 1.5 ", 1.5), ("0", 0), ("5m", 300)])
def test_on_the_command_line_a_number_alone_is_seconds(text, seconds):
    assert as_duration(text, "delay") == timedelta(seconds=seconds)


@given(st.text())
def test_any_text_is_a_duration_or_refused(text):
    with contextlib.suppress(InvalidArgumentError):
        assert parse_duration(text, "delay") >= timedelta(0)


@given(st.integers(0, 500), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_every_part_counts(days, hours, minutes, seconds, millis):
    text = f"{days}d{hours}h{minutes}m{seconds}s{millis}ms"
    expected = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=millis)
    assert parse_duration(text, "delay") == expected


def test_decorators_options_and_policies_take_text():
    app = App("memory:", max_execution="2h")

    @app.job(timeout="5m", retry=RetryPolicy(initial_delay="2s", max_delay="1h30m"))
    def work() -> None: ...

    assert app.max_execution == timedelta(hours=2)
    assert work.timeout == timedelta(minutes=5)
    policy = work.new_job().retry
    assert (policy.initial_delay, policy.max_delay) == (timedelta(seconds=2), timedelta(minutes=90))
    assert work.options(delay="1m").new_job().run_at > datetime.now(UTC)
    assert work.options(timeout="90s").new_job().timeouts.execution == timedelta(seconds=90)
    assert Timeouts(execution="1h", visibility="30s", lifetime="2d") == Timeouts(3600, 30, 172_800)
    assert TemporaryError("later", retry_after="5m").retry_after == timedelta(minutes=5)
    assert Every("5m").interval == timedelta(minutes=5)
    assert Worker(app, grace="1m", stop_grace="250ms", isolation="thread").grace == 60


def test_a_store_takes_text_in_its_options(tmp_path):
    with penstock.connect(
        f"sqlite:///{tmp_path}/jobs.db",
        timeout="5s",
        idempotency_window="2h",
        liveness="20s",
        retention={"completed": "7d", "other": "30d"},
    ) as queue:
        job = queue.submit("task", delay="1h30m")
        assert job.run_at - job.created_at > timedelta(minutes=89)
        assert queue.cleanup_expired_jobs("1d") == 0
    with penstock.connect("memory:", retention="7d") as queue, penstock.cancel_scope(timeout="1m"):
        queue.submit("task")


@pytest.mark.parametrize(
    "make",
    [
        lambda: App("memory:", max_execution="soon"),
        lambda: App("memory:").job(timeout="soon"),
        lambda: App("memory:").every("soon"),
        lambda: RetryPolicy(initial_delay="soon"),
        lambda: Timeouts(lifetime="soon"),
        lambda: penstock.connect("memory:", liveness="soon"),
        lambda: penstock.connect("memory:", retention="soon"),
        lambda: penstock.cancel_scope("soon"),
        lambda: Worker(App("memory:"), grace="soon"),
    ],
)
def test_bad_text_is_refused_wherever_a_duration_is_taken(make):
    with pytest.raises(InvalidArgumentError, match=r"such as .*got 'soon'"):
        make()
