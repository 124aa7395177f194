"""A worker that gives each job a process of its own."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from tests.app import jobs
from tests.app.working import working
from tests.waiting import PATIENCE, freeze, until

import penstock
from penstock import FailureCategory, InvalidArgumentError, JobStatus, Worker
from penstock.testing import check_store

pytestmark = pytest.mark.process


@pytest.fixture
def app(url):
    """The app of `tests.app.jobs`, on an empty store of each kind."""
    jobs.app.url = url
    yield jobs.app
    jobs.app.close()


@pytest.fixture
def sqlite_app(tmp_path):
    """The same on SQLite alone: for what has nothing to do with the store."""
    jobs.app.url = f"sqlite:///{tmp_path}/jobs.db"
    yield jobs.app
    jobs.app.close()


def run(app, **settings):
    Worker(app, **settings).run(until_idle=True)


def read(file: Path) -> str:
    return until(lambda: file.exists() and file.read_text(), f"writing {file.name}")


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_every_job_has_a_process_of_its_own_without_store_threads_or_url(app, monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///never.db")
    monkeypatch.setenv("PENSTOCK_WEBHOOK_SECRET", "a canary of more than 24 bytes")
    handles = [jobs.facts.submit() for _ in range(5)]
    mixed = jobs.here.submit()
    run(app)
    found = [handle.result(0) for handle in handles]
    assert len({each["pid"] for each in found} | {os.getpid()}) == 6
    assert len({each["ppid"] for each in found}) == 1
    for each in found:
        assert each["session"]
        assert each["url"] is None
        assert each["secret"] is None
        assert each["threads"] == 1
        assert (each["umask"], each["core"]) == ("0077", 0)
        assert len(each["files"]) <= 5, "stdin, stdout, stderr, the channel, and the list itself"
        assert "has no store" in each["queue"]
    assert mixed.result(0) == os.getpid(), "a task may ask for a thread"
    assert check_store(app.queue.backend) == []


def test_sync_and_async_handlers_run(app):
    handles = [jobs.double.submit(4), jobs.later.submit(5)]
    run(app)
    assert [handle.result(0) for handle in handles] == [8, 5]


@pytest.mark.requirement("G28")
@pytest.mark.parametrize(
    ("how", "status", "category", "code", "words"),
    [
        ("segfault", "dead_letter", "system", "crashed", "segmentation fault"),
        ("_exit", "dead_letter", "system", "crashed", "exited with code 3"),
        ("kill", "dead_letter", "system", "crashed", "SIGKILL"),
        ("abort", "dead_letter", "system", "crashed", "SIGABRT"),
        ("kill_parent", "dead_letter", "system", "crashed", "gone"),
        ("exit", "dead_letter", "system", "system_exit", "SystemExit: 4"),
        ("interrupt", "dead_letter", "system", "keyboard_interrupt", "KeyboardInterrupt"),
        ("memory", "dead_letter", "system", "out_of_memory", "MemoryError"),
        ("permanent", "failed", "permanent", "never", "never"),
        ("temporary", "dead_letter", "temporary", "later", "later"),
        ("object", "failed", "permanent", "invalid_result", "must be JSON"),
    ],
)
def test_every_end_is_told_with_its_cause_and_poison_ends_in_the_dead_letters(
    sqlite_app, how, status, category, code, words
):
    """F20: a crash counts like any failure; the worker and the other jobs go on."""
    poison, fine = jobs.end.submit(how), jobs.double.submit(1)
    run(sqlite_app, concurrency=1)
    job = poison.job()
    assert (job.status, job.error_category, job.error_code) == (status, category, code)
    assert words in job.error_message
    assert job.attempt == (1 if status == "failed" else 3)
    if code == "crashed" and how != "kill_parent":
        assert "about to" in job.error_message, "what it printed is told with a crash"
    assert fine.result(0) == 2


# -- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G14")
@pytest.mark.parametrize("how", ["sleeps", "ignores", "polite", "finally", "family"])
def test_at_its_limit_a_job_is_ended_with_everything_it_started(sqlite_app, tmp_path, how):
    """F21: SIGTERM ignored, double fork, a session of its own."""
    note = tmp_path / "note"
    handle = jobs.overtime.submit(how, str(note))
    with working(sqlite_app, isolation="process", stop_grace=1):
        job = handle.wait(PATIENCE)  # limit 0.5 s, grace 1 s; left alone it would take an hour
    assert (job.status, job.error_category) == (JobStatus.DEAD_LETTER, FailureCategory.TIMEOUT)
    assert job.error_message == "the execution time of 0.5 s is over"
    if how == "finally":
        assert note.read_text() == "cleaned up", "SIGTERM lets a handler clean up"
    if how == "family":
        until(lambda: is_gone(int(read(note))))


@pytest.mark.parametrize("polite", [True, False])
def test_a_cancelled_job_is_ended(app, tmp_path, polite):
    note = tmp_path / "note"
    handle = jobs.patient.submit(str(note), polite)
    with working(app, isolation="process", stop_grace=0.5):
        pid = int(read(note))
        assert handle.cancel()
        job = handle.wait(PATIENCE)
    assert (job.status, job.error_category) == (JobStatus.STOPPED, FailureCategory.CANCELLED)
    assert is_gone(pid)
    assert check_store(app.queue.backend) == []


def test_a_coroutine_hears_of_its_cancellation(sqlite_app, tmp_path):
    note = tmp_path / "note"
    handle = jobs.patient_async.submit(str(note))
    with working(sqlite_app, isolation="process", stop_grace=20):
        read(note)
        handle.cancel()
        assert handle.wait(PATIENCE).status is JobStatus.STOPPED
    assert note.read_text() == "cancelled"


def test_memory_is_limited(sqlite_app):
    """F19: only that job fails."""
    small, large = jobs.hungry.submit(10), jobs.hungry.submit(500)
    run(sqlite_app)
    assert small.result(0) == 10
    job = large.job()
    assert (job.status, job.error_category) == (JobStatus.DEAD_LETTER, FailureCategory.SYSTEM)
    assert job.error_code == "out_of_memory"


@pytest.fixture
def small_group():
    """A control group whose processes may have 50 MB of memory together."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    group = (old if old.is_dir() else new) / f"penstock-test-{os.getpid()}"
    limits = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] if old.is_dir() else ["memory.max"]
    try:
        group.mkdir()
        for name in limits:
            if (group / name).exists() or name == limits[0]:
                (group / name).write_text(str(50_000_000))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "the end of the group's processes")
    group.rmdir()


