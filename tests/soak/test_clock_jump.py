"""The wall clock of worker processes jumps an hour ahead while they run jobs; `make test` moves the store's clock alone."""

import os
import struct
import subprocess
import sys

import pytest
from tests.waiting import until

import penstock
from penstock import JobStatus, Timeouts

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *ahead;
static long seconds(void) {
    if (!ahead) {
        int fd = open(getenv("CLOCK_AHEAD"), O_RDONLY);
        ahead = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
    }
    return *ahead;
}
int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, found);
    if (!result && clock == CLOCK_REALTIME) found->tv_sec += seconds();
    return result;
}
int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""
APP = """
import os, time
import penstock

app = penstock.App(os.environ["URL"])

@app.job(timeout=1800)
def slow() -> str:
    end = time.monotonic() + 12
    while time.monotonic() < end:
        time.sleep(0.1)
    return "done"
"""
HOUR = 3600


@pytest.fixture
def clock(tmp_path):
    """A file with the seconds by which the clock of the processes is ahead, and their environment."""
    (tmp_path / "shim.c").write_text(SHIM)
    ahead = tmp_path / "ahead"
    ahead.write_bytes(struct.pack("@l", 0))
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", tmp_path / "shim.so", tmp_path / "shim.c", "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler to move the clock with: {error}")
    return ahead, {"LD_PRELOAD": str(tmp_path / "shim.so"), "CLOCK_AHEAD": str(ahead)}


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(300)
def test_an_hour_ahead_no_running_job_is_timed_out_or_reclaimed(tmp_path, clock):
    """F9: with two processes that maintain the store in turns."""
    ahead, environment = clock
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "jumping.py").write_text(APP)
    with penstock.connect(url) as queue:
        timeouts = Timeouts(execution=1800, visibility=300)
        submitted = queue.submit_many([{"type": "slow", "timeouts": timeouts} for _ in range(8)])
        jobs = [job.id for job in submitted]
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", "penstock", "worker", "jumping:app", "--concurrency", "4"],
                cwd=tmp_path,
                env={**os.environ, **environment, "URL": url},
            )
            for _ in range(2)
        ]
        try:
            until(
                lambda: {job.status for job in queue.get_jobs(jobs).values()} == {JobStatus.RUNNING},
                seconds=120,
            )
            with ahead.open("r+b") as file:
                file.write(struct.pack("@l", HOUR))
            until(lambda: all(job.status.is_final for job in queue.get_jobs(jobs).values()), seconds=120)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(60)
        ended = queue.get_jobs(jobs).values()
    assert [(job.status, job.attempt, job.failures) for job in ended] == [(JobStatus.COMPLETED, 1, 0)] * 8
