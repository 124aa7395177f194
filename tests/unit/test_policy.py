"""Retry policies and timeouts: values, limits and refusals."""

import pickle
import random
from datetime import timedelta

import pytest

import penstock
from penstock.errors import InvalidArgumentError
from penstock.policy import (
    DEFAULT_RETRY,
    DEFAULT_TIMEOUTS,
    FailureCategory,
    RetryPolicy,
    Timeouts,
    _backoffs,
    register_backoff,
)

NAN, INF = float("nan"), float("inf")
TEN_YEARS = timedelta(days=3650)


@pytest.fixture
def own_backoff():
    """A function that registers a backoff for the length of a test."""
    names = []

    def register(name, function):
        names.append(name)
        register_backoff(name, function)

    yield register
    for name in names:
        _backoffs.pop(name, None)


def seconds(policy: RetryPolicy, *failures: int) -> list[float]:
    return [policy.delay(n).total_seconds() for n in failures]


class TestDefaults:
    def test_g18_three_attempts_exponential_from_a_second_to_an_hour(self):
        policy = RetryPolicy()
        assert policy == DEFAULT_RETRY
        assert policy.max_attempts == 3
        assert policy.backoff == "exponential"
        assert (policy.initial_delay, policy.max_delay) == (timedelta(seconds=1), timedelta(hours=1))
        assert policy.multiplier == 2.0

    def test_g23_jitter_is_off_unless_asked_for(self):
        assert RetryPolicy().jitter == 0.0
        assert len({RetryPolicy().delay(3) for _ in range(50)}) == 1

    def test_g13_default_times(self):
        assert DEFAULT_TIMEOUTS.execution == timedelta(minutes=30)
        assert DEFAULT_TIMEOUTS.visibility == timedelta(minutes=5)
        assert DEFAULT_TIMEOUTS.lifetime == timedelta(days=7)

    def test_a_policy_or_timeouts_of_ones_own_sets_only_what_it_says(self):
        assert Timeouts() == Timeouts(execution=None, visibility=None, lifetime=None)
        assert Timeouts(execution=90).execution == timedelta(seconds=90)
        assert RetryPolicy(initial_delay=0.5).initial_delay == timedelta(milliseconds=500)

    def test_both_take_their_fields_by_place_as_well(self):
        assert Timeouts(90, 60, 3600) == Timeouts(execution=90, visibility=60, lifetime=3600)
        assert RetryPolicy(5, "linear", 2) == RetryPolicy(max_attempts=5, backoff="linear", initial_delay=2)

    def test_both_survive_pickling_and_are_frozen(self):
        policy = RetryPolicy(max_attempts=7, jitter=0.5, retry_on=[FailureCategory.TIMEOUT])
        assert pickle.loads(pickle.dumps(policy)) == policy
        assert pickle.loads(pickle.dumps(DEFAULT_TIMEOUTS)) == DEFAULT_TIMEOUTS
        with pytest.raises(AttributeError):
            policy.max_attempts = 8


class TestBackoff:
    """G19: the four formulas; C36c: the caps."""

    def test_constant(self):
        policy = RetryPolicy(backoff="constant", initial_delay=5)
        assert seconds(policy, 1, 2, 3, 100) == [5, 5, 5, 5]

    def test_linear(self):
        policy = RetryPolicy(backoff="linear", initial_delay=5, max_delay=18)
        assert seconds(policy, 1, 2, 3, 4, 100) == [5, 10, 15, 18, 18]

    def test_exponential(self):
        policy = RetryPolicy(backoff="exponential", initial_delay=1, multiplier=3, max_delay=60)
        assert seconds(policy, 1, 2, 3, 4, 5, 1_000_000) == [1, 3, 9, 27, 60, 60]

    def test_custom(self, own_backoff):
        own_backoff("squares", lambda n, initial, longest: initial * n * n)
        policy = RetryPolicy(backoff="squares", initial_delay=2, max_delay=30)
        assert seconds(policy, 1, 2, 3, 4, 5) == [2, 8, 18, 30, 30]

    def test_custom_is_given_the_policys_delays(self, own_backoff):
        seen = []
        own_backoff("spy", lambda *given: seen.append(given) or timedelta(0))
        RetryPolicy(backoff="spy", initial_delay=2, max_delay=30).delay(4)
        assert seen == [(4, timedelta(seconds=2), timedelta(seconds=30))]

    @pytest.mark.parametrize("fault", ["raises", "negative", "none", "endless"])
    def test_a_faulty_custom_backoff_falls_back_to_exponential(self, own_backoff, fault, caplog):
        faults = {
            "raises": lambda *given: 1 / 0,
            "negative": lambda *given: timedelta(seconds=-1),
            "none": lambda *given: None,
            "endless": lambda *given: INF,
        }
        own_backoff("faulty", faults[fault])
        assert seconds(RetryPolicy(backoff="faulty"), 1, 2, 3) == [1, 2, 4]
        assert "custom backoff 'faulty' failed" in caplog.text

    def test_a_stored_policy_whose_backoff_is_not_registered_here_is_exponential(self):
        policy = RetryPolicy.restore(backoff="elsewhere", initial_delay=1)
        assert policy.backoff == "elsewhere"
        assert seconds(policy, 1, 2, 3) == [1, 2, 4]

    @pytest.mark.parametrize("name", ["", "constant", "linear", "exponential", 7, None])
    def test_a_custom_backoff_needs_a_name_of_its_own(self, name):
        with pytest.raises(InvalidArgumentError):
            register_backoff(name, lambda *given: timedelta(0))

    def test_a_function_as_backoff_says_how_to_register_it(self):
        def doubling(failures, initial, longest):
            return initial

        with pytest.raises(InvalidArgumentError) as refused:
            RetryPolicy(backoff=doubling)
        assert refused.value.field == "backoff"
        assert 'penstock.register_backoff("doubling", doubling)' in str(refused.value)
        assert 'RetryPolicy(backoff="doubling")' in str(refused.value)
        with pytest.raises(
            InvalidArgumentError, match=r'penstock.register_backoff\("my_backoff", my_backoff\)'
        ):
            RetryPolicy(backoff=lambda *given: timedelta(0))

    def test_a_custom_backoff_is_registered_by_a_public_name(self, own_backoff):
        assert penstock.register_backoff is register_backoff
        with pytest.raises(InvalidArgumentError, match="function"):
            penstock.register_backoff("squares", "no function")

    @pytest.mark.parametrize("backoff", ["constant", "linear", "exponential"])
    def test_a_first_delay_longer_than_the_longest_is_capped(self, backoff):
        assert seconds(RetryPolicy(backoff=backoff, initial_delay=9, max_delay=4), 1, 2) == [4, 4]

    def test_no_delay_at_all_is_possible(self):
        assert seconds(RetryPolicy(initial_delay=0), 1, 2, 3) == [0, 0, 0]


