"""Start, watch, signal, reap: with real processes that crash, hang, multiply, flood and escape."""

import ctypes.util
import errno
import gc
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest
from tests.process.conftest import SPARES, Listener, children, is_alive
from tests.waiting import freeze, until

from penstock import InvalidArgumentError, ProcessControlError
from penstock.isolation import (
    Answer,
    Grace,
    JobProcess,
    Limits,
    Message,
    Progress,
    Request,
    Setup,
    Supervisor,
    Task,
    starting,
    system,
)
from penstock.isolation.hooks import PUT_OFF
from penstock.isolation.messages import MAX_FRAME
from penstock.isolation.template import Start

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

SOON = Grace(notice=0.05, term=0.05)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def below_template(supervisor: Supervisor) -> set[int]:
    """Return the processes that a template has forked."""
    template = next(iter(supervisor._wardens)).mark
    marked = system.marked(template)
    parent_of = system.parents()
    return {pid for pid in marked if parent_of.get(pid) in marked}


def wait_for_spares(supervisor: Supervisor, number: int = SPARES) -> set[int]:
    until(lambda: len(below_template(supervisor)) == number)
    return below_template(supervisor)


@contextmanager
def suspended(supervisor: Supervisor) -> Iterator[None]:
    """Keep the supervisor's thread from reading anything while the block runs."""
    go_on, stopped = threading.Event(), threading.Event()

    def stop(_mask: int) -> None:
        reactor._drain_wake(_mask)
        stopped.set()
        go_on.wait(30)

    reactor = supervisor._reactor
    wake = reactor._wake.fileno()
    reactor._selector.modify(wake, selectors.EVENT_READ, stop)
    reactor._wake_end.send(b"x")
    assert stopped.wait(10)
    reactor._selector.modify(wake, selectors.EVENT_READ, reactor._drain_wake)
    try:
        yield
    finally:
        go_on.set()


# -- processes that wait for a job ---------------------------------------------------------------------------------


def test_processes_are_ready_before_there_are_jobs_and_each_runs_one(jobs):
    supervisor = jobs.supervisor("facts")
    supervisor.start()
    waiting = wait_for_spares(supervisor)
    process, listener = jobs.start("facts")
    listener.ending()
    assert process.pid in waiting
    now_waiting = wait_for_spares(supervisor)
    assert process.pid not in now_waiting
    assert len(now_waiting & waiting) == SPARES - 1
    supervisor.close()
    assert not any(is_alive(pid) for pid in now_waiting)


def test_a_spare_process_that_dies_fails_no_job_and_is_replaced(jobs):
    supervisor = jobs.supervisor("echo")
    supervisor.start()
    waiting = wait_for_spares(supervisor)
    files = open_files()
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
    wait_for_spares(supervisor, 0)
    until(lambda: open_files() == files - 2 * SPARES)
    _, listener = jobs.start("echo", b"all the same")
    assert listener.result() == b"all the same"
    assert listener.ending().is_clean
    assert not wait_for_spares(supervisor) & waiting


def test_a_job_given_to_a_process_that_is_dying_has_an_end(jobs):
    supervisor = jobs.supervisor("echo")
    supervisor.start()
    listeners = []
    for _ in range(30):
        for pid in below_template(supervisor):
            with suppress(ProcessLookupError):  # the last one's job has just ended
                os.kill(pid, signal.SIGKILL)
        listeners.append(jobs.start("echo", b"x")[1])
    endings = [listener.ending() for listener in listeners]
    assert {ending.signal for ending in endings} <= {None, signal.SIGKILL}

    def is_complete() -> bool:
        """A launch replaces those that are known to be dead, so after one that knows of all, none is missing."""
        jobs.start("echo", b"x")[1].ending()
        return len(below_template(supervisor)) == SPARES

    until(is_complete)


def test_a_process_known_to_be_dead_gets_no_job(jobs):
    supervisor = jobs.supervisor("echo")
    supervisor.start()
    waiting = wait_for_spares(supervisor)
    (template,) = supervisor._wardens
    with suspended(supervisor):  # so that their end is not reported
        for pid in waiting:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, waiting)))
        _, listener = jobs.start("echo", b"lives")
        assert len(template.jobs) == 1
    assert listener.result() == b"lives"
    assert listener.ending().is_clean


