"""Calls from many threads share a commit, and none of them pays for another's fault."""

import threading
import time
from pathlib import Path

import pytest
from tests.sqlite.support import (
    DEADLINE,
    Thread,
    all_jobs,
    assert_sound,
    group,
    jobs,
    journal,
    open_store,
    waiting_in,
    writer_of,
)
from tests.waiting import until

from penstock import cancel_scope
from penstock.errors import (
    BackendError,
    InvalidArgumentError,
    JobExistsError,
    OperationCancelledError,
    QueueClosedError,
)
from penstock.job import Job


@pytest.fixture
def backend(opened, clock):
    return opened(clock=clock)


def count_commits(backend):
    """Returns a list that grows by one with each commit."""
    commits = []
    writer_of(backend)._connection.set_commit_hook(lambda: bool(commits.append(1)))
    return commits


def put(backend, name):
    return lambda: backend.enqueue_job(Job(id=name, type="t"))


def stored(backend):
    return sorted(job.id for job in all_jobs(backend))


def test_calls_that_wait_together_share_one_commit(backend, clock):
    """Q52: eight threads, one transaction, one flush."""
    commits = count_commits(backend)
    with group(backend, clock, *(put(backend, f"job-{n}") for n in range(8))) as threads:
        pass
    assert [thread.outcome() for thread in threads] == [f"job-{n}" for n in range(8)]
    assert len(commits) == 1
    assert len(stored(backend)) == 8


def test_a_call_alone_has_a_commit_of_its_own(backend):
    commits = count_commits(backend)
    for number in range(5):
        backend.enqueue_job(Job(id=f"job-{number}", type="t"))
    assert len(commits) == 5


def test_many_threads_need_far_fewer_commits_than_calls(opened):
    """Q52."""
    backend = opened()
    commits = count_commits(backend)
    threads = [
        Thread(lambda n=n: [backend.enqueue_job(Job(id=f"{n}-{each}", type="t")) for each in range(50)])
        for n in range(8)
    ]
    assert not [thread for thread in threads if isinstance(thread.outcome(), BaseException)]
    assert len(all_jobs(backend)) == 400
    assert len(commits) < 250


def test_a_refused_call_undoes_nobody_elses(backend, clock):
    """B17: each call of a group stands and falls alone."""
    backend.enqueue_job(Job(id="taken", type="t"))
    commits = count_commits(backend)
    batch = lambda: backend.enqueue_jobs([*jobs(3, "batch"), Job(id="taken", type="t")])  # noqa: E731
    with group(backend, clock, put(backend, "a"), batch, put(backend, "b"), put(backend, "taken")) as threads:
        pass
    outcomes = [thread.outcome() for thread in threads]
    assert (outcomes[0], outcomes[2]) == ("a", "b")
    assert isinstance(outcomes[1], JobExistsError)
    assert isinstance(outcomes[3], JobExistsError)
    assert stored(backend) == ["a", "b", "taken"]
    assert len(commits) == 1
    assert_sound(backend)


def test_a_refused_leader_undoes_nobody_elses(backend, clock):
    backend.enqueue_job(Job(id="taken", type="t"))
    with group(backend, clock, put(backend, "taken"), put(backend, "a"), put(backend, "b")) as threads:
        pass
    assert isinstance(threads[0].outcome(), JobExistsError)
    assert stored(backend) == ["a", "b", "taken"]


def test_insertion_numbers_stay_apart_after_a_refused_call_in_a_group(backend, clock, path):
    """The numbers a refused call drew are drawn again, by nobody twice."""
    backend.enqueue_job(Job(id="taken", type="t"))
    batch = lambda: backend.enqueue_jobs([*jobs(3, "batch"), Job(id="taken", type="t")])  # noqa: E731
    with group(backend, clock, put(backend, "a"), batch, put(backend, "b"), put(backend, "c")):
        pass
    rows = writer_of(backend)._connection.execute("SELECT id, seq FROM job ORDER BY seq").fetchall()
    assert [name for name, _ in rows] == ["taken", "a", "b", "c"]
    assert len({number for _, number in rows}) == 4


def test_nobody_is_answered_before_the_commit(backend, clock):
    """An acknowledgement means durable: while the commit is under way, no caller has returned."""
    committing, may_commit = threading.Event(), threading.Event()

    def hook():
        committing.set()
        assert may_commit.wait(DEADLINE)
        return False

    writer_of(backend)._connection.set_commit_hook(hook)
    with group(backend, clock, *(put(backend, f"job-{n}") for n in range(4))) as threads:
        clock.open()
        assert committing.wait(DEADLINE)
        alive = [thread.is_alive() for thread in threads]
        may_commit.set()
    assert alive == [True] * 4
    assert len(stored(backend)) == 4