class TestJitter:
    """G23: optional, either way by its share; C36c: applied last and capped again."""

    @pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
    def test_it_stays_within_its_share(self, share):
        policy = RetryPolicy(backoff="constant", initial_delay=100, max_delay=1000, jitter=share)
        rng = random.Random(1)
        delays = [policy.delay(1, rng=rng).total_seconds() for _ in range(2000)]
        assert min(delays) >= 100 * (1 - share)
        assert max(delays) <= 100 * (1 + share)
        # It uses the room it has, on both sides.
        assert min(delays) < 100 - 90 * share
        assert max(delays) > 100 + 90 * share

    def test_it_never_exceeds_the_longest_delay(self):
        policy = RetryPolicy(backoff="constant", initial_delay=10, max_delay=10, jitter=1.0)
        rng = random.Random(2)
        delays = [policy.delay(1, rng=rng).total_seconds() for _ in range(500)]
        assert max(delays) == 10
        assert min(delays) >= 0

    def test_the_same_random_numbers_give_the_same_delays(self):
        policy = RetryPolicy(jitter=0.3)
        assert policy.delay(2, rng=random.Random(3)) == policy.delay(2, rng=random.Random(3))


class TestAllows:
    """G21, G28: the category and the counted failures decide about another attempt."""

    @pytest.mark.parametrize(
        "category", [FailureCategory.TEMPORARY, FailureCategory.TIMEOUT, FailureCategory.SYSTEM]
    )
    def test_retried_until_the_attempts_are_used_up(self, category):
        assert [RetryPolicy(max_attempts=3).allows(category, n) for n in (1, 2, 3, 4)] == [
            True,
            True,
            False,
            False,
        ]

    @pytest.mark.parametrize("category", [FailureCategory.PERMANENT, FailureCategory.CANCELLED])
    def test_never_retried(self, category):
        assert not RetryPolicy(max_attempts=100).allows(category, 1)

    def test_retry_on_leaves_categories_out(self):
        policy = RetryPolicy(retry_on=["system", FailureCategory.TEMPORARY, "system"])
        assert policy.retry_on == (FailureCategory.TEMPORARY, FailureCategory.SYSTEM)
        assert not policy.allows(FailureCategory.TIMEOUT, 1)
        assert not RetryPolicy(retry_on=()).allows(FailureCategory.TEMPORARY, 1)

    def test_one_attempt_means_no_retry(self):
        assert not RetryPolicy(max_attempts=1).allows(FailureCategory.TEMPORARY, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_attempts", value) for value in (0, -1, 1.5, True, "3", None, 1_000_001)],
        *[("backoff", value) for value in ("quadratic", "", None, 3)],
        *[("initial_delay", value) for value in (-1, NAN, INF, True, "1", None, TEN_YEARS * 2, 1e300)],
        *[("max_delay", value) for value in (-0.1, NAN, INF, False, timedelta(seconds=-1))],
        *[("multiplier", value) for value in (0.5, NAN, INF, True, "2", 1001)],
        *[("jitter", value) for value in (-0.1, 1.1, NAN, True, "0.1", None)],
        *[("retry_on", value) for value in ("temporary", ["permanent"], ["cancelled"], ["often"], None, 3)],
    ],
)
def test_a_bad_policy_is_refused_naming_the_field(field, value):
    with pytest.raises(InvalidArgumentError) as caught:
        RetryPolicy(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["execution", "visibility", "lifetime"])
@pytest.mark.parametrize(
    "value", [0, -1, NAN, INF, True, "60", timedelta(0), TEN_YEARS + timedelta(seconds=1)]
)
def test_a_bad_timeout_is_refused_naming_the_field(field, value):
    with pytest.raises(InvalidArgumentError) as caught:
        Timeouts(**{field: value})
    assert caught.value.field == field


def test_the_longest_duration_is_ten_years():
    assert Timeouts(lifetime=TEN_YEARS).lifetime == TEN_YEARS


def test_g28_there_are_five_categories():
    assert [str(category) for category in FailureCategory] == [
        "temporary", "permanent", "timeout", "cancelled", "system",
    ]  # fmt: skip