def test_launches_at_once_make_no_more_processes_than_are_wanted(jobs):
    supervisor = jobs.supervisor("echo")
    supervisor.start()
    listeners = [Listener() for _ in range(16)]
    threads = [threading.Thread(target=supervisor.launch, args=(b"", each)) for each in listeners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.ending()
    wait_for_spares(supervisor)


def test_without_descriptors_for_the_next_process_the_job_runs_all_the_same(jobs, monkeypatch):
    supervisor = jobs.supervisor("echo")
    supervisor.start()
    wait_for_spares(supervisor)

    def none_left(process):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(supervisor._pipes, "open", none_left)
        listeners = [jobs.start("echo", b"x")[1] for _ in range(SPARES)]
        assert [listener.result() for listener in listeners] == [b"x"] * SPARES
        with pytest.raises(OSError, match="Too many"):
            jobs.start("echo")
    _, listener = jobs.start("echo", b"y")
    assert listener.result() == b"y"
    wait_for_spares(supervisor)


def test_what_is_too_large_to_be_sent_takes_nothing(jobs):
    supervisor = jobs.supervisor("echo")
    supervisor.start()
    waiting = wait_for_spares(supervisor)
    with pytest.raises(InvalidArgumentError, match="the limit is"):
        jobs.start("echo", bytes(MAX_FRAME + 1))
    assert wait_for_spares(supervisor) == waiting


def test_more_jobs_than_processes_that_wait_all_start(jobs):
    tasks = [Task(b"%d" % number, Listener()) for number in range(3 * SPARES)]
    jobs.supervisor("echo").launch_many(tasks)
    assert [task.watcher.result() for task in tasks] == [task.payload for task in tasks]


def test_a_template_that_is_killed_takes_those_that_wait_along(jobs):
    supervisor = jobs.supervisor("echo")
    supervisor.start()
    waiting = wait_for_spares(supervisor)
    files = open_files()
    os.kill(system.parents()[next(iter(waiting))], signal.SIGKILL)
    until(lambda: not any(map(is_alive, waiting)))
    until(lambda: open_files() == files - 2 * SPARES - 1)
    _, listener = jobs.start("echo", b"from a new one")
    assert listener.result() == b"from a new one"


# -- starting ------------------------------------------------------------------------------------------------------


def test_a_job_runs_in_a_process_of_its_own_and_answers(jobs):
    process, listener = jobs.start("echo", b"hello")
    assert listener.result() == b"hello"
    ending = listener.ending()
    assert (ending.is_clean, ending.exit_code, ending.left) == (True, 0, 0)
    assert process.wait(1) is ending
    assert process.pid not in {None, os.getpid()}


def test_the_process_is_as_a_job_expects_it(jobs, monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///secret.db")
    _, listener = jobs.start("facts")
    is_leader, is_below_template, has_url, descriptors, has_default_signals, threads = eval(listener.result())
    assert (is_leader, is_below_template, has_url, has_default_signals, threads) == (
        True,
        True,
        False,
        True,
        1,
    )
    # stdin, stdout, stderr, its channel, and the one that lists them; nothing of its supervisor or other jobs
    assert descriptors == 5


def test_forking_is_as_safe_in_a_job_as_anywhere(jobs):
    # The template puts hooks off; a job that has threads needs them.
    _, listener = jobs.start("after_fork")
    assert eval(listener.result()) == [0, True, "posix"]


def test_a_payload_larger_than_a_socket_arrives_whole(jobs):
    data = os.urandom(5_000_000)
    _, listener = jobs.start("echo", data)
    assert listener.result() == data


def test_jobs_get_different_random_numbers(jobs):
    tasks = [Task(b"", Listener()) for _ in range(4)]
    jobs.supervisor("random_numbers").launch_many(tasks)
    assert len({task.watcher.result() for task in tasks}) == len(tasks)


def test_a_target_that_cannot_be_imported_is_said_with_its_traceback():
    supervisor = Supervisor(Setup(entry="tests.process.entries:echo", target="no_such_module:app"))
    before = children()
    with pytest.raises(ProcessControlError, match="No module named 'no_such_module'"):
        supervisor.start()
    assert children() == before
    supervisor.close()


@pytest.mark.parametrize("name", ["echo", ":echo", "module:", 7])
def test_a_setup_names_module_and_attribute(name):
    with pytest.raises(InvalidArgumentError, match="module:attribute"):
        Setup(entry=name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory", 10),
        ("processes", 0),
        ("files", True),
        ("seconds", -1),
        ("seconds", float("nan")),
        ("output", None),
    ],
)
def test_a_wrong_limit_is_refused(field, value):
    with pytest.raises(InvalidArgumentError) as caught:
        Limits(**{field: value})
    assert (caught.value.field, caught.value.value is value) == (field, True)


def test_what_an_import_leaves_open_is_named_and_each_job_imports_for_itself(tmp_path, monkeypatch):
    (tmp_path / "leaves_things.py").write_text(
        "import os, socket, sqlite3, threading\n"
        "thread = threading.Thread(target=threading.Event().wait, name='left-behind', daemon=True)\n"
        "thread.start()\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "store = sqlite3.connect(os.path.join(os.path.dirname(__file__), 'jobs.db'))\n"
        "store.execute('CREATE TABLE IF NOT EXISTS t (x)')\n"
        "pid = os.getpid()\n"
        "def entry(target, payload, channel):\n"
        "    from penstock.isolation import Result\n"
        "    channel.send(Result(str(target == os.getpid()).encode()))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reported = []
    supervisor = Supervisor(
        Setup(entry="leaves_things:entry", target="leaves_things:pid"), on_hazards=reported.append
    )
    listener = Listener()
    supervisor.launch(b"", listener)
    assert listener.result() == b"True"  # imported in the process of the job
    text = " ".join(supervisor.hazards)
    assert "'left-behind'" in text
    assert "socket" in text
    assert "jobs.db" in text
    assert reported == [supervisor.hazards]
    supervisor.close()


LIBRARY = """
import os
import re
{imports}
pid = os.getpid()
def entry(target, payload, channel):
    from penstock.isolation import Result
    {use}
    channel.send(Result(f"{{target}} {{os.getppid()}} {{os.getpid()}}".encode()))
"""
ARROW = "import pyarrow.compute; pyarrow.compute.sum(pyarrow.array(range(100000)))"


def where_imported(tmp_path, monkeypatch, imports, use="pass"):
    """Run a job whose module imports something; return where that was done, and what was said about it."""
    (tmp_path / "uses_library.py").write_text(LIBRARY.format(imports=imports, use=use))
    monkeypatch.syspath_prepend(tmp_path)
    supervisor = Supervisor(Setup(entry="uses_library:entry", target="uses_library:pid"))
    listeners = [Listener() for _ in range(3)]
    try:
        for listener in listeners:
            supervisor.launch(b"", listener)
        results = [[int(word) for word in listener.result().split()] for listener in listeners]
    finally:
        supervisor.close()
    if all(imported == parent for imported, parent, _ in results):
        return "template", supervisor.hazards
    assert all(imported == own for imported, _, own in results)
    return "job", supervisor.hazards


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        ("import numpy", "import numpy; numpy.ones((300, 300)) @ numpy.ones((300, 300))"),
        (
            "import numpy; numpy.ones((300, 300)) @ numpy.ones((300, 300))",
            "import numpy; numpy.linalg.inv(numpy.eye(300))",
        ),
        ("import pandas", "import pandas; pandas.DataFrame({'n': [1, 2]}).groupby('n').sum()"),
        ("import pyarrow", ARROW),
        ("import pyarrow.compute, pyarrow.dataset, pandas", ARROW),
    ],
    ids=["numpy", "numpy in use", "pandas", "pyarrow", "all"],
)
def test_jobs_are_forked_from_a_template_that_has_imported_such_a_library(
    tmp_path, monkeypatch, imports, use
):
    pytest.importorskip("pyarrow")
    monkeypatch.delenv("JE_ARROW_MALLOC_CONF", raising=False)
    assert where_imported(tmp_path, monkeypatch, imports, use) == ("template", ())


