"""Ctrl-C in one thread, at any instruction, leaves no other thread waiting for ever (RELIABILITY 2.4)."""

import subprocess
import sys

import pytest

STRESS = """
import os, random, signal, sys, threading, time
import penstock
from penstock import Job

class Interruption(KeyboardInterrupt): pass

def interrupt(*_): raise Interruption

signal.signal(signal.SIGALRM, interrupt)
backend = penstock.open_backend(sys.argv[1])
done = [0] * 4

def work(number):
    while True:
        try:
            backend.enqueue_job(Job.new("t"))
        except penstock.BackendError:
            pass  # it shared the commit of the one that was interrupted
        done[number] += 1

for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
hits = 0
while hits < 300:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.004))
            while True:
                backend.enqueue_job(Job.new("t"))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interruption:
        hits += 1
    except penstock.BackendError:
        pass
before = list(done)
end = time.monotonic() + 10
while time.monotonic() < end and any(now == then for now, then in zip(done, before)):
    time.sleep(0.05)
print("stuck:", [number for number in range(4) if done[number] == before[number]])
os._exit(0)
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_interrupted_calls_strand_nobody(tmp_path, kind):
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    found = subprocess.run(
        [sys.executable, "-c", STRESS, url], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.stdout.strip() == "stuck: []", found.stderr