def test_a_job_that_the_kernel_kills_for_its_memory_fails_alone_and_says_why(sqlite_app, small_group):
    """F19, by the kernel itself."""
    large = jobs.devours.submit(str(small_group), 200)
    fine = jobs.double.submit(1)
    run(sqlite_app)
    job = large.job()
    assert (job.status, job.error_category) == (JobStatus.DEAD_LETTER, FailureCategory.SYSTEM)
    assert job.error_code == "out_of_memory"
    assert "killed (SIGKILL), probably by the kernel's out-of-memory killer" in job.error_message
    assert fine.result(0) == 2


def test_processes_and_files_are_limited(sqlite_app):
    """F22: a fork bomb and a leak of descriptors hurt nobody else."""
    bomb, leak, few = jobs.breed.submit(), jobs.hoard.submit(1000), jobs.hoard.submit(10)
    run(sqlite_app)
    job = bomb.job()
    assert (job.error_category, job.error_code) == (FailureCategory.SYSTEM, "too_many_processes")
    assert "Too many open files" in leak.job().error_message
    assert few.result(0) == 10


def test_a_frozen_child_is_ended_at_its_limit(sqlite_app, tmp_path):
    """F9."""
    note = tmp_path / "note"
    patient = jobs.patient.options(timeout=3)  # long enough to begin on a busy machine
    handle = patient.submit(str(note), False)
    with working(sqlite_app, isolation="process", stop_grace=0.5):
        freeze(int(read(note)))
        assert handle.wait(PATIENCE).error_category is FailureCategory.TIMEOUT


def test_what_a_job_leaves_running_is_ended(sqlite_app, tmp_path, caplog):
    note = tmp_path / "note"
    handle = jobs.leaves_a_child.submit(str(note))
    run(sqlite_app)
    assert is_gone(handle.result(0))
    assert "left 1 processes behind" in caplog.text


def test_the_next_job_begins_before_the_process_of_the_last_is_gone(sqlite_app, tmp_path):
    """A slot does not wait for the kernel to clear a process away; that the job has ended is told when it has."""
    go = str(tmp_path / "go")
    first = jobs.lingers.submit(go)
    second = jobs.lets_go.submit(go, first.id)
    run(sqlite_app, concurrency=1, prefetch=1)
    assert second.result(0) == "running", "nothing is told of the first while anything of it lives"
    assert first.result(0) == "done"


