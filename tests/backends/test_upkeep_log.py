"""What upkeep logs about jobs that no worker reports (section 3)."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.stores import postgres_database, postgres_databases, postgres_store, postgres_url

import penstock
from penstock import Backend, Job, RetryPolicy, Timeouts
from penstock.backends.engine import upkeep_log
from penstock.testing import ManualClock

__all__ = ["postgres_database", "postgres_databases", "postgres_store", "postgres_url"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Backend]:
    is_server = request.param == "postgres"
    url = request.getfixturevalue("postgres_store") if is_server else f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open_backend(url, clock=clock) as opened:
        yield opened


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(each.levelno, each.getMessage()) for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_lost_attempt_is_a_warning_and_the_last_one_an_error(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Timeouts(visibility=timedelta(seconds=60))
    backend.enqueue_job(Job(id="j", type="t", retry=RetryPolicy(max_attempts=2), timeouts=lease))
    for _ in range(2):
        assert len(backend.dequeue_jobs("worker-a")) == 1
        clock.advance(120)
        backend.maintain()
    (first, begun), (last, ended) = said(caplog)
    assert (first, last) == (logging.WARNING, logging.ERROR)
    assert begun == "job j of t was lost (its process worker-a): attempt 1 of 2, it runs again at once"
    assert ended == "job j of t was lost (its process worker-a): attempt 2 of 2, it ended dead_letter"
    assert [each.event for each in caplog.records] == ["job.retry", "job.failed"]


def test_passed_limits_are_logged_too(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Timeouts(execution=timedelta(seconds=30), visibility=None, lifetime=timedelta(hours=1))
    backend.enqueue_job(Job(id="j", type="t", retry=RetryPolicy(max_attempts=9), timeouts=limits))
    backend.dequeue_jobs("worker-a")
    clock.advance(60)
    backend.maintain()
    clock.advance(7200)
    backend.maintain()
    (late, overdue), (over, expired) = said(caplog)
    assert (late, over) == (logging.WARNING, logging.ERROR)
    assert "ran longer than its limit (its process worker-a): attempt 1 of 9, it runs again at 2" in overdue
    assert "did not end within its lifetime" in expired
    assert expired.endswith("it ended dead_letter")


def test_a_pass_that_reclaims_many_names_few(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Timeouts(visibility=timedelta(seconds=60))
    backend.enqueue_jobs(
        [Job(id=f"j{number}", type=f"t{number % 2}", timeouts=lease) for number in range(1200)]
    )
    assert len(backend.dequeue_jobs("worker-a", limit=1000)) == 1000
    assert len(backend.dequeue_jobs("worker-a", limit=1000)) == 200
    clock.advance(120)
    assert backend.maintain().lost == 1200
    texts = [text for _, text in said(caplog)]
    assert len(texts) == upkeep_log.MAX_NAMED + 2
    assert sum(int(text.split()[0]) for text in texts if "more jobs of" in text) == 1195