def test_a_setting_of_the_user_is_left_alone_and_the_thread_of_the_library_is_named(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("JE_ARROW_MALLOC_CONF", "background_thread:true")
    where, hazards = where_imported(tmp_path, monkeypatch, "import pyarrow")
    assert (where, hazards) == ("job", ("thread 'jemalloc_bg_thd' of a library",))


OPENMP = """
import ctypes, ctypes.util
gomp = ctypes.CDLL(ctypes.util.find_library("gomp"))
step = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
def parallel():
    gomp.GOMP_parallel(step, None, 3, 0)
{first}
"""


@pytest.mark.skipif(ctypes.util.find_library("gomp") is None, reason="needs the OpenMP library of GCC")
@pytest.mark.parametrize(
    ("first", "where"), [("", "template"), ("parallel()", "job")], ids=["unused", "in use"]
)
def test_a_pool_of_openmp_threads_is_never_forked_and_jobs_can_use_it(tmp_path, monkeypatch, first, where):
    """A job that was forked beside such a pool would wait for ever for threads that are not there."""
    found, hazards = where_imported(tmp_path, monkeypatch, OPENMP.format(first=first), "parallel()")
    assert found == where
    assert len(hazards) == (where == "job")
    assert all(re.fullmatch(r"2 threads '\S+' of a library", text) for text in hazards)


def test_an_app_in_a_script_is_found_by_the_scripts_path(tmp_path):
    script = tmp_path / "app.py"
    script.write_text(
        "import threading\n"
        "from penstock.isolation import Result, Setup, Supervisor\n"
        "class App: name = 'the app'\n"
        "app = App()\n"
        "def entry(target, payload, channel):\n"
        "    channel.send(Result(f'{target.name} in {__name__}'.encode()))\n"
        "class Watcher:\n"
        "    def received(self, process, message): print(message.data.decode(), flush=True)\n"
        "    def ended(self, process, ending): print(ending.cause, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    supervisor = Supervisor(Setup(entry='__main__:entry', target='__main__:app', main=__file__))\n"
        "    supervisor.launch(b'', Watcher()).wait(30)\n"
        "    supervisor.close()\n"
    )
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["the app in __mp_main__", "process exited with code 0"], done.stderr


# -- talking -------------------------------------------------------------------------------------------------------


def test_everything_a_job_says_arrives_in_order(jobs):
    _, listener = jobs.start("report_progress", b"done")
    assert [listener.messages.get(timeout=30) for _ in range(100)] == [
        Progress(percent, f"step {percent}") for percent in range(100)
    ]
    assert listener.result() == b"done"


class Answering(Listener):
    def received(self, process: JobProcess, message: Message) -> None:
        if isinstance(message, Request):
            is_known = message.verb == "double"
            error = "" if is_known else f"there is no {message.verb}"
            process.send(Answer(message.number, message.body * 2, error))
        else:
            super().received(process, message)


def test_a_job_asks_and_is_answered(jobs):
    listener = Answering()
    jobs.supervisor("ask").launch(b"", listener)
    assert listener.result() == b"200000 there is no refuse"


def test_a_job_that_writes_no_messages_is_killed(jobs):
    _, listener = jobs.start("garbage")
    assert listener.ending().signal == signal.SIGKILL


def test_output_is_kept_in_bounds_and_never_blocks_the_job(jobs):
    """F22: very much output fills neither memory nor disk; its beginning and its end can be read."""
    process, listener = jobs.start("flood", b"300000000", limits=Limits(output=10_000))
    assert listener.ending().is_clean
    assert process.output.total > 299_000_000
    text = process.output.text()
    assert text.startswith("the first line\n")
    assert text.endswith("the last line\n")
    assert "bytes left out" in text
    assert len(process.output._tail) <= 10_000  # nor is more kept than is shown
    assert len(text) < 11_000


# -- dying ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        ("segfault", "process died of a segmentation fault (SIGSEGV)"),
        ("exit_three", "process exited with code 3"),
        ("kill_itself", "process was killed (SIGKILL), probably by another process"),
        ("raise_something", "process exited with code 1"),
    ],
)
def test_the_cause_of_death_is_named(jobs, entry, cause):
    """F19, F20."""
    process, listener = jobs.start(entry)
    ending = listener.ending()
    assert not ending.is_clean
    assert ending.cause.startswith(cause)
    if entry == "segfault":
        assert "entries.py" in process.output.text()  # says where
    if entry == "raise_something":
        assert "the entry itself is wrong" in process.output.text()