def test_a_child_that_comes_out_of_the_handler_has_nothing_to_say(sqlite_app):
    handles = [jobs.splits.submit() for _ in range(5)]
    run(sqlite_app)
    for handle in handles:
        before, after = handle.result(0)
        assert before == after


# -- telling --------------------------------------------------------------------------------------------------------


def test_progress_and_log_of_a_process_are_seen(app, tmp_path, caplog):
    note = tmp_path / "go"
    handle = jobs.reports.submit(str(note))
    with caplog.at_level(logging.INFO, "penstock.job"), working(app, isolation="process"):
        until(lambda: handle.progress == 59)
        assert handle.job().description == "step 59"
        note.touch()
        assert handle.wait(PATIENCE).progress == 100
    (record,) = [each for each in caplog.records if each.name == "penstock.job"]
    assert (record.job_id, record.attempt) == (handle.id, 1)
    assert (record.getMessage(), record.job_type) == ("half way", "reports")


@pytest.mark.requirement("G22")
def test_a_checkpoint_outlives_the_crash_of_its_process(app):
    handle = jobs.resumes.submit()
    run(app)
    assert handle.result(0) == [3, 2]


def test_inside_a_process_jobs_are_submitted_spawned_awaited_and_cancelled_over_the_pipe(app):
    handle = jobs.family.submit(3)
    waiting = jobs.double.options(after=[handle]).submit(9)
    with working(app, isolation="process", concurrency=2):
        found = handle.result(PATIENCE)
        assert waiting.result(PATIENCE) == 18
    spawned, value = found.pop("spawned")
    assert value == 6
    assert app.queue.get_job(spawned).parent_id == handle.id
    assert found == {
        "submitted": 8,
        "tags": ["inner"],
        "many": [0, 2, 4],
        "cancelled": [True, "unscheduled", False],
        "awaited": 14,
        "timeout": ["TimeoutError", None],
        "unknown": ["JobNotFoundError", "job_not_found"],
        "failed": ["JobFailedError", "job_failed"],
        "arguments": ["InvalidArgumentError", "invalid_argument"],
        "checkpoint": ["PayloadTooLargeError", "payload_too_large"],
    }


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_what_a_job_has_printed_is_seen_while_it_runs(app, tmp_path, isolation):
    go_on = tmp_path / "go on"
    handle = jobs.say_and_wait.submit(str(go_on))
    with working(app, isolation=isolation, types=["say_and_wait"]):
        until(lambda: handle.output() == "so far\n")
        assert handle.status is JobStatus.RUNNING
        go_on.touch()
        handle.result(PATIENCE)
        assert handle.output() == "so far\nand on\n"


def test_what_a_job_prints_is_kept_within_bounds(app):
    """F22: however much it is, the worker's memory does not grow with it."""
    before = psutil.Process().memory_info().rss
    loud, quiet, crashed = jobs.shout.submit(100), jobs.double.submit(1), jobs.end.submit("segfault")
    run(app)
    text = loud.output()
    assert loud.status is JobStatus.COMPLETED
    assert text.startswith("the beginning\n")
    assert text.endswith("the end\n")
    assert "bytes left out" in text
    assert len(text) < 11_000
    assert quiet.output() == ""
    assert "Segmentation fault" in crashed.output()
    assert psutil.Process().memory_info().rss - before < 60_000_000


# -- stopping and dying ---------------------------------------------------------------------------------------------


class WorkerProcess:
    """`penstock worker tests.app.jobs:app` in a process."""

    def __init__(self, log: Path, url: str, *options: str) -> None:
        self.log = log
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join([str(root / "src"), str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "penstock",
                    "worker",
                    "tests.app.jobs:app",
                    "--stop-grace",
                    "0.5",
                    *options,
                ],
                env={**os.environ, "PENSTOCK_URL": url, "PYTHONPATH": path},
                cwd=root,
                stderr=errors,
            )

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.tell(number)
        return self.process.wait(PATIENCE), self.log.read_text()