def test_a_failed_commit_is_told_to_everybody_in_it(backend, clock):
    """And each gets an exception of its own, because a raised one collects its thread's traceback."""
    writer_of(backend)._connection.set_commit_hook(lambda: True)
    with group(backend, clock, *(put(backend, f"job-{n}") for n in range(4))) as threads:
        pass
    errors = [thread.outcome() for thread in threads]
    assert all(isinstance(error, BackendError) for error in errors)
    assert len({id(error) for error in errors}) == 4
    writer_of(backend)._connection.set_commit_hook(None)
    assert stored(backend) == []
    backend.enqueue_job(Job(id="after", type="t"))
    assert [row.seq for row in journal(backend)] == [1]


def test_a_fault_in_one_work_leaves_the_others_unharmed(backend, clock):
    def faulty(_tx):
        _tx.cursor.execute("INSERT INTO setting (name, value) VALUES ('half', 1)")
        raise ZeroDivisionError

    with group(
        backend, clock, put(backend, "a"), lambda: backend._store.write(faulty), put(backend, "b")
    ) as threads:
        pass
    assert isinstance(threads[1].outcome(), ZeroDivisionError)
    assert stored(backend) == ["a", "b"]
    half = "SELECT count(*) FROM setting WHERE name = 'half'"
    assert writer_of(backend)._connection.execute(half).fetchall() == [(0,)]


def test_a_damaged_row_troubles_those_who_share_its_transaction_once(backend, clock):
    """Claims are not guarded, for their speed, until one of them meets what should not be there."""
    backend.enqueue_job(Job(id="damaged", type="bad"))
    connection = writer_of(backend)._connection
    connection.execute("UPDATE job SET tags = '[1]' WHERE id = 'damaged'")
    claim = lambda: backend.dequeue_jobs("w", types=["bad"])  # noqa: E731
    with group(backend, clock, put(backend, "a"), put(backend, "b"), claim) as threads:
        pass
    ours, another, culprit = (thread.outcome() for thread in threads)
    assert "a stored row is damaged" in str(culprit)
    for error in (ours, another):
        assert isinstance(error, BackendError)
        assert error.retryable
        assert error is not culprit
    assert stored_ids(connection) == ["damaged"]
    with group(backend, clock, put(backend, "a"), put(backend, "b"), claim) as threads:
        pass
    ours, another, culprit = (thread.outcome() for thread in threads)
    assert (ours, another) == ("a", "b")
    assert "a stored row is damaged" in str(culprit)
    assert stored_ids(connection) == ["a", "b", "damaged"]


def stored_ids(connection):
    return [name for (name,) in connection.execute("SELECT id FROM job ORDER BY id")]


class Interruption(BaseException):
    """As KeyboardInterrupt, but harmless to the test runner."""


@pytest.mark.parametrize("position", [0, 1])
def test_an_interruption_inside_a_shared_transaction_is_nobodys_loss(backend, clock, position):
    """The thread it hits gets it; the others are told to try again, or are served by the next leader."""

    def interrupted(_tx):
        raise Interruption

    actions = [put(backend, "a"), put(backend, "b"), put(backend, "c")]
    actions[position] = lambda: backend._store.write(interrupted)
    with group(backend, clock, *actions) as threads:
        pass
    outcomes = [thread.outcome() for thread in threads]
    assert isinstance(outcomes[0], Interruption)
    for name, outcome in zip("abc", outcomes, strict=True):
        assert (name in stored(backend)) == (outcome == name)
        assert outcome == name or isinstance(outcome, Interruption | BackendError)
    backend.enqueue_job(Job(id="after", type="t"))
    assert_sound(backend)


def test_an_interruption_after_the_commit_tells_the_others_the_truth(backend, clock):
    """They were committed, so they must not be told to try again."""
    backend._store.on_commit = lambda _: (_ for _ in ()).throw(Interruption)
    with group(backend, clock, put(backend, "a"), put(backend, "b")) as threads:
        pass
    backend._store.on_commit = None
    assert isinstance(threads[0].outcome(), Interruption)
    assert threads[1].outcome() == "b"
    assert stored(backend) == ["a", "b"]


