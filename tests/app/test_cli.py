"""The command line: what it runs, and how it says what is wrong."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from tests.waiting import PATIENCE, read_soon, until

import penstock

ROOT = Path(__file__).resolve().parents[2]
APP = """
    import os, penstock

    app = penstock.App()

    @app.job
    def greet(name: str) -> str:
        return f"hi {name}"

    @app.job(tags=["gpu"])
    def who() -> int:
        return os.getppid()

    number = 3
"""


class Shop:
    """A folder with an app, and the command line run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.write("shop.py", APP)
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {**os.environ, "PYTHONPATH": path, "PENSTOCK_URL": self.url, "NO_COLOR": "1"}

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, errors = process.communicate(timeout=60)
        return process.returncode, out, errors


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


def test_the_version_is_shown(shop):
    code, out, _ = shop.run("version")
    assert code == 0
    assert out.startswith(f"penstock {penstock.__version__} (Python")


def test_without_a_command_help_is_shown(shop):
    code, out, errors = shop.run()
    assert code in (0, 2)
    assert "worker" in out + errors


@pytest.mark.process
@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_worker_runs_the_jobs_of_an_app_in_the_working_folder(shop, isolation):
    with penstock.connect(shop.url) as queue:
        job = queue.submit("greet", {"name": "ada"})
        code, _, errors = shop.run("worker", "shop:app", "--until-idle", "--isolation", isolation)
        assert code == 0, errors
        assert queue.get_job(job.id).result == b'"hi ada"'
    assert "completed after" in errors


