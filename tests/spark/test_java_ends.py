"""Whatever starts Java ends it: no process is left after a command, at whatever moment it was interrupted or killed.

Every process that a command starts inherits its environment, so a variable that no other process has finds all of them.
"""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.waiting import until

import penstock

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(600)]

LAUNCHER = "org.apache.spark.launcher.Main"
JAVA = "org.apache.spark.deploy.SparkSubmit"
TASKS = "pyspark.daemon"
STAGES = [LAUNCHER, JAVA, TASKS]
APP = """
import penstock
app = penstock.App("sqlite:///{folder}/jobs.db")
@app.job
def nothing() -> None: ...
"""


class Command:
    """A command with real Spark in a process of its own."""

    def __init__(self, *arguments, folder):
        self._mark = f"PENSTOCK_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self._stderr = folder / "stderr"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env={**os.environ, name: value},
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def processes(self):
        """The command lines of all living processes of the command, by their ids, without its first one."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.process.pid:
                try:
                    variables = (folder / "environ").read_bytes().split(b"\0")
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if self._mark.encode() in variables and line:
                    found[int(folder.name)] = line
        return found

    def reaches(self, moment):
        """Wait until a process of that kind lives, or a later one: the launcher may be gone between two polls."""
        later = STAGES[STAGES.index(moment) :]
        until(
            lambda: (
                self.process.poll() is not None
                or any(stage in each for each in self.processes().values() for stage in later)
            ),
            seconds=120,
        )
        assert self.process.poll() is None, self.stderr

    def send(self, *numbers):
        for number in numbers:
            if self.process.poll() is None:
                self.process.send_signal(number)
                self._delivered(number)

    def _delivered(self, number):
        until(lambda: self.process.poll() is not None or _is_handled(self.process.pid, number))

    def ends(self):
        """Wait for the end; return the exit code."""
        return self.process.wait(120)

    @property
    def stderr(self):
        return self._stderr.read_text(errors="replace")

    def clean_up(self):
        for pid in [*self.processes(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def _is_handled(pid, number):
    """Whether a signal was delivered: a second one that comes before is the same one."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = [
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))
    ]
    return not any(bits & (1 << (number - 1)) for bits in pending)


@pytest.fixture
def command(tmp_path):
    started = []

    def start(*arguments):
        started.append(Command(*arguments, folder=tmp_path))
        return started[-1]

    with penstock.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.submit("t")
    (tmp_path / "shop.py").write_text(APP.format(folder=tmp_path))
    yield start
    for each in started:
        each.clean_up()


COMMANDS = {
    "audit": ["audit", "--url", "sqlite:///jobs.db"],
    "pipeline": ["pipeline", "run", "--url", "sqlite:///jobs.db", "--lake", "lake"],
    "fleet": ["fleet", "shop:app", "--forever", "--tasks", "1"],
}
INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
MOMENTS = [
    ("audit", LAUNCHER, (INT, INT)),
    ("audit", LAUNCHER, (KILL,)),
    ("fleet", LAUNCHER, (TERM,)),
    ("audit", JAVA, (INT, INT)),
    ("pipeline", JAVA, (TERM,)),
    ("pipeline", JAVA, (KILL,)),
    ("audit", TASKS, (INT, INT)),
    ("audit", TASKS, (TERM,)),
    ("fleet", TASKS, (KILL,)),
]
BROAD_MOMENTS = [("pipeline", JAVA, (TERM,))]


@pytest.mark.parametrize(
    ("name", "moment", "signals"),
    [each if each in BROAD_MOMENTS else pytest.param(*each, marks=pytest.mark.deep) for each in MOMENTS],
    ids=[
        f"{name}-{moment.rpartition('.')[2]}-{'-'.join(each.name for each in signals)}"
        for name, moment, signals in MOMENTS
    ],
)
def test_a_command_that_is_ended_leaves_no_process(command, name, moment, signals):
    running = command("-m", "penstock", *COMMANDS[name])
    running.reaches(moment)
    running.send(*signals)
    code = running.ends()
    if signals == (KILL,):
        until(lambda: not running.processes())  # Java finds out by itself
    else:
        until(lambda: not [line for line in running.processes().values() if "java" in line])
        until(lambda: not running.processes())
    # A Ctrl-C that comes while Python itself is exiting ends it as any program.
    assert code in {INT: (130, -INT), TERM: (-TERM,), KILL: (-KILL,)}[signals[-1]]
    assert "\tat " not in running.stderr, running.stderr  # a stack trace of Java
    assert "Traceback" not in running.stderr, running.stderr


def test_a_command_whose_session_fails_leaves_no_process(command):
    running = command("-m", "penstock", *COMMANDS["audit"], "--master", "local[x]")
    assert running.ends() == 1
    assert "Could not parse Master URL" in running.stderr
    assert not [line for line in running.processes().values() if "java" in line]


@pytest.mark.deep
def test_a_program_that_ends_without_stopping_its_session_leaves_no_process(command):
    program = "from penstock import spark as ps; ps.session('local[1]').range(3).count(); raise SystemExit(3)"
    running = command("-c", program)
    assert running.ends() == 3
    assert not [line for line in running.processes().values() if "java" in line]


FREEING = """
import time
from penstock import spark as ps
spark = ps.session("local[1]")
client = spark.sparkContext._gateway._gateway_client
made = [spark.sparkContext._jvm.java.lang.Object() for _ in range(5_000)]
spark.stop()
made.clear()
while len(client.finalizer_deque) == 5_000:
    time.sleep(0.01)
"""


def test_a_program_that_ends_while_java_objects_are_freed_logs_no_error(command):
    """py4j sends freed objects to Java on a thread of its own, which Java's end interrupts."""
    running = command("-c", FREEING)
    assert running.ends() == 0
    assert "Traceback" not in running.stderr, running.stderr
