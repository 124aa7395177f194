"""A job that waits for another one lends its slot: nothing hangs because all slots wait."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.app import lending_jobs as jobs
from tests.app.working import working
from tests.waiting import PATIENCE, until

from penstock import App, JobStatus
from penstock.testing import check_store
from penstock.worker import _lending

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork"),
]


@pytest.fixture
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An app on SQLite, or on the store that a test names."""
    is_named = hasattr(request, "param")
    url = request.getfixturevalue(request.param) if is_named else f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("PENSTOCK_LENDING_URL", url)
    jobs.app.url = url
    yield jobs.app
    assert check_store(jobs.app.queue.backend) == []
    jobs.app.close()


@pytest.fixture(params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("slots", "task", "arguments", "result"),
    [
        (1, jobs.parent, {"number": 3}, 7),
        (1, jobs.async_parent, {"number": 3}, 7),
        (1, jobs.family, {"number": 4}, 12),
        (1, jobs.gathering, {"number": 4}, 12),
        (1, jobs.gathering_async, {"number": 4}, 12),
        (1, jobs.chain, {"depth": 3}, 3),
        (2, jobs.chain, {"depth": 5}, 5),
        (1, jobs.flow, {"number": 5}, 10),
        (1, jobs.keyed, {"number": 3}, 4),
    ],
    ids=["parent", "async", "family", "gather", "async gather", "chain of 3", "chain of 5", "flow", "key"],
)
def test_what_a_job_waits_for_runs_although_every_slot_is_taken(
    app, isolation, slots, task, arguments, result
):
    handle = task.submit(**arguments)
    with working(app, isolation=isolation, concurrency=slots):
        assert handle.result(PATIENCE) == result


@pytest.mark.postgres
@pytest.mark.parametrize("app", ["postgres_store"], indirect=True)
def test_slots_are_lent_on_postgresql_too(app):
    calls = [(jobs.parent, 3, 7), (jobs.chain, 3, 3), (jobs.flow, 5, 10), (jobs.keyed, 3, 4)]
    handles = [(task.submit(number), result) for task, number, result in calls]
    with working(app, concurrency=1):
        for handle, result in handles:
            assert handle.result(PATIENCE) == result


def test_many_parents_on_few_slots_all_end_and_few_jobs_run_beside_them(app, isolation):
    """The oldest come first, so all parents would be claimed before the first child."""
    handles = [jobs.parent.submit(number=number) for number in range(20)]
    most = []
    with working(app, isolation=isolation, concurrency=2) as worker:
        until(lambda: most.append(len(worker.runs())) or all(handle.status.is_final for handle in handles))
        until(lambda: worker._lent == [])
        assert (worker._lending._waits, worker._lending._lent) == ({}, 0)
    assert [handle.result(0) for handle in handles] == [2 * number + 1 for number in range(20)]
    assert max(most) <= 2 * 2 + 1  # two that wait, and one for each; one may be on its way out


def test_a_wait_that_is_given_up_frees_nothing_twice(app, isolation):
    handle = jobs.impatient.submit(number=3)
    with working(app, isolation=isolation, concurrency=1, stop_grace=0.2) as worker:
        assert handle.result(PATIENCE) == 3
        until(lambda: worker._lending._waits == {})


def test_an_idle_slot_is_used_before_one_is_lent(app, isolation, caplog):
    handle = jobs.parent.submit(number=3)
    with working(app, isolation=isolation, concurrency=4):
        assert handle.result(PATIENCE) == 7
    assert "runs in its place" not in caplog.text


@pytest.mark.parametrize("limit", [2])
def test_no_more_jobs_run_beside_the_slots_than_the_limit(app, isolation, monkeypatch, caplog, limit):
    monkeypatch.setattr(_lending, "MAX_LENT", limit)
    handle = jobs.chain.submit(depth=5)
    with working(app, isolation=isolation, concurrency=1, stop_grace=0.2, grace=0) as worker:
        until(lambda: "wait for other jobs, and none of those can run here now" in caplog.text)
        assert len(worker.runs()) == 1 + limit
        assert app.queue.get_job_stats().running_jobs == 1 + limit
    assert handle.status is JobStatus.FAILED_RETRY  # handed back


def test_a_worker_whose_jobs_all_wait_says_so_in_its_log_and_in_the_store(app, isolation, caplog):
    awaited = jobs.double.options(delay=3600).submit(number=1)
    handle = jobs.waits_for.submit(job_id=awaited.id)
    with working(app, isolation=isolation, concurrency=1):
        until(lambda: "none of those can run here now" in caplog.text)
        warned = [each for each in caplog.records if "none of those" in each.message]
        assert warned[0].levelname == "WARNING"
        assert f"waits_for {handle.id} for {awaited.id} (initial_pending)" in warned[0].message
        until(lambda: any(owner.is_stalled for owner in app.queue.backend.reading.overview().living))
        awaited.cancel()
        assert handle.result(PATIENCE) == "unscheduled"
        until(lambda: not any(owner.waiting for owner in app.queue.backend.reading.overview().living))
    assert len([each for each in caplog.records if "none of those" in each.message]) == 1


def test_the_first_lent_slot_is_a_warning_and_the_others_are_not(app, caplog):
    handle = jobs.chain.submit(depth=3)
    with working(app, concurrency=1):
        handle.result(PATIENCE)
    lent = [each for each in caplog.records if "runs in its place" in each.message]
    assert [each.levelname for each in lent if each.levelno >= 30] == ["WARNING"]
    assert "after=" in lent[0].message


def test_a_held_job_is_not_claimed_because_somebody_waits_for_it(app, isolation, caplog):
    """It is for whoever claims it by its id."""
    held = app.queue.submit("double", {"number": 1}, held=True)
    handle = jobs.waits_for.submit(job_id=held.id)
    with working(app, isolation=isolation, concurrency=1):
        until(lambda: "none of those can run here now" in caplog.text)
        assert app.queue.get_job(held.id).status is JobStatus.INITIAL_PENDING
        app.queue.cancel_jobs(job_ids=[held.id])
        handle.result(PATIENCE)


def test_a_draining_worker_lends_no_slot(app, isolation):
    """What is waited for cannot run any more, so the job that waits is handed back when the grace is over."""
    awaited = jobs.double.options(delay=3600).submit(number=1)
    handle = jobs.waits_for.submit(job_id=awaited.id)
    with working(app, isolation=isolation, concurrency=1, grace=0.2, stop_grace=0.2) as worker:
        until(lambda: worker._lending._waits)
    assert handle.status is JobStatus.FAILED_RETRY
