"""The command line as people have it: processes, pipes, signals, terminals."""

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import apsw
import pytest
from tests.waiting import PATIENCE, read_soon, until

import penstock as library
from penstock import Job, JobStatus

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.process


class Shell:
    """A folder with an app and settings, and `penstock` run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.environment = {**kept, "PYTHONPATH": path}

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def start(self, *arguments: object, **options) -> subprocess.Popen:
        environment = {**self.environment, **options.pop("environment", {})}
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def run(self, *arguments: object, stdin: str = "", **options) -> tuple[int, str, str]:
        process = self.start(*arguments, **options)
        out, errors = process.communicate(stdin.encode(), timeout=PATIENCE)
        return process.returncode, out.decode(), errors.decode()


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


@pytest.mark.slow
def test_from_the_first_job_to_its_end_with_nothing_but_a_file_of_settings(shell, request):
    for url in ("sqlite:///jobs.db", request.getfixturevalue("postgres_database")):
        shell.write(
            "penstock.toml",
            f'url = "{url}"\n[worker]\napp = "shop"\nuntil-idle = true\nisolation = "thread"\n',
        )
        shell.write(
            "shop.py",
            """
            import penstock
            app = penstock.App()

            @app.job
            def greet(name: str) -> str:
                return f"hi {name}"
            """,
        )
        code, out, errors = shell.run("submit", "greet", "-", stdin='{"name": "ada"}')
        assert (code, errors) == (0, "")
        job_id = out.strip()
        code, out, errors = shell.run("worker")
        assert (code, out) == (0, ""), errors
        assert f"greet {job_id}, attempt 1, completed after " in errors
        assert "hi ada" not in errors  # results may be secret
        code, out, _ = shell.run("show", job_id, "--json")
        printed = json.loads(out)
        assert (code, printed["status"], printed["result"]) == (0, "completed", '"hi ada"')
        assert [row["verb"] for row in printed["history"]] == ["enqueue", "claim", "complete"]
        code, out, _ = shell.run("list", "--status", "completed")
        assert out.splitlines()[1].startswith(f"{job_id}\tgreet\tcompleted\t1\t")


def test_the_journal_is_followed_until_ctrl_c(shell):
    with library.connect(f"sqlite:///{shell.folder}/penstock.db") as queue:
        queue.enqueue_job(Job(id="first", type="t"))
        follower = shell.start("journal", "--follow", "--json")
        try:
            assert json.loads(follower.stdout.readline())["job_id"] == "first"
            queue.enqueue_job(Job(id="second", type="t"))
            assert json.loads(follower.stdout.readline())["job_id"] == "second"
            follower.send_signal(signal.SIGINT)
            _, errors = follower.communicate(timeout=PATIENCE)
            assert (follower.returncode, errors) == (130, b"")
        finally:
            if follower.poll() is None:
                follower.kill()
                follower.communicate()


def test_ctrl_c_while_a_worker_starts_lets_it_end_in_peace(shell):
    # What is typed at a terminal reaches every process of its group, also a template that is only coming up.
    shell.write("shop.py", "import penstock\napp = penstock.App()\n\n@app.job\ndef greet(): ...\n")
    shell.write(
        "sitecustomize.py",
        """
        import sys
        if "-c" in sys.orig_argv:
            open("starting", "w").close()
            open("gate").close()
        """,
    )
    os.mkfifo(shell.folder / "gate")
    path = os.pathsep.join([str(shell.folder), shell.environment["PYTHONPATH"]])
    worker = shell.start("worker", "shop", process_group=0, environment={"PYTHONPATH": path})
    try:
        until((shell.folder / "starting").exists)
        os.killpg(worker.pid, signal.SIGINT)
        gate = os.open(shell.folder / "gate", os.O_RDWR)
        _, errors = worker.communicate(timeout=PATIENCE)
        os.close(gate)
        assert worker.returncode == 0, errors
        assert b"Traceback" not in errors
        assert b"has stopped" in errors
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


@pytest.mark.parametrize(
    "command", [["list", "--tags", "a"], ["show", "job"], ["submit", "t", "{}"], ["stats"]]
)
def test_a_short_command_imports_nothing_that_takes_long(shell, command):
    with library.connect(f"sqlite:///{shell.folder}/penstock.db") as queue:
        queue.enqueue_job(Job(id="job", type="t"))
    code, _, imported = shell.run(*command, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    assert code == 0
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in imported.splitlines()}
    assert "penstock" in names
    assert names.isdisjoint({"pydantic", "rich", "psycopg", "pyspark", "statistics"})


def test_ctrl_c_before_the_command_line_is_there_is_no_fault(shell):
    shell.write(
        "sitecustomize.py",
        """
        import sys

        class Impatient:
            def find_spec(self, name, path=None, target=None):
                if name == "penstock.cli":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Impatient())
        """,
    )
    path = os.pathsep.join([str(shell.folder), shell.environment["PYTHONPATH"]])
    assert shell.run("version", environment={"PYTHONPATH": path}) == (130, "", "")


def test_a_reader_that_goes_away_is_no_fault(shell):
    with library.connect(f"sqlite:///{shell.folder}/penstock.db") as queue:
        queue.enqueue_jobs([Job(id=f"{number:06}", type="t" * 100) for number in range(3_000)])
    process = shell.start("list", "--limit", "10000", "--json")
    assert process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(PATIENCE), errors) == (141, b"")
    process.stderr.close()
    process.stdin.close()


def test_a_closed_stdout_is_no_fault(shell):
    command = shlex.join([sys.executable, "-m", "penstock", "version"])
    done = subprocess.run(
        ["sh", "-c", f"{command} >&-"],
        env=shell.environment,
        cwd=shell.folder,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_without_unicode_is_escaped_instead_of_failing(shell):
    with library.connect(f"sqlite:///{shell.folder}/penstock.db") as queue:
        queue.enqueue_job(Job(id="é", type="t"))
    code, out, errors = shell.run("list", environment={"PYTHONIOENCODING": "ascii"})
    assert (code, errors) == (0, "")
    assert out.splitlines()[1].startswith("\\xe9\t")


def test_a_store_of_newer_code_is_refused_in_one_line(shell):
    path = shell.folder / "penstock.db"
    library.connect(f"sqlite:///{path}").close()
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO migration VALUES (900, 'later', 900, 0)")
    connection.close()
    code, out, errors = shell.run("list")
    assert (code, out) == (1, "")
    assert "upgrade penstock" in errors
    assert len(errors.splitlines()) == 1


def test_two_commands_at_once_do_not_disturb_each_other(shell):
    first, second = (shell.start("submit", "t", "--jsonl") for _ in range(2))
    lines = b'{"n": 1}\n' * 200
    with contextlib.ExitStack() as stack:
        ends = []
        for each in (first, second):
            thread = threading.Thread(target=lambda each=each: ends.append(each.communicate(lines, PATIENCE)))
            thread.start()
            stack.callback(thread.join)
    assert [first.returncode, second.returncode] == [0, 0], ends
    with library.connect(f"sqlite:///{shell.folder}/penstock.db") as queue:
        assert queue.get_job_stats().total_jobs == 400


class AtTerminal:
    """A command with a terminal of its own."""

    def __init__(self, shell: Shell, *arguments: str) -> None:
        self._parent, child = pty.openpty()
        environment = {"TERM": "xterm", "COLUMNS": "100"}
        self.process = shell.start(
            *arguments, stdin=child, stdout=child, stderr=child, environment=environment
        )
        os.close(child)

    def answer(self, text: str) -> None:
        os.write(self._parent, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def until(self, words: str) -> str:
        """Read until some words have come, or all there is."""
        seen = b""
        while words.encode() not in seen and (part := read_soon(self._parent)):
            seen += part
        return seen.decode()

    def end(self) -> tuple[int, str]:
        rest = self.until("\0 never")
        code = self.process.wait(PATIENCE)
        os.close(self._parent)
        return code, rest


@pytest.mark.parametrize(
    ("answer", "code", "status"),
    [("n\n", 1, "initial_pending"), ("y\n", 0, "unscheduled"), ("Ctrl-C", 130, "initial_pending")],
)
def test_a_person_is_asked_before_jobs_are_cancelled_by_tags(shell, answer, code, status):
    with library.connect(f"sqlite:///{shell.folder}/penstock.db") as queue:
        queue.enqueue_job(Job(id="j", type="t", tags=("x",)))
        screen = AtTerminal(shell, "cancel", "--tags", "x")
        assert "1 job tagged x; cancel what can be? [y/N]" in screen.until("[y/N]")
        screen.interrupt() if answer == "Ctrl-C" else screen.answer(answer)
        assert screen.end()[0] == code
        assert queue.get_job("j").status is JobStatus(status)


def test_a_terminal_has_columns_and_colours_and_says_where_to_go_on(shell):
    with library.connect(f"sqlite:///{shell.folder}/penstock.db") as queue:
        queue.enqueue_jobs([Job(id=f"job-{number}", type="t") for number in range(3)])
        queue.cancel_jobs(job_ids=["job-2"])
    code, shown = AtTerminal(shell, "list", "--limit", "2").end()
    assert code == 0
    assert "\x1b[35munscheduled" in shown
    assert "AGE" in shown
    assert re.search(r"initial_pending +0 +\d+(\.\d)? m?s", shown)
    assert "\t" not in shown
    assert "--after job-1 continues the list" in shown