@pytest.mark.process
def test_ctrl_c_while_waiting_leaves_the_queue_in_order(child):
    """Q54: the place of an interrupted thread is not left to lead with nobody behind it."""
    process = child("""
backend = store()
entered, go = threading.Event(), threading.Event()
def slow():
    entered.set()
    go.wait(60)
    yield Job(id="slow", type="t")
leader = threading.Thread(target=lambda: backend.enqueue_jobs(slow()))
leader.start()
entered.wait(60)
writer = backend._store._current_writer()
def interrupt():
    while len(writer._waiting) < 1: threading.Event().wait(0.001)
    follower.start()
    while len(writer._waiting) < 2: threading.Event().wait(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
follower = threading.Thread(target=lambda: backend.enqueue_job(Job(id="follower", type="t")))
threading.Thread(target=interrupt).start()
try:
    backend.enqueue_job(Job(id="gone", type="t"))
except KeyboardInterrupt:
    say("interrupted")
go.set()
leader.join(); follower.join()
backend.enqueue_job(Job(id="later", type="t"))
say(" ".join(job.id for job in backend.list_jobs()))
backend.close()
say("closed")
""")
    assert process.hear() == "interrupted"
    assert process.hear() == "slow follower later"
    assert process.hear() == "closed"
    assert process.wait() == 0


@pytest.mark.process
def test_ctrl_c_in_the_leader_stores_nothing_and_the_next_one_leads(child):
    """Q54."""
    process = child("""
backend = store()
writer = backend._store._current_writer()
def endless():
    yield Job(id="never", type="t")
    follower.start()
    while not writer._waiting: threading.Event().wait(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Event().wait(60)
follower = threading.Thread(target=lambda: backend.enqueue_job(Job(id="follower", type="t")))
try:
    backend.enqueue_jobs(endless())
except KeyboardInterrupt:
    say("interrupted")
follower.join()
say(" ".join(job.id for job in backend.list_jobs()))
backend.close()
""")
    assert process.hear() == "interrupted"
    assert process.hear() == "follower"
    assert process.wait() == 0


# -- scopes ----------------------------------------------------------------------------------------------------


def in_scope(scope, action):
    def run():
        with scope:
            return action()

    return run


def test_a_scope_that_ends_before_the_turn_withdraws_the_call(backend, clock):
    """C36b, Q54."""
    late = in_scope(cancel_scope(0.05), put(backend, "late"))
    with group(backend, clock, put(backend, "a"), late) as threads:
        error = threads[1].outcome()
    assert isinstance(error, OperationCancelledError)
    assert error.timed_out
    assert stored(backend) == ["a"]
    assert [row.seq for row in journal(backend)] == [1]


def test_a_scope_cancelled_from_another_thread_withdraws_the_call(backend, clock):
    """C36b, Q54."""
    scope = cancel_scope()
    with group(backend, clock, put(backend, "a"), in_scope(scope, put(backend, "late"))) as threads:
        scope.cancel()
        error = threads[1].outcome()
    assert isinstance(error, OperationCancelledError)
    assert not error.timed_out
    assert stored(backend) == ["a"]


@pytest.mark.parametrize("how", ["time", "hand"])
def test_a_scope_that_ends_after_the_turn_gives_the_true_outcome(backend, clock, how):
    """C36b: the leader is inside its transaction when the scope ends, and is stored all the same."""
    scope = cancel_scope(0.05 if how == "time" else None)
    with group(backend, clock, in_scope(scope, put(backend, "a"))) as threads:
        if how == "hand":
            scope.cancel()
        until(lambda: scope.cancelled)
    assert threads[0].outcome() == "a"
    assert stored(backend) == ["a"]


@pytest.mark.parametrize("how", ["time", "hand"])
def test_a_follower_whose_scope_ends_after_the_turn_gets_the_true_outcome(backend, clock, how):
    """C36b."""
    scope = cancel_scope(0.2 if how == "time" else None)
    committing, may_commit = threading.Event(), threading.Event()

    def hook():
        committing.set()
        assert may_commit.wait(DEADLINE)
        return False

    writer_of(backend)._connection.set_commit_hook(hook)
    with group(backend, clock, put(backend, "a"), in_scope(scope, put(backend, "b"))) as threads:
        clock.open()
        assert committing.wait(DEADLINE)
        if how == "hand":
            scope.cancel()
        until(lambda: scope.cancelled)
        may_commit.set()
    assert threads[1].outcome() == "b"
    assert stored(backend) == ["a", "b"]


# -- from within -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_writing_from_the_iterator_given_to_enqueue_jobs_is_refused(opened, kind):
    import penstock

    backend = opened() if kind == "file" else penstock.open_backend("memory:")

    def reentrant():
        yield Job(id="a", type="t")
        backend.enqueue_job(Job(id="b", type="t"))

    with pytest.raises(InvalidArgumentError, match="while they are iterated"):
        backend.enqueue_jobs(reentrant())
    assert stored(backend) == []
    backend.enqueue_job(Job(id="c", type="t"))
    assert stored(backend) == ["c"]
    backend.close()


def test_reading_from_the_iterator_sees_what_was_committed(opened):
    backend = opened()
    backend.enqueue_job(Job(id="old", type="t"))

    def reading():
        yield Job(id=f"after-{backend.get_job('old').id}", type="t")

    assert backend.enqueue_jobs(reading()) == ["after-old"]


