"""The queue of calls that both stores share, with a store that does what the test says."""

import contextlib
import itertools
import os
import signal
import sys
import threading
import time

import pytest
from tests.waiting import until

import penstock
from penstock.backends.engine import group_commit
from penstock.backends.engine.group_commit import GroupCommit, RetiredError
from penstock.errors import BackendError, OperationCancelledError

DEADLINE = 30


class Interruption(BaseException):
    """As KeyboardInterrupt, but harmless to the test runner."""


class Recording(GroupCommit):
    """Does each work, which is a function, and commits by writing down what was done.

    Attributes:
        gate: the leader waits here before it begins.
        last_gate: and here when the work of its group is done, before it commits.
        failure: what a commit fails with.
    """

    max_group = 50

    def __init__(self, *, timeout=DEADLINE):
        super().__init__(timeout)
        self.gate, self.last_gate = threading.Event(), threading.Event()
        self.gate.set()
        self.last_gate.set()
        self.is_working, self.is_done = threading.Event(), threading.Event()
        self.failure = None
        self.groups = []
        self.threads = []
        self._inside = threading.Lock()

    @property
    def committed(self):
        return [each for group in self.groups for each in group]

    def _commit(self, group):
        assert self._inside.acquire(blocking=False), "two threads lead"
        try:
            self.threads.append(threading.get_ident())
            self.is_working.set()
            assert self.gate.wait(DEADLINE)
            group[0].result = group[0].work()
            done = [group[0].result]
            if not group[0].alone:
                for call in self._followers(group):
                    try:
                        call.result = call.work()
                        done.append(call.result)
                    except Exception as error:
                        call.error = error
            self.is_done.set()
            assert self.last_gate.wait(DEADLINE)
            if self.failure is not None:
                raise self.failure
            self.groups.append(done)
            self._is_committed = True
        finally:
            self._inside.release()

    def assert_idle(self):
        assert self._leader is None
        assert not self._waiting
        assert self.run(lambda: "afterwards") == "afterwards"


class Calling(threading.Thread):
    """A call on a thread of its own, in a scope if there is one, that keeps its outcome.

    An `interruption` is set as the profiler of the thread.
    """

    def __init__(self, group, work, *, scope=None, interruption=None, **options):
        super().__init__(daemon=True)
        self._group, self._work, self._options = group, work, options
        self._scope, self._interruption = scope, interruption
        self.value = None
        self.start()

    def run(self):
        try:
            with self._scope or contextlib.nullcontext():
                sys.setprofile(self._interruption)
                self.value = self._group.run(self._work, **self._options)
        except BaseException as error:
            self.value = error
        finally:
            sys.setprofile(None)

    def outcome(self):
        self.join(DEADLINE)
        assert not self.is_alive(), "a call did not return"
        return self.value


@pytest.fixture
def group():
    return Recording()


def returns(value):
    return lambda: value


def fails(error):
    def work():
        raise error

    return work


@contextlib.contextmanager
def queued(group, *works, **options):
    """The first work leads and waits at the gate, the others queue up behind it, in this order."""
    group.is_working.clear()
    group.gate.clear()
    calls = [Calling(group, works[0], **options)]
    try:
        assert group.is_working.wait(DEADLINE)
        for number, work in enumerate(works[1:], start=1):
            calls.append(Calling(group, work))
            until(lambda number=number: len(group._waiting) == number)
        yield calls
    finally:
        group.gate.set()
    for each in calls:
        each.outcome()


def test_a_single_call_is_done_on_its_own_thread(group):
    assert [group.run(returns(number)) for number in range(5)] == list(range(5))
    assert group.groups == [[0], [1], [2], [3], [4]]
    assert set(group.threads) == {threading.get_ident()}


def test_calls_that_wait_together_are_one_group(group):
    with queued(group, *(returns(number) for number in range(8))) as calls:
        pass
    assert [each.outcome() for each in calls] == list(range(8))
    assert group.groups == [list(range(8))]
    group.assert_idle()


