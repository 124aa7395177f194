"""A standalone cluster on loopback: a master and two workers, from nothing but the wheel."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pyspark
from tests.spark.support import QUICK_JAVA

from penstock.spark.java import java_home

__all__ = ["Cluster", "running_cluster"]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WORKERS = 2


class Cluster(NamedTuple):
    """Where the master is, and the processes of the workers."""

    url: str
    workers: list[psutil.Process]

    def executors(self) -> list[psutil.Process]:
        """The executors that run now."""
        return [
            child
            for worker in self.workers
            for child in worker.children(recursive=True)
            if any("CoarseGrainedExecutorBackend" in part for part in _command(child))
        ]


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start it, and end what is left of it."""
    with ExitStack() as stack:
        home = stack.enter_context(java_home())
        environment = {
            **os.environ,
            "JAVA_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        }

        def start(name: str, role: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
            log = folder / f"{name}.log"
            command = [
                SPARK_CLASS,
                f"org.apache.spark.deploy.{role}",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
            ]
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*command, *arguments],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            stack.callback(_end, process)
            return process, log

        master, log = start("master", "master.Master", "--port", "0")
        url = _awaited(master, log, r"Starting Spark master at (spark://\S+)")
        workers = []
        for number in range(WORKERS):
            process, log = start(
                f"worker-{number}", "worker.Worker",
                "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), url,
            )  # fmt: skip
            workers.append((process, log))
        for process, log in workers:
            _awaited(process, log, r"Successfully registered with master")
        yield Cluster(url, [psutil.Process(process.pid) for process, _ in workers])


def _awaited(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    for _ in range(1200):
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[found.lastindex or 0]
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"{pattern!r} did not come up in {log}:\n{log.read_text(errors='replace')[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started, executors and their Python included."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for each in family:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
