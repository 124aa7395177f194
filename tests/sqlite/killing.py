"""Kill writers again and again, and compare what they were told with what is stored.

Run as a program (`python -m tests.sqlite.killing path rounds seed threads`): it forks a writer, lets it work for a few
milliseconds, kills it with SIGKILL, and says at the end, as one line of JSON, what was checked and what was found wrong.
A writer notes every acknowledgement in a pipe after the call has returned: "e id" stored, "c id attempt" claimed,
"d id" completed, "b id…" a batch stored.
"""

import json
import os
import random
import select
import signal
import sys
import threading
import time
from pathlib import Path

import apsw

import penstock
from penstock.job import Job, JobStatus, Key
from penstock.testing import check_invariants

ROUNDS_PER_FILE = 25


def write(path: str, name: str, seed: int, threads: int, pipe: int) -> None:
    """Work until killed."""
    backend = penstock.open_backend(f"sqlite:///{path}")

    def tell(*words: object) -> None:
        os.write(pipe, (" ".join(map(str, words)) + "\n").encode())  # short enough to be atomic

    def work(number: int) -> None:
        choice = random.Random(f"{seed}-{number}")
        worker = f"{name}-{number}"
        for step in range(1_000_000):
            job_id = f"{worker}-{step}"
            lot = choice.random()
            if lot < 0.45:
                fields = {"tags": (choice.choice("ab"),), "payload": b"x" * choice.choice([0, 10, 5_000])}
                if choice.random() < 0.2:
                    fields["key"] = Key(choice.choice("xyz"))
                tell("e", backend.enqueue_job(Job(id=job_id, type="t", **fields)))
            elif lot < 0.55:
                batch = [Job(id=f"{job_id}-{each}", type="t") for each in range(choice.randrange(2, 30))]
                tell("b", *backend.enqueue_jobs(batch))
            elif lot < 0.6:
                backend.maintain()
            else:
                for job in backend.dequeue_jobs(worker, limit=choice.randrange(1, 4)):
                    tell("c", job.id, job.attempt)
                    backend.complete_job(job.id, job.id.encode(), attempt=job.attempt)
                    tell("d", job.id)

    others = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(1, threads)]
    for thread in others:
        thread.start()
    work(0)


def one_round(path: str, name: str, choice: random.Random, threads: int) -> list[str]:
    """Fork a writer, kill it, return its complete notes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            write(path, name, choice.randrange(2**30), threads, writing)
        finally:
            os._exit(1)
    os.close(writing)
    notes = bytearray()
    end = time.monotonic() + choice.choice([0.01, 0.02, 0.04, 0.08]) * (1 + choice.random())
    while (left := end - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            chunk = os.read(reading, 65_536)
            if not chunk:
                break
            notes += chunk
    os.kill(pid, signal.SIGKILL)
    while chunk := os.read(reading, 65_536):
        notes += chunk
    os.close(reading)
    os.waitpid(pid, 0)
    return notes.decode().split("\n")[:-1]


def check(path: str, notes: list[str]) -> tuple[list[str], dict[str, int]]:
    """Return what is wrong with the store, and how much was checked."""
    wrong: list[str] = []
    told: dict[str, set[str]] = {"e": set(), "b": set(), "c": set(), "d": set()}
    for line in notes:
        kind, *words = line.split()
        told[kind].update(words if kind == "b" else words[:1])
    with penstock.open_backend(f"sqlite:///{path}") as backend:
        rows, jobs = [], {}
        while page := backend.read_journal(rows[-1].seq if rows else 0, 10_000):
            rows += page
        last = None
        while found := backend.list_jobs(after=last, limit=1000):
            jobs |= {job.id: job for job in found}
            last = found[-1].id
        wrong += [f"lost: {name}" for name in (told["e"] | told["b"]) - jobs.keys()]
        wrong += [f"claim lost: {name}" for name in told["c"] if name not in jobs or jobs[name].attempt < 1]
        wrong += [
            f"completion lost: {name}"
            for name in told["d"]
            if jobs[name].status is not JobStatus.COMPLETED or jobs[name].result != name.encode()
        ]
        wrong += [str(violation) for violation in check_invariants(rows, jobs=jobs.values())]
        stats = backend.get_job_stats()
        if (stats.total_jobs, stats.completed_jobs) != (
            len(jobs),
            sum(job.status is JobStatus.COMPLETED for job in jobs.values()),
        ):
            wrong.append(f"the counters say {stats}")
    connection = apsw.Connection(path)
    if (answer := connection.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
        wrong.append(f"integrity: {answer}")
    connection.close()
    return wrong, {"stored": len(told["e"] | told["b"]), "completed": len(told["d"])}


def main(folder: str, rounds: int, seed: int, threads: int) -> dict[str, object]:
    choice = random.Random(seed)
    wrong: list[str] = []
    totals = {"rounds": rounds, "stored": 0, "completed": 0}
    notes: list[str] = []
    for number in range(rounds):
        path = f"{folder}/killed-{threads}-{number // ROUNDS_PER_FILE}.db"
        notes += one_round(path, f"r{number}", choice, threads)
        if number == rounds - 1 or (number + 1) % ROUNDS_PER_FILE == 0:
            found, checked = check(path, notes)
            wrong += found
            notes = []
            for name, count in checked.items():
                totals[name] += count
            if not found:
                for file in Path(folder).glob(f"{Path(path).name}*"):
                    file.unlink()
    return {**totals, "wrong": wrong[:20]}


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    print(json.dumps(main(folder, *map(int, numbers))))  # noqa: T201
