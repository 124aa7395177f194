"""How a process holds its jobs (C28, C63)."""

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

import penstock
from penstock import Job, JobStatus, Queue, Timeouts, cancel_scope

SOON = 20.0
spawn = multiprocessing.get_context("spawn")


def short(name: str, seconds: float) -> Job:
    return Job(id=name, type="work", timeouts=Timeouts(visibility=timedelta(seconds=seconds)))


def pace(queue: Queue) -> float:
    return queue._dispatcher.owner.beat_seconds()


@pytest.mark.parametrize("by", ["stream", "hand"])
def test_the_pace_is_a_third_of_the_shortest_visibility_held(queue: Queue, by: str) -> None:
    """C28."""
    assert pace(queue) == 5.0
    queue.enqueue_jobs([short("three", 3), short("six", 6), short("long", 300), Job(id="none", type="work")])
    if by == "stream":
        stream = queue.stream_jobs("w", max_assigned_jobs=4)
        with cancel_scope(timeout=SOON):
            assert len(next(stream)) == 4
    else:
        assert len(queue.claim_jobs("w", 4)) == 4
    assert pace(queue) == 1.0
    queue.complete_job("three")
    assert pace(queue) == 2.0
    queue.fail_job("six", "boom")
    queue.cancel_jobs(job_ids=["six"], waiting_only=True)
    queue.complete_job("long")
    if by == "hand":
        assert pace(queue) == 5.0


def test_the_pace_is_a_third_of_the_liveness(connect: Callable[..., Queue]) -> None:
    assert pace(connect(liveness=6)) == 2.0


def test_a_job_that_ended_elsewhere_does_not_keep_the_pace(queue: Queue) -> None:
    """Q28: it ended in another process, as it were: nobody here was told."""
    queue.enqueue_job(short("a", 3))
    queue.claim_jobs("w")
    listeners, queue.backend.runtime._listeners = queue.backend.runtime._listeners, {}
    queue.backend.complete_job("a")
    queue.backend.runtime._listeners = listeners
    assert pace(queue) == 1.0
    until(lambda: pace(queue) == 5.0)


def test_a_short_visibility_is_beaten_for_at_once(queue: Queue) -> None:
    """C28: the thread that beats does not finish a longer pause first."""
    beats: list[float] = []
    beat = queue.backend.owners.beat

    def count(owner: str, **told: Any) -> bool:
        beats.append(time.monotonic())
        return beat(owner, **told)

    queue.backend.owners.beat = count  # type: ignore[method-assign]
    queue.enqueue_job(short("a", 0.3))
    queue.claim_jobs("w")
    until(lambda: len(beats) >= 6)
    queue.complete_job("a")
    assert pace(queue) == 5.0


def test_an_upkeep_that_takes_long_does_not_stop_the_beat(
    connect: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.liveness.UPKEEP_SECONDS", 0.01)
    queue = connect()
    entered, go = threading.Event(), threading.Event()
    beats: list[str] = []
    maintain, beat = queue.backend.maintain, queue.backend.owners.beat

    def slow() -> Any:
        entered.set()
        assert go.wait(SOON)
        return maintain()

    def count(owner: str, **told: Any) -> bool:
        beats.append(owner)
        return beat(owner, **told)

    queue.backend.maintain, queue.backend.owners.beat = slow, count  # type: ignore[method-assign]
    queue.enqueue_job(short("a", 0.3))
    queue.claim_jobs("w")
    try:
        assert entered.wait(SOON)
        beats.clear()
        until(lambda: len(beats) >= 3)
    finally:
        go.set()


def test_a_process_that_was_given_up_goes_on_under_a_new_name(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """C63."""
    queue.enqueue_job(short("a", 0.3))
    queue.claim_jobs("w")
    first = queue._dispatcher.owner.id
    with caplog.at_level(logging.WARNING, "penstock"):
        queue.backend.owners.close(first)
        until(lambda: queue._dispatcher.owner.id != first)
    assert "silent for too long" in caplog.text
    queue.maintain()
    assert queue.get_job("a").status is JobStatus.UNKNOWN_RETRY
    (again,) = queue.claim_jobs("w")
    queue.maintain()
    assert queue.get_job("a").attempt == again.attempt == 2


def _judge(url: str, seconds: float) -> None:
    with penstock.open_backend(url) as backend:
        until = time.monotonic() + seconds
        lost = 0
        while time.monotonic() < until:
            lost += backend.maintain().lost
    assert lost == 0, lost


@pytest.mark.process
@pytest.mark.slow
def test_a_living_process_keeps_jobs_of_a_short_visibility(tmp_path: Path) -> None:
    """C28: another process judges all the time and finds nobody dead."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.connect(url) as queue:
        queue.enqueue_jobs([short("streamed", 1.0), Job(id="other", type="other"), short("taken", 1.0)])
        stream = queue.stream_jobs("w", types=["work"], max_assigned_jobs=2)
        with cancel_scope(timeout=SOON):
            next(stream)
        judge = spawn.Process(target=_judge, args=(url, 4.0))
        judge.start()
        judge.join(60)
        assert judge.exitcode == 0
        assert {queue.get_job(name).status for name in ("streamed", "taken")} == {JobStatus.RUNNING}