def test_a_killed_template_is_replaced(jobs):
    """F20: a job that kills its parent takes its neighbours along, and nothing else."""
    supervisor = jobs.supervisor("kill_template")
    for _ in range(3):
        _process, listener = jobs.start("kill_template")
        pid = int(listener.result())
        ending = listener.ending()
        assert ending.status is None
        assert "gone together with" in ending.cause
        assert not is_alive(pid) or wait_readable(os.pidfd_open(pid))
    assert not supervisor.hazards


# -- ending --------------------------------------------------------------------------------------------------------


def test_a_job_may_end_by_itself_when_it_is_given_notice(jobs):
    process, listener = jobs.start("wait_for_notice")
    assert listener.result() == b"ready"
    process.end(Grace(notice=30), reason="no longer wanted")
    assert listener.result() == b"no longer wanted"
    ending = listener.ending()
    assert (ending.is_clean, ending.exit_code) == (True, 0)


def test_a_job_cleans_up_at_the_terminating_signal(jobs):
    process, listener = jobs.start("clean_up")
    assert listener.result() == b"ready"
    process.end(Grace(notice=0.01, term=30))
    assert listener.result() == b"cleaned up"
    assert listener.ending().is_clean


def test_a_job_that_ignores_the_terminating_signal_is_killed(jobs):
    """F21."""
    process, listener = jobs.start("ignore_terminate")
    assert listener.result() == b"ready"
    process.end(SOON)
    ending = listener.ending()
    assert (ending.signal, ending.reason) == (signal.SIGKILL, "request")
    assert ending.cause == "process was ended by SIGKILL because it was ended on request"


