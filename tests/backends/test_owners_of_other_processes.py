"""Liveness across processes: who is gone loses its jobs, who lives keeps them."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock.backends import Backend
from penstock.job import Job, JobStatus
from penstock.policy import RetryPolicy, Timeouts
from penstock.testing import ManualClock

pytestmark = [pytest.mark.process]

CHILD = """
import json, sys
import penstock
from penstock.testing import ManualClock

url, options, job_ids = json.loads(sys.argv[1])
clock = ManualClock()
backend = penstock.open_backend(url, clock=clock, **options)
owner = backend.owners.open()
backend.dequeue_jobs("child", limit=100, job_ids=job_ids, owner=owner)
print(owner, flush=True)
for line in sys.stdin:
    command = line.strip()
    if command.startswith("advance "):
        print(clock.advance(int(command[8:])), flush=True)
    elif command.startswith("claim "):
        print(len(backend.dequeue_jobs("child", job_ids=[command[6:]], owner=owner)), flush=True)
    elif command == "beat":
        print(backend.owners.beat(owner), flush=True)
    elif command == "close":
        backend.owners.close(owner)
        print("closed", flush=True)
"""


class Child:
    """Another process that holds jobs on the same store; its clock stands at the start."""

    def __init__(self, url: str, options: dict[str, Any], job_ids: list[str]) -> None:
        import json

        arguments = json.dumps([url, options, job_ids])
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.owner = self._read()

    def tell(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> tuple[str, dict[str, Any]]:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}", {}
    return request.getfixturevalue("postgres_url"), {
        "schema": "owners_" + tmp_path.name[-20:].lower().strip("_")
    }


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(store: tuple[str, dict[str, Any]], clock: ManualClock) -> Iterator[Backend]:
    url, options = store
    with penstock.open_backend(url, clock=clock, **options) as opened:
        yield opened


@pytest.fixture
def child_holding(store: tuple[str, dict[str, Any]], backend: Backend) -> Iterator[Any]:
    """A function that adds jobs and starts a process that claims them."""
    children: list[Child] = []

    def start(*jobs: Job) -> Child:
        backend.enqueue_jobs(jobs)
        child = Child(*store, [job.id for job in jobs])
        children.append(child)
        assert all(backend.get_job(job.id).status is JobStatus.RUNNING for job in jobs)
        return child

    yield start
    for child in children:
        child.kill()


def test_the_jobs_of_a_process_that_is_gone_are_lost_at_once(backend: Backend, child_holding: Any) -> None:
    """C63: the process ran on this host, so nobody has to wait for its beat to grow old."""
    child = child_holding(
        Job(id="plain", type="t"), Job(id="last", type="t", retry=RetryPolicy(max_attempts=1))
    )
    assert backend.maintain().lost == 0
    child.kill()
    assert backend.maintain().lost == 2
    assert backend.get_job("plain").status is JobStatus.UNKNOWN_RETRY
    assert backend.get_job("last").status is JobStatus.DEAD_LETTER
    assert backend.owners.beat(child.owner) is False


def test_a_silent_process_loses_its_jobs_after_fifteen_seconds(
    backend: Backend, clock: ManualClock, child_holding: Any
) -> None:
    """C28, C63."""
    child = child_holding(Job(id="job", type="t"))
    clock.advance(14.9)
    assert backend.maintain().lost == 0
    clock.advance(0.2)
    assert backend.maintain().lost == 1
    assert child.tell("beat") == "False"


def test_a_claim_proves_life_as_a_beat_does(backend: Backend, clock: ManualClock, child_holding: Any) -> None:
    """C28: a job with a short visibility is not lost because the last beat before its claim was long ago."""
    child = child_holding(Job(id="long", type="t"))
    backend.enqueue_job(Job(id="short", type="t", timeouts=Timeouts(visibility=timedelta(seconds=2))))
    clock.advance(10)
    child.tell("advance 10")
    assert child.tell("claim short") == "1"
    clock.advance(1.9)
    assert backend.maintain().lost == 0
    clock.advance(0.2)
    assert backend.maintain().lost == 1
    assert backend.get_job("short").status is JobStatus.UNKNOWN_RETRY


def test_a_process_that_comes_back_while_it_is_given_up_keeps_its_name(
    backend: Backend, clock: ManualClock, child_holding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C63: it has lost its jobs, but what it claims from now on is held."""
    child = child_holding(Job(id="lost", type="t"))
    backend.enqueue_job(Job(id="next", type="t"))
    clock.advance(16)
    write = backend._access.write
    steps: list[int] = []

    def count(*args: Any, **options: Any) -> Any:
        result = write(*args, **options)
        steps.append(1)
        if len(steps) == 2:  # lifetimes, then lost jobs; the name is not forgotten yet
            child.tell("advance 16")
            assert child.tell("beat") == "True"
        return result

    monkeypatch.setattr(backend._access, "write", count)
    assert backend.maintain().lost == 1
    assert child.tell("claim next") == "1"
    assert backend.maintain().lost == 0
    assert backend.get_job("next").status is JobStatus.RUNNING


