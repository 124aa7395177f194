"""A store that is open when the process forks works on both sides, and SQLite's locks are not lost.

Forks happen inside a child process of the test, so that neither pytest nor its plugins are copied.
"""

import pytest
from tests.sqlite.support import all_jobs, assert_sound, open_store
from tests.tiers import some

from penstock.job import Job

pytestmark = pytest.mark.process

IN_CHILD = """
def in_child(action):
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            action()
            code = 0
        except BaseException as error:
            say(f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)
    return pid
def joined(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def stored(path):
    with open_store(path) as backend:
        assert_sound(backend, path)
        return sorted(job.id for job in all_jobs(backend))


def test_parent_and_child_both_work_after_a_fork(child, path):
    """RELIABILITY 5.1: and each sees what the other stored."""
    process = child(
        IN_CHILD
        + """
backend = store()
backend.enqueue_job(Job(id="before", type="t"))
backend.get_job("before")
def action():
    assert backend.get_job("before").id == "before"
    backend.enqueue_job(Job(id="by-child", type="t"))
pid = in_child(action)
backend.enqueue_job(Job(id="by-parent", type="t"))
say(joined(pid))
say(sorted(job.id for job in backend.list_jobs()))
backend.close()
"""
    )
    assert process.hear() == "0"
    assert process.hear() == "['before', 'by-child', 'by-parent']"
    assert process.wait() == 0
    assert stored(path) == ["before", "by-child", "by-parent"]


def test_multiprocessing_with_fork_works(child, path):
    process = child("""
import multiprocessing
backend = store()
backend.enqueue_job(Job(id="before", type="t"))
def action(name):
    backend.enqueue_job(Job(id=name, type="t"))
    backend.close()
context = multiprocessing.get_context("fork")
workers = [context.Process(target=action, args=(f"child-{n}",)) for n in range(4)]
for worker in workers: worker.start()
backend.enqueue_job(Job(id="parent", type="t"))
for worker in workers: worker.join()
say([worker.exitcode for worker in workers])
say(len(backend.list_jobs()))
""")
    assert process.hear() == "[0, 0, 0, 0]"
    assert process.hear() == "6"
    process.wait()
    assert len(stored(path)) == 6


def test_a_child_that_ends_takes_neither_locks_nor_wal_with_it(child, path):
    """How To Corrupt, 2.2: the parent holds a transaction open while the child uses the store and goes.

    A writer in a third process must still be kept out, and the -wal file must still be there.
    """
    process = child(
        IN_CHILD
        + """
backend = store()
backend.enqueue_job(Job(id="before", type="t"))
pid = in_child(lambda: backend.get_job("before"))
joined(pid)
def slow():
    say("inside")
    hear()
    yield Job(id="slow", type="t")
backend.enqueue_jobs(slow())
say("stored")
hear()
"""
    )
    assert process.hear() == "inside"
    other = child("""
backend = store(timeout=0.3)
try:
    backend.enqueue_job(Job(id="barged-in", type="t"))
except BackendError as error:
    say(error.retryable)
backend.close()
""")
    assert other.hear() == "True"
    other.wait()
    assert path.with_name("jobs.db-wal").is_file()
    process.say()
    assert process.hear() == "stored"
    process.say()
    process.wait()
    assert stored(path) == ["before", "slow"]


def test_the_wal_is_not_removed_under_a_parent_that_works(child, path):
    """The child closes its store, and so does its exit; the parent goes on writing through its own."""
    process = child(
        IN_CHILD
        + """
backend = store()
backend.enqueue_job(Job(id="before", type="t"))
def action():
    backend.enqueue_job(Job(id="by-child", type="t"))
    say("open")
    sys.stdin.readline()
    backend.close()
pid = in_child(action)
say("parent")
sys.stdout.flush()
for number in range(50):
    backend.enqueue_job(Job(id=f"during-{number}", type="t"))
say("half")
joined(pid)
for number in range(50):
    backend.enqueue_job(Job(id=f"after-{number}", type="t"))