def test_a_frozen_job_is_ended_by_its_time_limit(jobs):
    """F9: the limit is kept by the warden, whatever the supervisor does."""
    process, listener = jobs.start("hang", limits=Limits(seconds=0.3), grace=SOON)
    assert listener.result() == b"ready"
    process.suspend()
    ending = listener.ending()
    assert (ending.reason, ending.signal) == ("time", signal.SIGTERM)


def test_a_second_request_shortens_the_first(jobs):
    process, listener = jobs.start("ignore_terminate")
    assert listener.result() == b"ready"
    process.end(Grace(notice=60, term=60))
    process.kill()
    assert listener.ending().signal == signal.SIGKILL


@pytest.mark.parametrize("how", ["kill", "leave", "die"])
def test_nothing_of_a_jobs_tree_survives_it(jobs, how):
    """F21: children, orphans, sessions of their own: all are gone when the end is reported."""
    process, listener = jobs.start("tree", how.encode())
    pids = [int(pid) for pid in listener.result().split()]
    assert len(pids) == 3
    if how == "kill":
        process.end(SOON)
    ending = listener.ending()
    assert [pid for pid in [*pids, process.pid] if is_alive(pid)] == []
    assert ending.left >= 2
    _, again = jobs.start("tree", b"die")  # the template has no zombies, and goes on
    again.ending()


def test_a_neighbour_is_left_alone_when_a_tree_is_swept_up(jobs):
    neighbour, neighbours = jobs.start("tree")
    neighbour_pids = [int(pid) for pid in neighbours.result().split()]
    _, listener = jobs.start("tree", b"die")
    listener.ending()
    assert all(is_alive(pid) for pid in neighbour_pids)
    neighbour.kill()
    neighbours.ending()
    assert not any(is_alive(pid) for pid in neighbour_pids)