def test_a_visibility_shorter_than_the_liveness_counts(
    backend: Backend, clock: ManualClock, child_holding: Any
) -> None:
    """C28."""
    child_holding(
        Job(id="short", type="t", timeouts=Timeouts(visibility=timedelta(seconds=5))),
        Job(id="long", type="t", timeouts=Timeouts(visibility=timedelta(seconds=500))),
    )
    clock.advance(5.1)
    assert backend.maintain().lost == 1
    assert backend.get_job("short").status is JobStatus.UNKNOWN_RETRY
    assert backend.get_job("long").status is JobStatus.RUNNING
    clock.advance(5)
    assert backend.maintain().lost == 0
    clock.advance(5)
    assert backend.maintain().lost == 1


def test_a_process_that_closes_its_owner_gives_its_jobs_back(backend: Backend, child_holding: Any) -> None:
    """C63."""
    child = child_holding(Job(id="job", type="t"))
    assert child.tell("close") == "closed"
    assert backend.maintain().lost == 1


def test_a_late_report_of_a_lost_process_is_refused_once_another_has_the_job(
    backend: Backend, child_holding: Any
) -> None:
    """Q40."""
    child = child_holding(Job(id="job", type="t"))
    child.kill()
    backend.maintain()
    (job,) = backend.dequeue_jobs("other")
    assert job.attempt == 2
    with pytest.raises(penstock.errors.StaleAttemptError):
        backend.complete_job("job", attempt=1)


# -- after a gap in upkeep -------------------------------------------------------------------------------------------


def advance(clock: ManualClock, child: Child, seconds: int) -> None:
    clock.advance(seconds)
    child.tell(f"advance {seconds}")


@pytest.mark.parametrize("gap", [20, 3600])
def test_after_an_outage_a_living_process_has_one_liveness_period_to_beat(
    backend: Backend, clock: ManualClock, child_holding: Any, gap: int
) -> None:
    """C28: nobody could beat while nothing could be written, so that silence says nothing."""
    child = child_holding(
        Job(id="plain", type="t"),
        Job(id="last", type="t", retry=RetryPolicy(max_attempts=1)),
        Job(id="short", type="t", timeouts=Timeouts(visibility=timedelta(seconds=5))),
    )
    backend.maintain()
    advance(clock, child, gap)
    assert backend.maintain().lost == 0
    advance(clock, child, 4)
    assert backend.maintain().lost == 0
    assert child.tell("beat") == "True"
    for _ in range(3):
        advance(clock, child, 4)
        assert child.tell("beat") == "True"
        assert backend.maintain().lost == 0
    assert {backend.get_job(name).status for name in ("plain", "last", "short")} == {JobStatus.RUNNING}


def test_a_process_that_stays_silent_after_an_outage_loses_its_jobs_one_liveness_period_later(
    backend: Backend, clock: ManualClock, child_holding: Any
) -> None:
    """C28, C63."""
    child = child_holding(Job(id="job", type="t"))
    backend.maintain()
    clock.advance(600)
    lost = []
    for _ in range(4):
        lost.append(backend.maintain().lost)
        clock.advance(5)
    assert lost == [0, 0, 0, 1]
    assert child.tell("beat") == "False"


def test_every_process_waits_after_an_outage_whichever_noticed_it(
    store: tuple[str, dict[str, Any]], backend: Backend, clock: ManualClock, child_holding: Any
) -> None:
    child_holding(Job(id="job", type="t"))
    backend.maintain()
    clock.advance(20)
    assert backend.maintain().lost == 0
    clock.advance(1)
    url, options = store
    with penstock.open_backend(url, clock=clock, **options) as another:
        assert another.maintain().lost == 0
        for _ in range(2):
            clock.advance(7)
            lost = another.maintain().lost
        assert lost == 1


def test_the_jobs_of_a_process_that_is_gone_are_lost_at_once_after_an_outage_too(
    backend: Backend, clock: ManualClock, child_holding: Any
) -> None:
    """C63: that it is gone is certain, whatever could be written meanwhile."""
    child = child_holding(Job(id="job", type="t"))
    backend.maintain()
    child.kill()
    clock.advance(600)
    assert backend.maintain().lost == 1


def test_a_store_that_is_maintained_rarely_is_not_taken_for_one_that_was_away(
    backend: Backend, clock: ManualClock, child_holding: Any
) -> None:
    child_holding(Job(id="job", type="t"))
    lost = []
    for _ in range(3):
        lost.append(backend.maintain().lost)
        clock.advance(60)
    assert lost == [0, 0, 1]


def test_a_lease_by_hand_ends_when_it_ends(backend: Backend, clock: ManualClock) -> None:
    """C28: its holder knows when, and was told if a heartbeat failed; its late report still counts (Q40)."""
    backend.enqueue_job(Job(id="job", type="t", timeouts=Timeouts(visibility=timedelta(seconds=30))))
    backend.dequeue_jobs("by hand")
    backend.maintain()
    clock.advance(31)
    assert backend.maintain().lost == 1
    assert backend.complete_job("job", attempt=1) == {}


def test_a_clock_that_was_set_back_does_not_put_off_reclaiming(
    backend: Backend, clock: ManualClock, child_holding: Any
) -> None:
    child_holding(Job(id="job", type="t"))
    backend.maintain()
    clock.advance(3600)
    assert backend.maintain().lost == 0  # silence counts again 15 s after this moment
    clock.advance(-3599)
    lost = []
    for _ in range(5):
        lost.append(backend.maintain().lost)
        clock.advance(5)
    assert sum(lost) == 1