say(os.path.exists(path + "-wal"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert {process.hear(), process.hear(), process.hear()} == {"open", "parent", "half"}
    process.say()
    assert process.hear() == "True"
    process.wait()
    assert len(stored(path)) == 102


def test_forking_while_other_threads_write_and_read(child, path):
    """Nothing is lost, nobody hangs, and every child can use the store."""
    process = child(
        IN_CHILD
        + """
backend = store()
acknowledged, stop = [], threading.Event()
def keep_on(name):
    number = 0
    while not stop.is_set():
        acknowledged.append(backend.enqueue_job(Job(id=f"{name}-{number}", type="t")))
        backend.get_job(f"{name}-{number}")
        number += 1
threads = [threading.Thread(target=keep_on, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
codes = []
for number in range(15):
    pid = in_child(lambda: backend.enqueue_job(Job(id=f"child-{number}", type="t")))
    codes.append(joined(pid))
stop.set()
for thread in threads: thread.join()
say(set(codes))
jobs = {row.job_id for row in backend.read_journal(limit=100_000)}
say(jobs >= set(acknowledged) and len(jobs) == len(acknowledged) + 15)
"""
    )
    assert process.hear() == "{0}"
    assert process.hear() == "True"
    assert process.wait() == 0
    stored(path)


def test_two_threads_may_fork_at_once(child):
    """Each fork closes the store and opens its gate again; one must not undo the other's."""
    process = child(
        IN_CHILD
        + """
backend = store()
codes = []
def fork_often():
    for _ in range(20):
        codes.append(joined(in_child(lambda: backend.get_job_stats())))
        backend.enqueue_job(Job(id=f"{threading.get_ident()}-{len(codes)}-{time.monotonic_ns()}", type="t"))
threads = [threading.Thread(target=fork_often) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say((set(codes), len(codes), backend.get_job_stats().total_jobs))
"""
    )
    assert process.hear() == "({0}, 80, 80)"


def test_a_transaction_under_way_may_read_while_another_thread_forks(child):
    """The fork waits for the transaction, and the transaction for nothing."""
    process = child(
        IN_CHILD
        + """
backend = store()
backend.enqueue_job(Job(id="old", type="t"))
inside, forking = threading.Event(), threading.Event()
def reading():
    inside.set()
    forking.wait(60)
    while not backend._store._writer_rests: threading.Event().wait(0.001)
    yield Job(id="new-" + backend.get_job("old").id, type="t")
thread = threading.Thread(target=lambda: backend.enqueue_jobs(reading()))
thread.start()
inside.wait(60)
forking.set()
say(joined(in_child(lambda: backend.get_job("new-old"))))
thread.join()
"""
    )
    assert process.hear() == "0"


def test_a_fork_does_not_wait_for_ever_for_a_transaction_that_waits_for_it(child, path):
    """As with enqueue_jobs(pool.imap(…)), whose pool forks a worker: the store stays with the parent then."""
    process = child(
        IN_CHILD
        + """
backend = store(timeout=0.5)
inside, forked = threading.Event(), threading.Event()
def waiting():
    inside.set()
    forked.wait(60)
    yield Job(id="stored", type="t")
thread = threading.Thread(target=lambda: backend.enqueue_jobs(waiting()))
thread.start()
inside.wait(60)
def action():
    try:
        backend.get_job_stats()
    except BackendError as error:
        say(error)
    backend.close()
pid = in_child(action)
forked.set()
thread.join()
say(joined(pid))
backend.enqueue_job(Job(id="later", type="t"))
say(len(backend.list_jobs()))
backend.close()
"""
    )
    assert "open one in the child" in process.hear()
    assert process.hear() == "0"
    assert process.hear() == "2"
    assert process.wait() == 0
    assert stored(path) == ["later", "stored"]


def test_a_fork_interrupted_while_it_waits_leaves_the_store_with_the_parent(child, path):
    """Ctrl-C reaches the hook, not the fork: the child is kept out, and the parent works on."""
    process = child(
        IN_CHILD
        + """
backend, other = store(), penstock.open_backend("sqlite:///" + path + ".other")
inside, go = threading.Event(), threading.Event()
def slow():
    inside.set()
    go.wait(60)
    yield Job(id="slow", type="t")
thread = threading.Thread(target=lambda: backend.enqueue_jobs(slow()))
thread.start()
inside.wait(60)
def interrupt():
    while not backend._store._current_writer().is_closed: threading.Event().wait(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
threading.Thread(target=interrupt).start()
sys.unraisablehook = lambda hook: say(hook.exc_type.__name__)
def action():
    other.enqueue_job(Job(id="by-child", type="t"))
    backend.get_job_stats()
pid = in_child(action)
joined(pid)
go.set()
thread.join()
backend.enqueue_job(Job(id="later", type="t"))
say(len(backend.list_jobs()))
say(len(other.list_jobs()))
say(joined(in_child(lambda: backend.get_job("later"))))
"""
    )
    assert process.hear() == "KeyboardInterrupt"
    assert "open one in the child" in process.hear()
    assert process.hear() == "2"
    assert process.hear() == "1"
    assert process.hear() == "0"
    assert process.wait() == 0
    assert stored(path) == ["later", "slow"]


def test_a_child_that_stops_watching_leaves_the_parent_its_hints(child):
    """The socket and its file are the parent's, whatever the child's queue does when it ends."""
    process = child(
        IN_CHILD
        + """
backend = store()
nudged = threading.Event()
stop = backend._store.watch(nudged.set)
joined(in_child(stop))
say(nudged.wait(0.3))
other = in_child(lambda: backend.enqueue_job(Job(id="a", type="t")))
joined(other)
say(nudged.wait(30))
stop()
"""
    )
    assert process.hear() == "False"
    assert process.hear() == "True"
    assert process.wait() == 0


@pytest.mark.parametrize("ending", some(["goes on", "raises", "exits", "uses it"], ["goes on", "uses it"]))
def test_a_fork_inside_a_transaction_is_safe(child, path, ending):
    """The child of an iterator may do what it likes: the transaction is the parent's, which commits it whole."""
    process = child(
        """
backend = store()
backend.enqueue_job(Job(id="before", type="t"))
backend.get_job("before")
ending = arguments[0]
def forking():
    for number in range(3_000):
        yield Job(id=f"first-{number}", type="t")
    if os.fork() == 0:
        if ending == "raises":
            raise ZeroDivisionError
        if ending == "exits":
            sys.exit(0)
        if ending == "uses it":
            backend.get_job("before")
    else:
        os.wait()
    for number in range(3_000):
        yield Job(id=f"second-{number}", type="t")
parent = os.getpid()
try:
    backend.enqueue_jobs(forking())
    say("stored" if os.getpid() == parent else "the child committed")
except BackendError as error:
    say("in the child" if "child" in str(error) else error)
except ZeroDivisionError:
    say("in the child")
if os.getpid() == parent:
    backend.close()
""",
        ending,
    )
    if ending != "exits":
        assert process.hear() == "in the child"
    assert process.hear() == "stored"
    assert process.wait() == 0
    assert len(stored(path)) == 6_001


def test_a_store_in_memory_stays_with_the_parent(child):
    process = child(
        IN_CHILD
        + """
backend = penstock.open_backend("memory:")
backend.enqueue_job(Job(id="before", type="t"))
def action():
    for attempt in (lambda: backend.get_job("before"), lambda: backend.enqueue_job(Job(id="b", type="t"))):
        try:
            attempt()
        except BackendError as error:
            say(error)
    backend.close()
say(joined(in_child(action)))
backend.enqueue_job(Job(id="after", type="t"))
say(len(backend.list_jobs()))
"""
    )
    assert "belongs to the process that opened it" in process.hear()
    assert "belongs to the process that opened it" in process.hear()
    assert process.hear() == "0"
    assert process.hear() == "2"


def test_a_fork_closes_nothing_that_another_store_of_the_process_needs(child, path):
    """Two objects on one file, one of them inside a transaction: the other's close must not drop its locks."""
    process = child(
        IN_CHILD
        + """
one, two = store(), store(timeout=0.3)
two.get_job_stats()
def slow():
    yield Job(id="a", type="t")
    two.close()
    say("inside")
    hear()
    yield Job(id="b", type="t")
one.enqueue_jobs(slow())
one.close()
"""
    )
    assert process.hear() == "inside"
    other = child("""
try:
    store(timeout=0.3).enqueue_job(Job(id="barged-in", type="t"))
except BackendError as error:
    say(error.retryable)
""")
    assert other.hear() == "True"
    process.say()
    assert process.wait() == 0
    assert stored(path) == ["a", "b"]


def test_a_child_may_change_its_folder_after_the_fork(tmp_path, child):
    """A daemon does: the path of the store must not move with the working folder."""
    process = child(
        IN_CHILD
        + """
os.chdir(os.path.dirname(path))
backend = penstock.open_backend("sqlite:///jobs.db")
backend.enqueue_job(Job(id="before", type="t"))
def action():
    os.chdir("/")
    backend.get_job("before")
    backend.enqueue_job(Job(id="by-child", type="t"))
say(joined(in_child(action)))
say(len(backend.list_jobs()))
"""
    )
    assert process.hear() == "0"
    assert process.hear() == "2"


def test_the_store_is_found_again_after_a_change_of_folder(tmp_path, monkeypatch):
    import penstock

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with penstock.open_backend("sqlite:///jobs.db") as backend:
        backend.enqueue_job(Job(id="a", type="t"))
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert backend.get_job("a").id == "a"