def test_closing_from_the_iterator_is_refused_and_nothing_is_stored(opened):
    """B16: it would wait for itself for ever."""
    backend = opened()

    def closing():
        yield Job(id="a", type="t")
        backend.close()

    with pytest.raises(BackendError, match="closed from within its own transaction"):
        backend.enqueue_jobs(closing())
    assert stored(backend) == []
    backend.close()


def test_a_listener_that_raises_harms_nobody(backend, clock):
    heard = []
    backend.runtime.listen(lambda changes: heard.append(changes) or 1 / 0)
    with group(backend, clock, put(backend, "a"), put(backend, "b")) as threads:
        pass
    assert [thread.outcome() for thread in threads] == ["a", "b"]
    assert [change.job_id for changes in heard for change in changes] == ["a", "b"]


def test_the_end_of_listening_may_come_after_the_close(opened):
    backend = opened()
    stop = backend.runtime.listen(lambda _: None)
    backend.close()
    stop()


# -- closing ---------------------------------------------------------------------------------------------------


def test_closing_waits_for_the_calls_under_way(opened, clock, path):
    """B16, Q51: those that came in time are stored and answered, those that come later are refused."""
    backend = opened(clock=clock)
    with group(backend, clock, put(backend, "a"), put(backend, "b")) as threads:
        closing = Thread(backend.close)
        until(lambda: backend._store._closed)
        with pytest.raises(QueueClosedError):
            backend.enqueue_job(Job(id="late", type="t"))
        assert closing.is_alive()
    assert closing.outcome() is None
    assert [thread.outcome() for thread in threads] == ["a", "b"]
    with open_store(path) as again:
        assert stored(again) == ["a", "b"]


def test_closing_from_many_threads(opened):
    """B16, C18."""
    backend = opened()
    assert [thread.outcome() for thread in [Thread(backend.close) for _ in range(8)]] == [None] * 8
    with pytest.raises(QueueClosedError):
        backend.get_job("a")


def test_a_call_under_way_is_answered_or_refused_by_a_close(opened, path):
    """C18: never anything else, and what was acknowledged is there."""
    acknowledged = set()

    def keep_on(backend, name):
        for number in range(10_000):
            try:
                acknowledged.add(backend.enqueue_job(Job(id=f"{name}-{number}", type="t")))
                backend.get_job(f"{name}-{number}")
            except QueueClosedError:
                return

    for attempt in range(10):
        backend = open_store(path)
        threads = [Thread(lambda n=n: keep_on(backend, f"{attempt}-{n}")) for n in range(4)]  # noqa: B023
        goal = len(acknowledged) + 8
        until(lambda: len(acknowledged) >= goal)  # noqa: B023
        backend.close()
        assert [thread.outcome() for thread in threads] == [None] * 4
    with open_store(path) as backend:
        assert acknowledged == {job.id for job in all_jobs(backend)}
        assert_sound(backend, path)


@pytest.mark.slow
def test_starting_and_stopping_leaks_no_threads_and_no_descriptors(path):
    """B16: a hundred rounds with calls from several threads."""

    def round_(number):
        with open_store(path) as backend:
            threads = [Thread(put(backend, f"{number}-{n}")) for n in range(3)]
            backend.get_job_stats()
            assert not [t for t in threads if isinstance(t.outcome(), BaseException)]

    round_(-1)
    before = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    for number in range(100):
        round_(number)
    assert (len(list(Path("/proc/self/fd").iterdir())), threading.active_count()) == before


def test_calls_queued_behind_a_blocked_leader_all_learn_in_time(opened, path):
    """RELIABILITY F16: the last of twenty waits no longer than the first; `timeout` is not added up."""
    import apsw

    backend = opened(timeout=0.5)
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    threads = [Thread(put(backend, f"job-{n}")) for n in range(20)]
    errors = [thread.outcome() for thread in threads]
    took = time.monotonic() - began
    foreign.close()
    assert all(isinstance(error, BackendError) and error.retryable for error in errors)
    assert took < 5
    assert stored(backend) == []
    backend.enqueue_job(Job(id="after", type="t"))


def test_waiting_behind_a_group_can_be_cancelled_while_another_process_holds_the_store(opened, path):
    """Q54, C36b: the leader waits for SQLite's lock, and a cancel by hand reaches it at once."""
    import apsw

    backend = opened(timeout=30)
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")
    scope = cancel_scope()
    began = time.monotonic()
    caller = Thread(in_scope(scope, put(backend, "a")))
    until(lambda: writer_of(backend)._leader is not None)
    assert waiting_in(backend) == 0
    scope.cancel()
    assert isinstance(caller.outcome(), OperationCancelledError)
    assert time.monotonic() - began < 10
    foreign.close()
    assert stored(backend) == []