@pytest.fixture
def start_worker(tmp_path_factory):
    started: list[WorkerProcess] = []

    def start(url: str, *options: str) -> WorkerProcess:
        started.append(WorkerProcess(tmp_path_factory.mktemp("worker") / "log", url, *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_jobs_finish_and_exits_0(app, start_worker, tmp_path, number):
    """F24."""
    handles = [jobs.marked.submit(str(tmp_path), 0.5) for _ in range(4)]
    worker = start_worker(app.url, "--concurrency", "2")
    until(lambda: len(list(tmp_path.glob("*-1"))) == 2)
    code, errors = worker.end(number)
    assert code == 0, errors
    statuses = [handle.status for handle in handles]
    assert statuses.count(JobStatus.COMPLETED) == 2
    assert statuses.count(JobStatus.RUNNING) == 0
    assert all(handle.job().failures == 0 for handle in handles)
    assert "Traceback" not in errors


def test_the_second_signal_hands_jobs_back_at_once_and_uncounted(app, start_worker, tmp_path):
    handle = jobs.marked.submit(str(tmp_path), 600)
    worker = start_worker(app.url)
    pid = int(read(tmp_path / f"{handle.id}-1"))
    worker.tell(signal.SIGTERM)
    until(lambda: "jobs may finish" in worker.log.read_text())
    start = time.monotonic()
    code, errors = worker.end()
    assert code == 0, errors
    assert time.monotonic() - start < 15
    job = handle.job()
    assert (job.status, job.failures, job.retry_count) == (JobStatus.FAILED_RETRY, 0, 1)
    assert is_gone(pid)
    run(app)
    assert handle.result(0) == 2


@pytest.mark.requirement("G15", "G27")
def test_a_killed_worker_takes_its_jobs_with_it_and_another_runs_them_again(app, start_worker, tmp_path):
    """F1, F23."""
    handle = jobs.marked.submit(str(tmp_path), 600)
    worker = start_worker(app.url)
    pid = int(read(tmp_path / f"{handle.id}-1"))
    family = worker.children()
    worker.end(signal.SIGKILL)
    until(lambda: is_gone(pid))
    until(lambda: not any(each.is_running() for each in family))
    with working(app, isolation="process"):
        assert handle.result(60) == 2
    assert check_store(app.queue.backend) == []


def freeze_at_rest(worker, url: str) -> None:
    """Freeze a worker while it is not writing: SQLite lets nobody else write until it goes on."""
    for _ in range(20):
        freeze(worker.process.pid)
        try:
            with penstock.open_backend(url, timeout=2) as store:
                store.set_blocked(False)
        except penstock.BackendError:
            worker.tell(signal.SIGCONT)
        else:
            return
    pytest.fail("the worker was writing every time")


@pytest.mark.slow
def test_a_worker_that_was_frozen_past_its_lease_changes_nothing(make_app, url, start_worker, tmp_path):
    """F8: another one finishes the job; the late attempt is ended and its report dropped."""
    jobs.app.url = url
    # The store's liveness is a setting of each process; the visibility of the job is shorter.
    late = jobs.marked.options(timeouts=penstock.Timeouts(execution=600, visibility=1, lifetime=3600))
    handle = late.submit(str(tmp_path), 600)
    worker = start_worker(url)
    pid = int(read(tmp_path / f"{handle.id}-1"))
    freeze_at_rest(worker, url)
    try:
        with working(jobs.app, isolation="process"):
            assert handle.result(PATIENCE) == 2
        worker.tell(signal.SIGCONT)
        until(lambda: is_gone(pid))
        code, errors = worker.end()
        assert code == 0
        assert "was reclaimed from attempt 1" in errors
        assert (handle.result(0), handle.job().attempt) == (2, 2)
        assert check_store(jobs.app.queue.backend) == []
    finally:
        worker.tell(signal.SIGCONT)
        jobs.app.close()


def test_a_killed_template_is_replaced(sqlite_app):
    """A process that the killed one had forked ahead may still run a job; then those of another one do."""
    with working(sqlite_app, isolation="process") as worker:
        first = jobs.facts.submit().result(PATIENCE)
        os.kill(first["ppid"], signal.SIGKILL)

        def is_forked_anew() -> bool:
            facts = facts_or_none()
            templates = {child.pid for child in psutil.Process().children()} - {first["ppid"]}
            return facts is not None and facts["ppid"] in templates

        until(is_forked_anew)
        until(lambda: worker.runs() == [])


def facts_or_none() -> dict | None:
    """What a job says of itself; None if its template was gone before it could start."""
    handle = jobs.facts.submit()
    return handle.result(0) if handle.wait(PATIENCE).status is JobStatus.COMPLETED else None


# -- what can be imported again -------------------------------------------------------------------------------------


def test_a_task_inside_a_function_is_refused_and_threads_are_named(make_app):
    app = make_app()

    @app.job
    def closure() -> None: ...

    with pytest.raises(
        InvalidArgumentError, match=r'closure is defined inside a function.*isolation="thread"'
    ):
        Worker(app)
    assert Worker(app, isolation="thread").types == ("closure",)


def test_an_app_that_no_module_has_is_refused(make_app):
    app = make_app()
    app.job(type="double")(jobs.double.function)
    with pytest.raises(InvalidArgumentError, match=r'is no attribute of any module.*isolation="thread"'):
        Worker(app)


def test_a_task_that_the_import_does_not_define_is_an_error_before_the_first_claim(sqlite_app, monkeypatch):
    monkeypatch.setitem(jobs.app._tasks, "extra", jobs.app._tasks["double"])
    sqlite_app.queue.submit("extra", {"number": 1})
    with pytest.raises(InvalidArgumentError, match="has no handler for extra"):
        run(sqlite_app)
    assert sqlite_app.queue.get_job_stats().pending_jobs == 1


def script(folder: Path, text: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess:
    (folder / "script.py").write_text(textwrap.dedent(text))
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *(arguments or ("script.py",))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PENSTOCK_URL": f"sqlite:///{folder}/jobs.db"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


FROM_VARIABLES = """
    import os, socket, penstock
    from pathlib import Path

    {0}
    app = penstock.App(os.environ["PENSTOCK_URL"])
    worker_url = os.environ["PENSTOCK_WORKER_URL"]

    @app.job
    def seen() -> list:
        everything = Path("/proc/self/environ").read_bytes().decode() + repr(os.environ)
        return [name for name in ("PENSTOCK_URL", "_WORKER_URL", "_SECRET", "jobs.db") if name in everything]

    if __name__ == "__main__":
        handle = seen.submit()
        penstock.Worker(app).run(until_idle=True)
        print(handle.result(0))
"""


@pytest.mark.parametrize("hazard", ["", "left_open = socket.socket()"], ids=["template", "each job"])
def test_an_app_may_be_made_of_variables_that_no_job_gets_to_see(tmp_path, monkeypatch, hazard):
    monkeypatch.setenv("PENSTOCK_WORKER_URL", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("PENSTOCK_WEBHOOK_SECRET", "a canary of more than 24 bytes")
    done = script(tmp_path, FROM_VARIABLES.format(hazard))
    assert done.stdout.split() == ["[]"], done.stderr


GUARDED = """
    import penstock

    {0}
    if __name__ == "__main__":
        {1}
        @app.job
        def f() -> int:
            return 1

        try:
            penstock.Worker(app)
        except ValueError as error:
            print(error)
"""


@pytest.mark.parametrize("place", [0, 1], ids=["the handler", "the app and the handler"])
def test_what_a_script_defines_only_as_a_program_is_an_error_that_names_the_way_out(tmp_path, place):
    lines = ["", ""]
    lines[place] = "app = penstock.App()"
    done = script(tmp_path, GUARDED.format(*lines))
    assert done.stdout.startswith('f is defined under `if __name__ == "__main__"`'), done.stderr
    assert 'isolation="thread"' in done.stdout


def test_an_app_that_is_made_only_in_the_program_is_an_error_too(tmp_path):
    text = """
        import penstock, tasks
        if __name__ == "__main__":
            app = penstock.App()
            app.job(tasks.f)
            try:
                penstock.Worker(app)
            except ValueError as error:
                print(error)
    """
    (tmp_path / "tasks.py").write_text("def f(): ...")
    done = script(tmp_path, text)
    assert done.stdout.startswith('the app is made under `if __name__ == "__main__"`'), done.stderr


def test_a_script_that_starts_its_worker_at_every_import_is_told_so(tmp_path):
    text = """
        import penstock
        app = penstock.App()

        @app.job
        def f() -> int:
            return 1

        penstock.Worker(app).run(until_idle=True)
    """
    done = script(tmp_path, text)
    assert done.returncode == 1
    assert 'only under `if __name__ == "__main__":`' in done.stderr
    assert 'isolation="thread"' in done.stderr.splitlines()[-1]


LARGE = """
    import penstock

    app = penstock.App(max_payload=16 * 1024 * 1024)
    SIZE = 9_000_000

    @app.job
    def same(text: str) -> str:
        return text

    @app.job(retry=penstock.RetryPolicy(max_attempts=2, initial_delay=0))
    def again(context: penstock.JobContext, text: str) -> int:
        if context.attempt == 1:
            context.save_checkpoint(text.encode())
            raise ValueError("once more")
        return len(context.checkpoint) + len(same.submit(text).result())

    if __name__ == "__main__":
        handle = again.submit("a" * SIZE)
        penstock.Worker(app).run(until_idle=True)
        assert handle.result(0) == 2 * SIZE
"""


def test_a_job_may_have_a_large_payload_and_a_large_result_and_checkpoint_too(tmp_path):
    """G30: 16 MiB each."""
    done = script(tmp_path, LARGE)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_a_fault_of_the_worker_leaves_no_process_of_the_job(app, tmp_path, monkeypatch, caplog):
    def broken(*_arguments):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("penstock.worker._processes.ProcessRunner._reply", broken)
    note = tmp_path / "pid"
    handle = jobs.ask.submit(str(note))
    with working(app, isolation="process"):
        job = handle.wait(PATIENCE)
        assert is_gone(int(note.read_text()))
    assert (job.status, job.error_code) == (JobStatus.DEAD_LETTER, "RuntimeError")
    assert "could not be run" in caplog.text


MAIN = """
    import os, penstock

    app = penstock.App()

    @app.job
    def who() -> str:
        return f"{__name__} {os.getpid()}"

    if __name__ == "__main__":
        handle = who.submit()
        penstock.Worker(app).run(until_idle=True)
        name, pid = handle.result(0).split()
        assert int(pid) != os.getpid()
        print(name)
"""


def test_an_app_in_the_main_script_works(tmp_path):
    done = script(tmp_path, MAIN)
    assert (done.returncode, done.stdout) == (0, "__mp_main__\n"), done.stderr


def test_an_app_in_a_module_run_as_main_works(tmp_path):
    done = script(tmp_path, MAIN, "-m", "script")
    assert (done.returncode, done.stdout) == (0, "script\n"), done.stderr


def test_an_app_at_a_prompt_is_refused_and_threads_are_named(tmp_path):
    lines = """
import penstock
app = penstock.App()
@app.job
def hello(): return 'hi'

try: penstock.Worker(app)
except ValueError as error: print(error)

handle = hello.submit()
penstock.Worker(app, isolation='thread').run(until_idle=True)
print(handle.result(0))
"""
    done = script(tmp_path, "", "-i", "-q", stdin=lines)
    assert "notebook or at a prompt" in done.stdout, done.stderr
    assert 'isolation="thread"' in done.stdout
    assert "hi" in done.stdout


def test_tasks_of_other_modules_than_the_apps_are_found(tmp_path):
    (tmp_path / "shop.py").write_text("import penstock\napp = penstock.App()\n")
    (tmp_path / "tasks.py").write_text(
        "from shop import app\n\n@app.job\ndef greet(name: str) -> str:\n    return f'hi {name}'\n"
    )
    done = script(
        tmp_path,
        """
        import penstock, shop, tasks

        if __name__ == "__main__":
            handle = tasks.greet.submit("ada")
            penstock.Worker(shop.app).run(until_idle=True)
            print(handle.result(0))
        """,
    )
    assert (done.returncode, done.stdout) == (0, "hi ada\n"), done.stderr


def test_what_an_import_leaves_open_is_named_and_each_job_imports_for_itself(tmp_path):
    done = script(
        tmp_path,
        """
        import logging, os, threading, penstock

        app = penstock.App()
        stop = threading.Event()
        threading.Thread(target=stop.wait, name="ticker", daemon=True).start()

        @app.job
        def double(number: int) -> int:
            return 2 * number

        if __name__ == "__main__":
            logging.basicConfig()
            handle = double.submit(4)
            penstock.Worker(app).run(until_idle=True)
            print(handle.result(0))
        """,
    )
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr
    assert "leaves thread 'ticker' open" in done.stderr


def test_an_app_that_cannot_be_imported_again_is_an_error_with_its_cause(tmp_path):
    done = script(
        tmp_path,
        """
        import os, penstock
        if __name__ != "__main__":
            raise RuntimeError("not twice")
        app = penstock.App()
        app.job(type="note")(lambda: None)
        try:
            penstock.Worker(app).run(until_idle=True)
        except penstock.PenstockError as error:
            print(error)
        """,
    )
    assert "not twice" in done.stdout, done.stderr
    assert done.returncode == 0