@pytest.mark.process
def test_settings_come_from_the_environment_and_options_win(shop):
    with penstock.connect(shop.url) as queue:
        gpu, other = queue.submit("who", {}, tags=["gpu"]), queue.submit("who", {})
        code, _, errors = shop.run(
            "worker",
            "shop",
            "--until-idle",
            PENSTOCK_TAGS="gpu",
            PENSTOCK_CONCURRENCY="1",
            PENSTOCK_LOG_LEVEL="error",
        )
        assert (code, errors) == (0, "")
        assert queue.get_job(gpu.id).status is penstock.JobStatus.COMPLETED
        assert queue.get_job(other.id).status is penstock.JobStatus.INITIAL_PENDING
        code, _, errors = shop.run(
            "worker", "shop", "--until-idle", "--types", "greet,who", PENSTOCK_TYPES="greet"
        )
        assert queue.get_job(other.id).status is penstock.JobStatus.COMPLETED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:app"], "there is no module 'nowhere'"),
        (["shop:nothing"], "shop has no attribute 'nothing' (did you mean shop:app?)"),
        (["shop:number"], "that is not a penstock.App but 3 (did you mean shop:app?)"),
        (["shop.py"], "did you mean shop:app"),
        (["./shop"], "an app is named module:attribute"),
        ([""], "an app is named module:attribute"),
        (["broken:app"], "importing it failed: ZeroDivisionError: division by zero"),
        (["needy:app"], "importing it failed: ModuleNotFoundError: No module named 'nobody'"),
        (["shop:app", "--url", "memory:"], "a worker cannot use memory:"),
        (["shop:app", "--url", "mysql://x"], "url must begin with"),
        (["shop:app", "--concurrency", "0"], "concurrency must be a whole number from 1"),
        (["shop:app", "--processes", "0"], "--processes must be from 1"),
        (["shop:app", "--types", "nobody"], "the app has no handler for 'nobody'"),
        (["shop:app", "--log-level", "loud"], "--log-level must be one of"),
        (["shop:app", "--isolation", "rope"], "rope"),
        (["shop:app", "--colour"], "No such option"),
        ([], "MODULE:APP"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(shop, arguments, words):
    shop.write("broken.py", "1 / 0")
    shop.write("needy.py", "import nobody")
    code, out, errors = shop.run("worker", *arguments)
    assert code == 2
    assert words in errors
    assert "Traceback" not in errors
    assert out == ""


def test_a_store_that_cannot_be_opened_is_one_line(shop):
    code, _, errors = shop.run("worker", "shop:app", "--url", "sqlite:////proc/nowhere/jobs.db")
    assert code in (1, 2)
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 2


@pytest.mark.process
def test_several_processes_share_the_work_and_end_together(shop):
    with penstock.connect(shop.url) as queue:
        fleet = shop.start("worker", "shop:app", "--processes", "2", "--concurrency", "1")
        parent = psutil.Process(fleet.pid)
        try:
            seen: set[bytes | None] = set()
            until(lambda: len(parent.children()) == 2)

            def both_work() -> bool:
                jobs = queue.submit_many([{"type": "who", "payload": {}}] * 6)
                until(lambda: all(queue.get_job(job.id).result for job in jobs))
                seen.update(queue.get_job(job.id).result for job in jobs)
                return len(seen) >= 2

            until(both_work)
            family = parent.children(recursive=True)
            fleet.send_signal(signal.SIGTERM)
            _, errors = fleet.communicate(timeout=PATIENCE)
            assert fleet.returncode == 0, errors
            until(lambda: not any(each.is_running() for each in family))
        finally:
            if fleet.poll() is None:
                fleet.kill()
                fleet.communicate()


@pytest.mark.process
def test_workers_and_their_jobs_end_when_their_parent_is_killed(shop):
    shop.write("shop.py", SLOW)
    with penstock.connect(shop.url) as queue:
        job = queue.submit("slow", {})
        fleet = shop.start("worker", "shop:app", "--processes", "2", "--grace", "3600")
        parent = psutil.Process(fleet.pid)
        until(lambda: len(parent.children(recursive=True)) >= 4 and (shop.folder / "begun").exists())
        family = parent.children(recursive=True)
        fleet.kill()
        fleet.communicate()
        until(lambda: not any(each.is_running() for each in family))
        left = queue.get_job(job.id)
        assert (left.status, left.failures) == (penstock.JobStatus.FAILED_RETRY, 0)


SLOW = """
    import pathlib, time, penstock

    app = penstock.App()

    @app.job
    def slow() -> None:
        pathlib.Path("begun").touch()
        time.sleep(3600)
"""
STARTING = """
    import pathlib, signal, sys, time, penstock

    app = penstock.App()

    @app.job
    def nothing() -> None: ...

    if {0}:
        pathlib.Path("importing").touch()
        time.sleep(3600)
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_while_it_starts_exits_with_0(shop, number):
    shop.write("shop.py", STARTING.format("True"))
    starting = shop.start("worker", "shop:app")
    until((shop.folder / "importing").exists)
    starting.send_signal(number)
    _, errors = starting.communicate(timeout=PATIENCE)
    assert (starting.returncode, errors) == (0, "")


@pytest.mark.process
def test_workers_that_die_of_the_signal_that_stops_them_are_no_failure(shop):
    """As one does that has not come to expect it yet."""
    unready = '"--stop-on-eof" in sys.argv and signal.signal(signal.SIGTERM, signal.SIG_DFL) is not None'
    shop.write("shop.py", STARTING.format(unready))
    fleet = shop.start("worker", "shop:app", "--processes", "2")
    until((shop.folder / "importing").exists)
    fleet.send_signal(signal.SIGTERM)
    _, errors = fleet.communicate(timeout=PATIENCE)
    assert fleet.returncode == 0, errors


FAILING = """
    import os, pathlib, sys, penstock

    app = penstock.App()

    @app.job
    def who() -> int:
        return os.getpid()

    def number_of_starts() -> int:
        for number in range(1000):
            try:
                os.close(os.open(f"start-{{number}}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return number

    if "--stop-on-eof" in sys.argv and number_of_starts() < {failures}:
        print("no licence today", file=sys.stderr, flush=True)
        {how}
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "said"),
    [("os._exit(7)", "exit code 7"), ("os.kill(os.getpid(), 9)", "killed by SIGKILL")],
    ids=["exit", "signal"],
)
def test_a_worker_process_that_dies_while_it_starts_is_logged_and_replaced(shop, how, said):
    shop.write("shop.py", FAILING.format(failures=1, how=how))
    fleet = shop.start(
        "worker", "shop:app", "--processes", "2", "--concurrency", "1", "--isolation", "thread"
    )
    try:
        log = Log(fleet)
        line = log.until("ended while it started")
        assert f"({said}); a new one is started in 0.5 s" in line
        assert "ERROR" in line
        # As many as were asked for. The one that lives may have begun before the other one died.
        while log.count(" claims who from ") < 2:
            log.until(" claims who from ")
        fleet.send_signal(signal.SIGTERM)
        assert fleet.wait(PATIENCE) == 0
    finally:
        end(fleet)


@pytest.mark.process
@pytest.mark.parametrize("until_idle", [False, True])
def test_a_parent_whose_workers_cannot_start_gives_up_and_says_why(shop, until_idle):
    shop.write("shop.py", FAILING.format(failures=1000, how="os._exit(7)"))
    options = ["--until-idle"] if until_idle else []
    code, _, errors = shop.run("worker", "shop:app", "--processes", "2", *options)
    assert code == 7
    assert "Traceback" not in errors
    assert errors.count("no licence today") == 6
    lines = [line for line in errors.splitlines() if "ended while it started (exit code 7)" in line]
    assert len(lines) == 6
    assert "a new one is started in 0.5 s" in lines[0]
    if not until_idle:
        assert "no worker process could be started: all 2 failed 3 times in a row" in errors.splitlines()[-1]


@pytest.mark.process
def test_a_worker_process_that_ends_for_whatever_reason_is_replaced(shop):
    """One that was terminated alone has drained and exits with 0; the parent was not asked to run fewer."""
    fleet = shop.start("worker", "shop:app", "--processes", "2", "--isolation", "thread")
    try:
        log = Log(fleet)
        for _ in range(2):
            log.until(" claims ")
        for number, said in [(signal.SIGTERM, "exit code 0"), (signal.SIGKILL, "killed by SIGKILL")]:
            one = psutil.Process(fleet.pid).children()[0]
            one.send_signal(number)
            assert f"worker process {one.pid} ended" in log.until(f"({said}); a new one is started")
            log.until(" claims ")
            assert len(psutil.Process(fleet.pid).children()) == 2
        fleet.send_signal(signal.SIGTERM)
        assert fleet.wait(PATIENCE) == 0
    finally:
        end(fleet)


class Log:
    """Lines that a process writes to stderr."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._descriptor = process.stderr.fileno()
        self._seen: list[str] = []
        self._rest = b""

    def until(self, words: str) -> str:
        """Return the next line with these words."""
        while line := self._line():
            self._seen.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words!r} was never logged: {''.join(self._seen)}")

    def _line(self) -> str:
        while b"\n" not in self._rest:
            if not (part := read_soon(self._descriptor)):
                break
            self._rest += part
        line, newline, self._rest = self._rest.partition(b"\n")
        return (line + newline).decode()

    def count(self, words: str) -> int:
        """Return how many of the lines read so far have these words."""
        return sum(words in line for line in self._seen)


def end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_what_a_job_says_cannot_forge_lines_of_the_log(shop):
    shop.write(
        "shop.py",
        """
        import penstock
        app = penstock.App()

        @app.job(retry=penstock.RetryPolicy(max_attempts=1))
        def forge() -> None:
            raise penstock.PermanentError("a\\x1b[31m\\r12:00:00 INFO    all is well")
        """,
    )
    with penstock.connect(shop.url) as queue:
        queue.submit("forge", {})
    code, _, errors = shop.run("worker", "shop:app", "--until-idle", "--isolation", "thread")
    assert code == 0
    assert "\x1b" not in errors
    assert "\\x1b[31m\\r12:00:00" in errors


@pytest.mark.process
@pytest.mark.parametrize("grace", ["0.5", "2", "500ms"])
def test_a_grace_is_a_number_of_seconds_or_text_with_units(shop, grace):
    code, _, errors = shop.run("worker", "shop:app", "--until-idle", "--grace", grace, "--stop-grace", grace)
    assert code == 0, errors