SUPERVISOR_SCRIPT = """
import os, signal, sys, threading
from penstock.isolation import Setup, Supervisor
class Watcher:
    def received(self, process, message): print(message.data.decode(), flush=True)
    def ended(self, process, ending): pass
def run(channel):
    from tests.process import entries
    entries.tree(None, b"", channel)
if sys.argv[1] in {"tree", "tell_family"}:
    Supervisor(Setup(entry="tests.process.entries:" + sys.argv[1])).launch(b"", Watcher())
else:
    supervisor = Supervisor()
    # a thread that ends at once: the jobs must outlive it all the same
    thread = threading.Thread(target=lambda: supervisor.fork(run, Watcher()))
    thread.start(); thread.join()
if os.fork() == 0:  # a process that has a copy of every descriptor, and stays
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))
    signal.alarm(60)
    signal.pause()
threading.Event().wait()
"""


@pytest.fixture
def killable(tmp_path):
    """Starts a process with a supervisor; and ends the bystander, who has copies of its sockets."""
    started = []

    def start(kind):
        command = [sys.executable, "-c", SUPERVISOR_SCRIPT, kind, str(tmp_path / "bystander")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()
    os.kill(int((tmp_path / "bystander").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["tree", "fork"])
def test_nothing_survives_a_killed_supervisor(killable, kind, tmp_path):
    """F23: the supervisor's process is killed; whatever its jobs have started goes too."""
    child = killable(kind)
    pids = [int(pid) for pid in child.stdout.readline().split()]
    assert len(pids) == 3
    assert all(map(is_alive, pids))
    ends = [os.pidfd_open(pid) for pid in pids]
    until((tmp_path / "bystander").exists)
    child.kill()
    for end in ends:
        assert wait_readable(end), "a process outlived the supervisor"
        os.close(end)


def test_a_job_does_not_survive_template_and_supervisor(killable, tmp_path):
    """F23: both are killed at once, so that only the kernel is left to end the job."""
    child = killable("tell_family")
    job, template = map(int, child.stdout.readline().split())
    until((tmp_path / "bystander").exists)
    end = os.pidfd_open(job)
    freeze(child.pid)
    os.kill(template, signal.SIGKILL)
    child.kill()
    assert wait_readable(end), "the job outlived everybody"
    os.close(end)


def wait_readable(descriptor, seconds=10):
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


# -- limits --------------------------------------------------------------------------------------------------------


def test_memory_beyond_the_limit_is_an_error_in_the_job(jobs):
    """F19."""
    limits = Limits(memory=64 * 1024 * 1024)
    _, listener = jobs.start("allocate", b"300000000", limits=limits)
    assert listener.result() == b"MemoryError"
    _, listener = jobs.start("allocate", b"30000000", limits=limits)
    assert listener.result() == b"allocated"


def test_a_tree_that_holds_too_much_memory_is_killed(jobs):
    _, listener = jobs.start("allocate_in_children", b"40000000", limits=Limits(memory=100_000_000))
    ending = listener.ending()
    assert (ending.reason, ending.signal) == ("memory", signal.SIGKILL)


def test_a_fork_bomb_is_put_out(jobs):
    """F22: the job is killed with everything it has become; others go on."""
    _, listener = jobs.start("fork_bomb", limits=Limits(processes=40))
    assert listener.result() == b"lit"
    ending = listener.ending()
    assert (ending.reason, ending.signal) == ("processes", signal.SIGKILL)
    assert "more processes than its limit" in ending.cause


def test_descriptors_that_a_job_leaks_end_with_it(jobs):
    """F22."""
    jobs.supervisor("leak").start()
    before = open_files()
    _, listener = jobs.start("leak", limits=Limits(files=64))
    number, _, text = listener.result().decode().partition(" ")
    assert 50 < int(number) < 64
    assert text == "Too many open files"
    listener.ending()
    assert open_files() == before


# -- many ----------------------------------------------------------------------------------------------------------


def test_hundreds_of_jobs_leave_nothing_behind(jobs):
    """F20: no zombie, no descriptor, no thread; every end is reported exactly once."""
    gc.collect()  # what other tests have left
    others = children()
    supervisor = jobs.supervisor("echo")
    supervisor.launch(b"first", first := Listener())
    first.ending()
    threads, files = threading.active_count(), open_files()
    (template,) = children() - others
    listeners = [Listener() for _ in range(300)]
    supervisor.launch_many([Task(b"x", listener) for listener in listeners])
    assert all(listener.ending().is_clean for listener in listeners)
    assert all(listener.endings.empty() for listener in listeners)
    assert (threading.active_count(), open_files()) == (threads, files)
    assert children() == others | {template}
    assert len(os.listdir(f"/proc/{template}/fd")) < 12
    supervisor.close()
    assert children() == others


def test_closing_ends_what_runs_and_all_threads():
    before, files = threading.active_count(), open_files()
    supervisor = Supervisor(Setup(entry="tests.process.entries:hang"))
    listener = Listener()
    process = supervisor.launch(b"", listener)
    assert listener.result() == b"ready"
    supervisor.close()
    assert listener.ending().is_clean is False
    assert (threading.active_count(), open_files()) == (before, files)
    assert not is_alive(process.pid)
    supervisor.close()
    with pytest.raises(ProcessControlError, match="closed"):
        supervisor.launch(b"", listener)


def test_a_supervisor_cannot_be_used_after_a_fork():
    supervisor = Supervisor()
    listener = Listener()

    def run(channel):
        from penstock.isolation import Result

        try:
            supervisor.fork(print, listener)
        except ProcessControlError as error:
            channel.send(Result(str(error).encode()))

    supervisor.fork(run, listener)
    assert b"make a new one after a fork" in listener.result()
    supervisor.close()


# -- forked from this process --------------------------------------------------------------------------------------


def test_a_function_of_this_process_runs_without_its_connections():
    supervisor = Supervisor()
    listening = socket.create_server(("127.0.0.1", 0))
    pair = socket.socketpair()
    read, write = os.pipe()
    listener = Listener()
    others = children()

    def run(channel):
        from penstock.isolation import Result

        os.write(write, b"through a pipe")
        pair[1].send(b"through a pair")
        is_socket = os.path.realpath(f"/proc/self/fd/{listening.fileno()}") != os.devnull
        print("printed")
        channel.send(Result(str(is_socket).encode()))

    process = supervisor.fork(run, listener)
    assert listener.result() == b"False"
    assert listener.ending().is_clean
    assert os.read(read, 100) == b"through a pipe"
    assert pair[0].recv(100) == b"through a pair"
    assert process.output.text() == "printed\n"
    supervisor.close()
    assert children() == others
    for each in (listening, *pair):
        each.close()
    os.close(read)
    os.close(write)


def test_a_killed_keeper_takes_its_job_along():
    supervisor = Supervisor()
    listener = Listener()
    others = children()

    def run(channel):
        from tests.process import entries

        entries.kill_template(None, b"", channel)

    supervisor.fork(run, listener)
    pid = int(listener.result())
    assert listener.ending().status is None
    assert not is_alive(pid)
    supervisor.close()
    assert children() == others


@pytest.mark.parametrize("moment", ["before it gets its order", "while it imports"])
def test_a_template_whose_supervisor_is_killed_while_it_starts_ends_in_silence(tmp_path, moment):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow.py").write_text(f"open({str(gate)!r}).read()\nTARGET = None\n")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    setup = Setup(entry="tests.process.entries:echo", target="slow:TARGET")
    with ours, theirs:
        template = subprocess.Popen(
            [
                sys.executable,
                "-c",
                starting._BOOT,
                str(theirs.fileno()),
                json.dumps([str(tmp_path), *sys.path]),
                PUT_OFF,
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        if moment == "while it imports":
            ours.send(msgspec.msgpack.encode(Start(setup, os.getpid(), ["x"], False, {})))
            with gate.open("w"):  # opens when the import has begun
                ours.close()
        ours.close()
        _, said = template.communicate(timeout=30)
    assert (template.returncode, said) == (0, b"")