def test_no_group_is_larger_than_allowed(group):
    group.max_group = 3
    with queued(group, *(returns(number) for number in range(8))):
        pass
    assert group.groups == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_call_that_shares_with_no_other_has_a_group_of_its_own(group):
    with queued(group, returns("a"), returns("b")):
        Calling(group, returns("alone"), alone=True)
        until(lambda: len(group._waiting) == 2)
        last = Calling(group, returns("c"))
        until(lambda: len(group._waiting) == 3)
    last.outcome()
    assert group.groups == [["a", "b"], ["alone"], ["c"]]


@pytest.fixture
def restless():
    """Threads take turns a thousand times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_every_call_of_many_threads_is_done_once_and_gets_its_own_result(group):
    def many(number):
        for each in range(200):
            assert group.run(returns((number, each))) == (number, each)
        return "done"

    threads = [Calling(_Direct, lambda number=number: many(number)) for number in range(8)]
    assert [each.outcome() for each in threads] == ["done"] * 8
    assert sorted(group.committed) == [(number, each) for number in range(8) for each in range(200)]
    group.assert_idle()


class _Direct:
    """Calls a function without a group."""

    @staticmethod
    def run(work):
        return work()


def test_a_refused_call_fails_alone(group):
    refusal = ValueError("refused")
    with queued(group, returns("a"), fails(refusal), returns("b")) as calls:
        pass
    assert [each.outcome() for each in calls] == ["a", refusal, "b"]
    assert group.groups == [["a", "b"]]


def test_a_refused_leader_fails_alone(group):
    refusal = ValueError("refused")
    with queued(group, fails(refusal), returns("a"), returns("b")) as calls:
        pass
    assert [each.outcome() for each in calls] == [refusal, "a", "b"]
    assert group.groups == [["a", "b"]]


def test_when_a_group_fails_every_call_gets_an_error_object_of_its_own(group):
    """Because a raised exception collects the traceback of its thread; but all of them say the same."""
    group.failure = BackendError("gone", retryable=True, outcome_unknown=True)
    group.failure.is_logged = True
    with queued(group, returns("a"), returns("b"), fails(ValueError("refused")), returns("c")) as calls:
        pass
    errors = [each.outcome() for each in calls]
    assert errors[0] is group.failure
    assert len({id(error) for error in errors}) == 4
    for error in errors:
        assert type(error) is BackendError
        assert (str(error), error.retryable, error.outcome_unknown, error.is_logged) == (
            "gone",
            True,
            True,
            True,
        )
    assert group.groups == []
    group.failure = None
    group.assert_idle()


def test_an_error_that_is_not_the_stores_stays_with_the_leader(group):
    group.failure = ZeroDivisionError()
    with queued(group, returns("a"), returns("b")) as calls:
        pass
    assert calls[0].outcome() is group.failure
    assert isinstance(calls[1].outcome(), BackendError)
    assert calls[1].outcome().retryable


# -- scopes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["time", "hand"])
def test_a_scope_that_ends_before_a_leader_takes_the_call_withdraws_it(group, how):
    """Q54."""
    scope = penstock.cancel_scope(0.05 if how == "time" else None)
    with queued(group, returns("a"), returns("b")):
        withdrawn = Calling(group, returns("never"), scope=scope)
        if how == "hand":
            until(lambda: len(group._waiting) == 2)
            scope.cancel()
        error = withdrawn.outcome()
        assert len(group._waiting) == 1
    assert isinstance(error, OperationCancelledError)
    assert error.timed_out == (how == "time")
    assert group.groups == [["a", "b"]]
    group.assert_idle()


@pytest.mark.parametrize("how", ["time", "hand"])
def test_a_scope_that_ends_after_that_gets_the_true_outcome(group, how):
    scope = penstock.cancel_scope(0.2 if how == "time" else None)
    group.last_gate.clear()
    with queued(group, returns("a")):
        follower = Calling(group, returns("b"), scope=scope)
        until(lambda: len(group._waiting) == 1)
        group.gate.set()
        assert group.is_done.wait(DEADLINE)
        if how == "hand":
            scope.cancel()
        until(lambda: scope.cancelled)
        group.last_gate.set()
    assert follower.outcome() == "b"


def test_a_scope_that_has_ended_already_refuses_the_call(group):
    with penstock.cancel_scope(0), pytest.raises(OperationCancelledError):
        group.run(returns("never"))
    assert group.groups == []


def test_the_successor_of_a_leader_is_taken_in_order(group):
    """The first that waits leads next, also if it is in a scope."""
    with queued(group, returns("a")):
        calls = [
            Calling(group, returns("b"), alone=True, scope=penstock.cancel_scope(DEADLINE)),
        ]
        until(lambda: len(group._waiting) == 1)
        calls.append(Calling(group, returns("c"), alone=True))
        until(lambda: len(group._waiting) == 2)
    assert [each.outcome() for each in calls] == ["b", "c"]
    assert group.groups == [["a"], ["b"], ["c"]]


def test_calls_whose_time_is_over_fail_with_the_leader_that_waited_in_vain():
    group = Recording(timeout=0.05)
    group._failure = lambda error: (group._fail_overdue(error), error)[1]
    group.failure = BackendError("busy", retryable=True)
    with queued(group, returns("a")) as calls:
        overdue = Calling(group, returns("late"), alone=True)
        until(lambda: group._waiting and time.monotonic() > group._waiting[0].deadline)
        group._timeout = DEADLINE
        patient = Calling(group, returns("in time"), alone=True)
        until(lambda: len(group._waiting) == 2)
        group.last_gate.clear()
        group.is_done.clear()
        group.gate.set()
        assert group.is_done.wait(DEADLINE)
        fails_once(group)
        group.last_gate.set()
    assert str(calls[0].outcome()) == str(overdue.outcome()) == "busy"
    assert calls[0].outcome() is not overdue.outcome()
    assert patient.outcome() == "in time"


def fails_once(group):
    abandon = group._abandon

    def recover():
        group.failure = None
        abandon()

    group._abandon = recover


# -- interruptions ---------------------------------------------------------------------------------------------


def test_an_interrupted_leader_fails_its_group_and_the_next_one_leads(group):
    with queued(group, returns("a"), fails(Interruption()), returns("b"), returns("c")) as calls:
        pass
    outcomes = [each.outcome() for each in calls]
    assert isinstance(outcomes[0], Interruption)
    assert isinstance(outcomes[1], BackendError)
    assert outcomes[2:] == ["b", "c"]
    assert group.groups == [["b", "c"]]
    group.assert_idle()


def test_an_interruption_after_the_commit_is_the_leaders_alone(group):
    commit = group._commit

    def interrupted(calls):
        commit(calls)
        raise Interruption

    group._commit = interrupted
    with queued(group, returns("a"), returns("b")) as calls:
        pass
    group._commit = commit
    assert isinstance(calls[0].outcome(), Interruption)
    assert calls[1].outcome() == "b"
    group.assert_idle()


class At:
    """Raises Interruption at the n-th place in `group_commit` where Python would run a signal handler.

    That is at the start of a function, and after a call of one that is written in C.
    """

    def __init__(self, place):
        self._left = place
        self.has_hit = False

    def __call__(self, frame, event, _arg):
        if event not in ("call", "c_return") or frame.f_code.co_filename != group_commit.__file__:
            return
        self._left -= 1
        if self._left < 0:
            sys.setprofile(None)
            self.has_hit = True
            raise Interruption


def five_calls(group, position, at):
    """Return the outcomes of five calls, queued in this order if none is interrupted; the third is alone."""
    group.gate.clear()
    calls = []
    for number in range(5):
        profiler = at if number == position else None
        calls.append(Calling(group, returns(number), alone=number == 2, interruption=profiler))
        until(lambda: at.has_hit or group.is_working.is_set())
        until(lambda number=number: at.has_hit or len(group._waiting) == number)
    group.gate.set()
    return [each.outcome() for each in calls]


def check(number, outcome, group):
    """What was acknowledged was committed, what failed was not."""
    if isinstance(outcome, BackendError):
        assert number not in group.committed
    else:
        assert outcome == number
        assert number in group.committed


@pytest.mark.parametrize("how", ["commits", "fails"])
@pytest.mark.parametrize("who", ["leader", "follower", "successor"])
def test_an_interruption_at_any_place_strands_no_other_call(who, how):
    """Q54: wherever it comes, every other call ends with the truth, and the next call is served."""
    position = ["leader", "follower", "successor"].index(who)
    for place in itertools.count():
        group, at = Recording(), At(place)
        group.failure = BackendError("gone") if how == "fails" else None
        outcomes = five_calls(group, position, at)
        if at.has_hit:
            assert isinstance(outcomes[position], Interruption)
        for number, outcome in enumerate(outcomes):
            if number != position or not at.has_hit:
                check(number, outcome, group)
        assert len(group.committed) == len(set(group.committed))
        group.failure = None
        group.assert_idle()
        if not at.has_hit:
            assert place > 10
            return


def test_an_interruption_while_an_action_waits_for_idleness_leaves_the_lead(group):
    for place in itertools.count():
        at = At(place)
        outcome = Calling(_Idle(group), returns("found"), interruption=at).outcome()
        group.assert_idle()
        if not at.has_hit:
            assert outcome == "found"
            assert place > 3
            return
        assert isinstance(outcome, Interruption)


class _Idle:
    def __init__(self, group):
        self._group = group

    def run(self, action):
        return self._group.run_if_idle(action)


# -- closing, from within, idle, fork --------------------------------------------------------------------------


def test_closing_waits_for_the_calls_under_way_and_refuses_later_ones(group):
    with queued(group, returns("a"), returns("b")) as calls:
        closing = Calling(_Direct, group.close)
        until(lambda: group.is_closed)
        with pytest.raises(RetiredError):
            group.run(returns("late"))
        assert closing.is_alive()
    assert closing.outcome() is None
    assert [each.outcome() for each in calls] == ["a", "b"]


def test_retiring_gives_up_when_the_calls_under_way_take_too_long(group):
    with queued(group, returns("a")):
        assert not group.retire(0.01)
        assert not group.is_closed
    group.assert_idle()
    assert group.retire(0.01)
    assert group.is_closed


def test_the_leader_can_neither_write_nor_close_from_within(group):
    for what, action in (("written to", lambda: group.run(returns("b"))), ("closed", group.close)):
        error = Calling(group, action).outcome()
        assert isinstance(error, BackendError)
        assert f"{what} from within" in str(error)
    group.assert_idle()


def test_an_action_runs_only_while_no_call_is_under_way(group):
    assert group.run_if_idle(returns("idle")) == "idle"
    with queued(group, returns("a")):
        assert group.run_if_idle(fails(AssertionError("not idle"))) is None
    with pytest.raises(ZeroDivisionError):
        group.run_if_idle(lambda: 1 / 0)
    group.assert_idle()


def test_a_call_waits_for_an_action_that_runs_alone(group):
    running, go = threading.Event(), threading.Event()

    def action():
        running.set()
        assert go.wait(DEADLINE)
        return "found"

    idle = Calling(_Idle(group), action)
    assert running.wait(DEADLINE)
    call = Calling(group, returns("a"))
    until(lambda: len(group._waiting) == 1)
    go.set()
    assert (idle.outcome(), call.outcome()) == ("found", "a")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_with_an_empty_queue(group):
    """The leader and the followers are threads of the parent."""
    with queued(group, returns("a"), returns("b")) as calls, group._mutex:
        pid = os.fork()
        if pid == 0:
            signal.alarm(DEADLINE)  # a child that hangs is killed
            try:
                group.reset()
                group.gate.set()
                group._inside = threading.Lock()
                is_fine = group.run(returns("child")) == "child" and group.groups == [["child"]]
                os._exit(0 if is_fine else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [each.outcome() for each in calls] == ["a", "b"]
