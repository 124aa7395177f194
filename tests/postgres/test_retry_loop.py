"""The loop in which every call is tried again, without a server: which error is repeated, how often, and what is raised."""

import psycopg
import pytest
from psycopg import errors

import penstock
from penstock.backends.engine.outage import Outage
from penstock.backends.postgres import retries
from penstock.backends.postgres.faults import Fault, OutOfOrderError, classify
from penstock.backends.postgres.retries import FailedAttemptError, Patience, Retries
from penstock.errors import BackendError, JobExistsError, OperationCancelledError, QueueClosedError

LOST = psycopg.OperationalError("the connection is lost")
COLLIDED = errors.DeadlockDetected("deadlock")
READ_ONLY = errors.ReadOnlySqlTransaction("read-only")
REFUSED = errors.UndefinedTable("no such table")
CANCELLED = errors.QueryCanceled("cancelled")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(retries, "_LONGEST_PAUSE", 0.0)


class Attempts:
    """Raises what it was given, one per attempt, then returns "done"; None is a success, too."""

    def __init__(self, *raised):
        self._raised = list(raised)
        self.count = 0
        self.lost = 0

    def __call__(self):
        self.count += 1
        if not self._raised:
            return "done"
        error = self._raised.pop(0)
        raise FailedAttemptError(error) if isinstance(error, psycopg.Error) else error

    def run(self, *, seconds=60.0, unknown=None):
        outage = Outage("store")
        return Retries(Patience(seconds), outage, self._on_lost, unknown=unknown).run(self)

    def _on_lost(self):
        self.lost += 1


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (LOST, Fault.DISCONNECT),
        (errors.AdminShutdown(), Fault.DISCONNECT),
        (errors.ConnectionFailure(), Fault.DISCONNECT),
        (COLLIDED, Fault.TRANSIENT),
        (errors.SerializationFailure(), Fault.TRANSIENT),
        (OutOfOrderError(["k"]), Fault.TRANSIENT),
        (READ_ONLY, Fault.READ_ONLY),
        (REFUSED, Fault.REFUSED),
        (CANCELLED, Fault.REFUSED),
        (errors.DiskFull(), Fault.REFUSED),
    ],
)
def test_an_error_has_one_meaning(error, fault):
    assert classify(error) is fault


def test_what_succeeds_is_attempted_once():
    attempts = Attempts()
    assert attempts.run() == "done"
    assert (attempts.count, attempts.lost) == (1, 0)


def test_a_collision_is_tried_again_twenty_times():
    attempts = Attempts(*[COLLIDED] * 20)
    assert attempts.run() == "done"
    assert (attempts.count, attempts.lost) == (21, 0)
    attempts = Attempts(*[COLLIDED] * 21)
    with pytest.raises(BackendError, match="too many transactions collide") as caught:
        attempts.run()
    assert caught.value.__cause__ is COLLIDED
    assert attempts.count == 21


def test_a_lost_connection_is_replaced_until_the_time_is_over():
    attempts = Attempts(*[LOST] * 100)
    assert attempts.run() == "done"
    assert attempts.lost == 100
    attempts = Attempts(*[LOST] * 100)
    with pytest.raises(BackendError, match="cannot be reached") as caught:
        attempts.run(seconds=0.0)
    assert caught.value.retryable
    assert not caught.value.outcome_unknown
    assert (attempts.count, attempts.lost) == (1, 1)


def test_a_server_that_is_read_only_gets_a_second_chance_on_a_new_connection():
    attempts = Attempts(READ_ONLY)
    assert attempts.run() == "done"
    assert attempts.lost == 1
    with pytest.raises(BackendError, match="read-only"):
        Attempts(READ_ONLY, LOST, READ_ONLY).run()


def test_a_refusal_is_final():
    attempts = Attempts(REFUSED)
    with pytest.raises(BackendError) as caught:
        attempts.run()
    assert not caught.value.retryable
    assert (attempts.count, attempts.lost) == (1, 0)


def test_an_attempt_that_cannot_be_repeated_is_not():
    def attempt():
        raise FailedAttemptError(COLLIDED, is_last=True)

    with pytest.raises(BackendError, match="collide"):
        Retries(Patience(60.0), Outage("store")).run(attempt)


@pytest.mark.parametrize("error", [JobExistsError("a", [(0, "a", "taken")]), BackendError("x"), LOST])
def test_an_error_that_does_not_say_that_it_took_no_effect_is_not_repeated(error):
    """An error of a listener after the commit, for example: the work would be done twice."""
    calls = []

    def attempt():
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        Retries(Patience(60.0), Outage("store")).run(attempt)
    assert caught.value is error
    assert len(calls) == 1


# -- unknown outcomes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [REFUSED, BackendError("no connection"), QueueClosedError(), OperationCancelledError()]
)
def test_what_may_have_taken_effect_is_never_called_a_failure(error):
    """Q55: whatever ends the call, only an answer makes its outcome known."""
    attempts = Attempts(error)
    with pytest.raises(BackendError) as caught:
        attempts.run(unknown=LOST)
    assert caught.value.outcome_unknown
    assert caught.value.retryable
    assert caught.value.__cause__ is LOST


def test_a_later_attempt_that_knows_the_outcome_gives_it():
    assert Attempts(LOST, COLLIDED).run(unknown=LOST) == "done"
    taken = JobExistsError("a", [(0, "a", "taken")])
    with pytest.raises(JobExistsError):
        Attempts(taken).run(unknown=LOST)


def test_an_outcome_is_asked_for_until_the_time_is_over():
    asked = []

    def ask():
        asked.append(1)
        if len(asked) < 50:
            raise FailedAttemptError(LOST, Fault.UNKNOWN)
        return "committed"

    never = pytest.fail
    assert Retries(Patience(60.0), Outage("store"), never, unknown=LOST).run(ask) == "committed"
    asked.clear()
    with pytest.raises(BackendError) as caught:
        Retries(Patience(0.0), Outage("store"), never, unknown=LOST).run(ask)
    assert caught.value.outcome_unknown


# -- scopes ----------------------------------------------------------------------------------------------------


def test_a_scope_that_has_ended_ends_the_attempts():
    with penstock.cancel_scope() as scope:
        attempts = Attempts(LOST)
        scope.cancel()
        with pytest.raises(OperationCancelledError):
            attempts.run()
    assert attempts.count == 1


def test_a_cancelled_call_that_may_have_taken_effect_is_unknown():
    with penstock.cancel_scope() as scope:
        scope.cancel()
        with pytest.raises(BackendError) as caught:
            Attempts(LOST).run(unknown=LOST)
    assert caught.value.outcome_unknown


def test_a_statement_that_the_server_cancels_is_cancelled_only_if_the_scope_has_ended():
    with pytest.raises(BackendError, match="in time"):
        Attempts(CANCELLED).run()
    with penstock.cancel_scope() as scope:
        scope.cancel()
        with pytest.raises(OperationCancelledError):
            Attempts(CANCELLED).run()


def test_the_error_says_whether_the_outage_is_logged():
    outage = Outage("store")
    outage.worked()
    outage.failed(LOST)

    def attempt():
        raise FailedAttemptError(LOST, is_last=True)

    with pytest.raises(BackendError) as caught:
        Retries(Patience(60.0), outage).run(attempt)
    assert caught.value.is_logged
