"""While Spark works on a wave, the next one is claimed and the one before is reported."""

import json
import threading
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

import penstock
from penstock import Job, JobStatus
from penstock import spark as ps
from penstock.errors import BackendError
from penstock.queue import Queue
from penstock.spark.frames import _run, _waves


@pytest.fixture
def url(sqlite_url):
    """Two full waves of two jobs, and one more job."""
    with penstock.open_backend(sqlite_url) as backend:
        backend.enqueue_jobs(
            [
                Job(id=f"job-{n}", type="score", payload=json.dumps({"text": "x" * n}).encode())
                for n in range(5)
            ]
        )
    return sqlite_url


def jobs_in(url):
    with penstock.open_backend(url) as backend:
        return {job.id: job for job in backend.list_jobs(limit=1000)}


def lengths(frame):
    return frame.select("id", "attempt", F.length("text").alias("score"))


def run(spark, url, transform, **options):
    return ps.run_frames(
        spark, url, transform, type="score", schema="text string", jobs_per_wave=2, **options
    )


@pytest.fixture
def second_claim(monkeypatch):
    """Is set when the second wave is claimed."""
    claims, done = [], threading.Event()
    claim = _waves.Waves._claim

    def counted(waves, room):
        held = claim(waves, room)
        claims.append(held)
        if len(claims) == 2:
            done.set()
        return held

    monkeypatch.setattr(_waves.Waves, "_claim", counted)
    return done


def test_the_next_wave_is_claimed_while_spark_works(spark, url, second_claim):
    seen = []

    def transform(frame):
        assert second_claim.wait(60)
        seen.append(sum(job.status is JobStatus.RUNNING for job in jobs_in(url).values()))
        return lengths(frame)

    report = run(spark, url, transform)
    assert (report.completed, report.waves) == (5, 3)
    assert seen[0] == 4
    assert {name: json.loads(job.result) for name, job in jobs_in(url).items()} == {
        f"job-{n}": {"score": n} for n in range(5)
    }


def test_a_wave_that_is_not_full_is_the_last_that_is_claimed(spark, url, second_claim):
    ps.run_frames(spark, url, lengths, type="score", schema="text string", max_jobs=6)
    assert {job.status for job in jobs_in(url).values()} == {JobStatus.COMPLETED}


def test_no_wave_is_claimed_ahead_that_would_take_too_much_memory(spark, url, monkeypatch, second_claim):
    monkeypatch.setattr(_waves, "_MAX_PAYLOAD", 40)  # two payloads have more than half of it
    running = []

    def transform(frame):
        running.append(sum(job.status is JobStatus.RUNNING for job in jobs_in(url).values()))
        return lengths(frame)

    assert run(spark, url, transform).completed == 5
    assert max(running) <= 2


def test_an_error_releases_both_waves_uncounted(spark, url, second_claim):
    def transform(_):
        assert second_claim.wait(60)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run(spark, url, transform)
    found = jobs_in(url).values()
    assert {job.status for job in found} <= {JobStatus.INITIAL_PENDING, JobStatus.FAILED_RETRY}
    assert {job.failures for job in found} == {0}
    assert run(spark, url, lengths).completed == 5


def test_a_wave_that_time_does_not_allow_is_released(spark, url, monkeypatch, second_claim):
    now = [0.0]
    monkeypatch.setattr(_run, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def transform(frame):
        assert second_claim.wait(60)
        now[0] = 100.0
        return lengths(frame)

    report = run(spark, url, transform, max_seconds=50)
    assert (report.completed, report.waves) == (2, 1)
    found = jobs_in(url).values()
    assert sum(job.status is JobStatus.COMPLETED for job in found) == 2
    assert JobStatus.RUNNING not in {job.status for job in found}
    assert {job.failures for job in found} == {0}


def test_a_store_that_refuses_reports_is_an_error_and_nothing_stays_held(spark, url, monkeypatch):
    def refuse(*_, **__):
        raise BackendError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "complete_jobs", refuse)
        with pytest.raises(BackendError, match="the disk is full"):
            run(spark, url, lengths)
    assert JobStatus.RUNNING not in {job.status for job in jobs_in(url).values()}
    assert run(spark, url, lengths).completed == 5
