"""`penstock worker` processes, as an operator would start them; one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from penstock import Backend, JobStatus

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["worker", "examples.demo.jobs:app", "--concurrency", "3", "--stop-grace", "0.5"]


class Workers:
    """Two workers; when one was killed, another is started. On exit, all of them drain."""

    def __init__(self, url: str, folder: Path, *, number: int = 2) -> None:
        self._environment = {**os.environ, "PENSTOCK_URL": url}
        self._folder = folder
        self._number = number
        self._started: list[subprocess.Popen[bytes]] = []
        self._killed: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for _ in range(self._number):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def _start(self) -> None:
        with (self._folder / f"worker-{len(self._started) + 1}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *COMMAND],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)

    @property
    def killed(self) -> bool:
        return self._killed is not None

    def kill_one(self, backend: Backend) -> str | None:
        """Kill a worker, as the kernel would, while it is well inside a slow job; return that job's id."""
        for job in backend.list_jobs(type="slow", status=JobStatus.RUNNING):
            if int(backend.get_job(job.id).checkpoint or b"0") < 5:
                continue
            for process in self._started:
                if f"-{process.pid}-" in (job.assignee_id or ""):
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    self._killed = process
                    self._start()
                    return job.id
        return None

    def check(self) -> None:
        """Raise if a worker has ended by itself."""
        for number, process in enumerate(self._started, start=1):
            if process is not self._killed and process.poll() is not None:
                log = self._folder / f"worker-{number}.log"
                raise ChildProcessError(f"worker {number} ended with {process.returncode}; its log is {log}")
